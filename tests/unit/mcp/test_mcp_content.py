"""Tool lists, results, and artifacts as resources of a server.

Artifacts are read whole, or in pages that lead to each other, by the session alone whose they are.
"""

import base64
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, MCPError, types
from mcp.types import BlobResourceContents, TextResourceContents

from forge_tools.mcp import content
from forge_tools.mcp.calls import Offer
from forge_tools.mcp.content import answered, listed, shown_whole
from forge_tools.mcp.server import ToolServer
from forge_tools.model import Capabilities, ToolCategory, ToolParameter, ToolResult, ToolSpec
from forge_tools.model.artifacts import Artifact
from forge_tools.storage import Store, open_store
from tests.contract.test_artifacts import BYTES, put
from tests.migrated import migrated
from tests.part_tools import counted, mixed, png
from tests.unit.mcp.conftest import Local
from tests.unit.mcp.test_mcp_server import ERAS
from tests.waiting import within

LINES = [f"{number:06} é{'-' * 50}\n" for number in range(12_000)]
TEXT = "".join(LINES)

SPEC = ToolSpec(
    name="ListDirectory",
    description="List.",
    category=ToolCategory.FILE,
    parameters=(ToolParameter(name="path", type="string", description="Where."),),
)


def texts(result: types.CallToolResult) -> list[str]:
    return [block.text for block in result.content if isinstance(block, types.TextContent)]


def test_a_tool_is_listed_with_title_schema_and_description() -> None:
    tool = listed(SPEC, as_task=False)

    assert (tool.name, tool.title, tool.description) == ("ListDirectory", "List Directory", "List.")
    assert tool.input_schema["required"] == ["path"]
    assert tool.execution is None


@pytest.mark.parametrize(
    ("can", "hints"),
    [
        ({}, (True, False, False, False)),
        ({"writes_files": True, "idempotent": True}, (False, True, True, False)),
        ({"executes_commands": True, "accesses_network": True}, (False, True, False, True)),
    ],
)
def test_capabilities_become_hints(can: dict[str, bool], hints: tuple[bool, ...]) -> None:
    said = listed(SPEC.model_copy(update={"capabilities": Capabilities(**can)}), as_task=False).annotations

    assert said is not None
    assert (said.read_only_hint, said.destructive_hint, said.idempotent_hint, said.open_world_hint) == hints


def test_calls_may_be_made_tasks_where_that_is_said() -> None:
    execution = listed(SPEC, as_task=True).execution

    assert execution is not None
    assert execution.task_support == "optional"


def test_text_stays_as_it_is() -> None:
    result = answered(ToolResult.ok("one\n\x1b[1mtwo\x1b[0m"))

    assert texts(result) == ["one\n\x1b[1mtwo\x1b[0m"]
    assert result.structured_content is None
    assert not result.is_error


def test_an_object_is_text_and_structured_content() -> None:
    result = answered(ToolResult.ok({"a": [1, "ü"]}))

    assert result.structured_content == {"a": [1, "ü"]}
    assert '"ü"' in texts(result)[0]


@pytest.mark.parametrize("output", [[1, 2], 7, None, {"a": float("nan")}, {1: "a"}, {"a": object()}])
def test_what_is_not_a_json_object_is_only_text(output: Any) -> None:
    result = answered(ToolResult.ok(output))

    assert result.structured_content is None
    assert result.model_dump_json()


@pytest.mark.parametrize("output", ["\ud800 half", {"half \udfff": ["\ud800"]}])
def test_half_a_surrogate_pair_does_not_break_the_wire(output: Any) -> None:
    result = answered(ToolResult.ok(output))

    assert "ud800" in result.model_dump_json()


def test_a_failure_says_why_and_what_was_put_out_before() -> None:
    failed = ToolResult.fail("no such file", error_code="TOOL_ERROR", execution_id="id-1")
    result = answered(failed.model_copy(update={"output": "half"}))

    assert result.is_error
    assert texts(result) == ["Error: no such file", "half"]
    assert result.meta == {"forge-tools/execution-id": "id-1", "forge-tools/error-code": "TOOL_ERROR"}


def test_every_problem_of_the_arguments_is_told() -> None:
    result = answered(ToolResult.fail("a is missing", errors=["a is missing", "b is missing"], hint="did you mean c?"))

    assert texts(result) == ["Error: a is missing\nb is missing\ndid you mean c?"]


def test_an_output_that_was_too_long_is_linked() -> None:
    handle = f"artifact://{'0' * 32}"
    result = answered(ToolResult.ok("head ... tail", artifact=handle))

    link = result.content[-1]
    assert isinstance(link, types.ResourceLink)
    assert link.uri == handle


def test_what_only_looks_like_an_artifact_is_not_linked() -> None:
    assert len(answered(ToolResult.ok("text", artifact="file:///etc/passwd")).content) == 1


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with await open_store(migrated(f"sqlite:///{tmp_path / 'forge.db'}")) as opened:
        yield opened


@pytest.fixture
async def kept(store: Store) -> Artifact:
    return await put(store, TEXT.encode())


Read = Callable[[str], Awaitable[TextResourceContents | BlobResourceContents]]


@pytest.fixture(params=ERAS)
def connect(request: pytest.FixtureRequest, local: Local, store: Store) -> Callable[[], Client]:
    """Make a client, in each era, of a server whose calls are of the session `s`."""
    server = ToolServer(local, Offer(session_id="s"), store.artifacts)
    return lambda: Client(server, mode=request.param)


@pytest.fixture
def read(connect: Callable[[], Client]) -> Read:
    async def once(uri: str) -> TextResourceContents | BlobResourceContents:
        async with connect() as client:
            try:
                (found,) = (await client.read_resource(uri)).contents
            except MCPError as error:
                refusal = error  # raised in here it would come out as a group
            else:
                assert found.uri == uri
                return found
        raise refusal

    return once


async def test_pages_lead_to_each_other_until_all_is_read(read: Read, kept: Artifact) -> None:
    seen, uri = [], f"{kept.handle}?offset=1"
    time_left = within(60, "the pages do not end")
    while uri and next(time_left):
        page = await read(uri)
        assert isinstance(page, TextResourceContents)
        assert len(page.text.encode()) <= content.PAGE_BYTES
        seen.append(page.text)
        uri = (page.meta or {}).get("forge-tools/next", "")
    assert len(seen) == 8
    assert "".join(seen) == TEXT


async def test_a_page_is_what_was_wished_for(read: Read, kept: Artifact) -> None:
    page = await read(f"{kept.handle}?offset=7001&limit=2")
    assert isinstance(page, TextResourceContents)
    assert page.text == "".join(LINES[7000:7002])
    width = len(LINES[0].encode())
    assert page.meta == {
        "forge-tools/start": 7000 * width,
        "forge-tools/end": 7002 * width,
        "forge-tools/size": len(TEXT.encode()),
        "forge-tools/next": f"{kept.handle}?offset=7003&limit=2",
    }
    part = await read(f"{kept.handle}?byte=1&max_bytes=5")
    assert isinstance(part, TextResourceContents)
    assert (part.text, (part.meta or {})["forge-tools/next"]) == ("00000", f"{kept.handle}?byte=6&max_bytes=5")


async def test_bytes_that_are_not_text_are_paged_too(read: Read, store: Store) -> None:
    kept = await put(store, BYTES)
    page = await read(f"{kept.handle}?byte=300000&max_bytes=1000")
    assert isinstance(page, BlobResourceContents)
    assert base64.b64decode(page.blob) == BYTES[300_000:301_000]


async def test_the_templates_say_how(connect: Callable[[], Client]) -> None:
    async with connect() as client:
        templates = (await client.list_resource_templates()).resource_templates
    offered = {one.name: one.uri_template for one in templates}
    assert offered == {
        "artifact": "artifact://{id}",
        "artifact-page": "artifact://{id}{?offset,byte,limit,max_bytes}",
    }


async def test_the_id_of_a_template_is_completed_with_what_the_session_kept(
    connect: Callable[[], Client], store: Store
) -> None:
    mine = [(await put(store, data)).id for data in (b"one", b"two", b"three")]
    await put(store, b"another's", session="t")
    async with connect() as client:
        template = (await client.list_resource_templates()).resource_templates[0]
        ref = types.ResourceTemplateReference(uri=template.uri_template)
        for beginning, meant in (("", mine[::-1]), (mine[0][:6], [mine[0]]), ("%", []), ("_", [])):
            found = (await client.complete(ref, {"name": "id", "value": beginning})).completion
            assert (found.values, found.has_more) == (meant, False)
        assert (await client.complete(ref, {"name": "offset", "value": "1"})).completion.values == []
        for strange in (types.PromptReference(name="review"), types.ResourceTemplateReference(uri="file:///{path}")):
            with pytest.raises(MCPError, match="There is nothing to complete for"):
                await client.complete(strange, {"name": "id", "value": ""})


async def test_more_than_a_hundred_are_said_to_be_more(connect: Callable[[], Client], store: Store) -> None:
    for number in range(content.MOST_COMPLETED + 1):
        await put(store, str(number).encode())
    async with connect() as client:
        ref = types.ResourceTemplateReference(uri="artifact://{id}")
        found = (await client.complete(ref, {"name": "id", "value": ""})).completion
    assert (len(found.values), found.has_more) == (100, True)


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("page=1", "does not name a page. Give whole numbers for any of offset, byte, limit, max_bytes"),
        ("offset=many", "does not name a page"),
        ("offset", "does not name a page"),
        ("offset=1&offset", "does not name a page"),
        ("offset=0", "offset 0 must be at least 1"),
        ("offset=1&byte=1", "not both"),
        ("offset=12002", "past the end"),
        ("max_bytes=10000001", "is more than 10,000,000"),
        (f"offset={'9' * 5000}", "does not name a page"),
    ],
)
async def test_what_says_no_page_is_refused(read: Read, kept: Artifact, query: str, problem: str) -> None:
    with pytest.raises(MCPError, match=problem):
        await read(f"{kept.handle}?{query}")


async def test_a_page_of_another_session_is_not_there(read: Read, store: Store) -> None:
    theirs = await put(store, BYTES, session="theirs")
    for uri in (f"{theirs.handle}?offset=1", f"artifact://{'0' * 32}?offset=1", "artifact://x?offset=1"):
        with pytest.raises(MCPError, match="Resource not found"):
            await read(uri)


async def test_what_is_too_large_for_one_message_is_read_in_pages(
    read: Read, kept: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(content, "LARGEST", 100_000)
    with pytest.raises(
        MCPError, match=r"the limit for one resource is 100,000. Read it in pages, artifact://\w+\?offset=1"
    ):
        await read(kept.handle)
    first = await read(f"{kept.handle}?offset=1")
    assert isinstance(first, TextResourceContents)
    assert TEXT.startswith(first.text)


@pytest.mark.parametrize("era", ERAS)
async def test_parts_of_a_result_are_content_of_the_protocol(
    local: Local, store: Store, era: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    local.registry.register(mixed)
    Path("notes.txt").write_text("notes")

    async with Client(ToolServer(local, Offer(session_id="s"), store.artifacts), mode=era) as client:
        result = await client.call_tool("mixed", {})

    said, image, data, more, notes, binary = result.content
    assert [block.type for block in (said, image, data, more)] == ["text", "image", "text", "text"]
    assert isinstance(image, types.ImageContent)
    assert (base64.b64decode(image.data), image.mime_type) == (png(), "image/png")
    assert isinstance(notes, types.EmbeddedResource)
    assert isinstance(notes.resource, TextResourceContents)
    assert isinstance(binary, types.EmbeddedResource)
    assert isinstance(binary.resource, BlobResourceContents)
    assert (notes.resource.text, base64.b64decode(binary.resource.blob)) == ("notes", b"\0\1")


def test_a_part_that_does_not_fit_is_a_link_to_read_it_by() -> None:
    facts = {"type": "file", "name": "a.bin", "uri": f"artifact://{'0' * 32}", "mime_type": "a/b", "size": 9}

    [block] = answered(ToolResult.ok("[file a.bin, 9 bytes, a/b]", content=[facts])).content

    assert isinstance(block, types.ResourceLink)
    assert (block.uri, block.name, block.mime_type, block.size) == (facts["uri"], "a.bin", "a/b", 9)


async def test_the_schema_of_a_return_type_is_published_and_kept_to(local: Local, store: Store) -> None:
    local.registry.register(counted)

    async with Client(ToolServer(local, Offer(session_id="s"), store.artifacts)) as client:
        [tool] = [one for one in (await client.list_tools()).tools if one.name == "counted"]
        result = await client.call_tool("counted", {"count": 1})  # which the client checks by the schema

    assert tool.output_schema is not None
    assert set(tool.output_schema["properties"]) == {"count", "names"}
    assert result.structured_content == {"count": 1, "names": ["a"]}


async def test_an_empty_object_keeps_the_promise_of_a_schema() -> None:
    result = await shown_whole(ToolResult.ok({}), is_structured=True)

    assert (result.structured_content, result.is_error) == ({}, False)
