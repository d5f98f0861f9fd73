"""Tools of real servers on pipes: well-behaved ones, and every kind that is not."""

import asyncio
import os
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from forge_tools.mcp.hosted import connection
from forge_tools.mcp.hosted import servers as module
from forge_tools.mcp.hosted.configuration import Server
from forge_tools.mcp.hosted.servers import Memory
from forge_tools.tool.base import ExecutionContext
from forge_tools.tool.executor import ToolExecutor
from tests.hosting import CONTEXT, RAW, Host, call, good, raw
from tests.waiting import is_alive, reached


def names(executor: ToolExecutor) -> list[str]:
    return [spec.name for spec in executor.specs()]


async def test_tools_of_the_official_sdk_are_called_with_their_schemas(host: Host) -> None:
    executor = await host.start(good())

    result = await call(executor, "mcp__good__add", a=1, b=2)
    nested = await call(executor, "mcp__good__visit", place={"city": "Bonn"}, others=[{"city": "Ulm"}])
    wrong = await call(executor, "mcp__good__visit", place={"town": "Bonn"})

    assert (result.output, result.metadata["structured"]) == ("3", {"result": 3})
    assert nested.output == "Bonn, Ulm"
    assert wrong.error == "Missing required parameter: place.city"
    spec = {spec.name: spec for spec in executor.specs()}["mcp__good__add"]
    assert (spec.category, spec.lane, spec.capabilities.idempotent, spec.capabilities.writes_files) == (
        "mcp",
        "async",
        True,
        False,
    )


async def test_pictures_and_failures_are_told(host: Host) -> None:
    executor = await host.start(good())

    picture = await call(executor, "mcp__good__picture")
    failure = await call(executor, "mcp__good__fail")

    [image] = picture.images
    assert (picture.output, image.width, image.height) == (f"[image image.png, {image.size} bytes, image/png]", 1, 1)
    assert (failure.success, failure.error_code) == (False, "MCP_TOOL_ERROR")


async def test_a_server_sees_the_environment_of_tools_and_its_own(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORGE_DATABASE_URL", "postgresql://user:secret@host/db")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    executor = await host.start(good(env={"TOKEN": "mine", "PATH": os.environ["PATH"]}))

    seen = (await call(executor, "mcp__good__environment")).metadata["structured"]

    assert "FORGE_DATABASE_URL" not in seen
    assert "AWS_SECRET_ACCESS_KEY" not in seen
    assert (seen["TOKEN"], seen["LC_ALL"]) == ("mine", "C.UTF-8")


async def test_all_pages_are_listed(host: Host) -> None:
    executor = await host.start(raw("plain"))

    assert names(executor) == [f"mcp__raw__{name}" for name in ("echo", "crash", "half", "hang", "change", "odd")]


async def test_only_tools_that_are_allowed_are_offered(host: Host) -> None:
    executor = await host.start(raw("plain", allow_tools=["e*", "crash", "h*"], deny_tools=["hal?"]))

    assert names(executor) == ["mcp__raw__echo", "mcp__raw__crash", "mcp__raw__hang"]


async def test_hints_of_a_server_that_is_not_trusted_count_for_nothing(host: Host) -> None:
    executor = await host.start(good(trust_annotations=False))

    assert not any(spec.capabilities.idempotent for spec in executor.specs())


async def test_a_server_that_is_not_there_is_offered_as_it_was_last_seen(host: Host, tmp_path: Path) -> None:
    program, memory = tmp_path / "server", Memory(tmp_path / "memory")
    server = Server(name="s", command=str(program), cwd=tmp_path)
    program.write_text(f"#!/bin/sh\nexec {sys.executable} -P {RAW} plain\n")
    program.chmod(0o755)
    before = await host.start(server, memory=memory)
    program.rename(tmp_path / "away")

    after = await host.start(server, memory=memory)
    missing = await call(after, "mcp__s__echo", text="here")
    (tmp_path / "away").rename(program)
    found = await reached(
        lambda: call(after, "mcp__s__echo", text="here"), when=lambda found: found.error_code != "MCP_DISCONNECTED"
    )

    assert found.output == "here"
    assert names(after) == names(before)
    assert (missing.error_code, missing.metadata["retryable"]) == ("MCP_DISCONNECTED", True)


async def test_a_list_without_an_end_is_cut(host: Host, caplog: pytest.LogCaptureFixture) -> None:
    executor = await host.start(raw("endless"))

    assert len(executor.specs()) == 100
    assert "does not end" in caplog.text


async def test_a_tool_that_no_provider_would_take_is_left_out_alone(host: Host) -> None:
    executor = await host.start(raw("unspeakable"))

    assert "mcp__raw__bad" not in names(executor)
    assert any(name.startswith("mcp__raw__list_things_v2_") for name in names(executor))
    left_out = host.states()["raw"].left_out
    assert "two words" in left_out["mcp__raw__bad"]
    assert "refers to https://example.com/p, and references are not fetched" in left_out["mcp__raw__remote"]


async def test_a_whole_schema_decides_what_reaches_the_server(host: Host) -> None:
    executor = await host.start(raw("unspeakable"))

    taken = await call(executor, "mcp__raw__either", a=None, other={"deep": [1]})
    refused = await call(executor, "mcp__raw__either", a=None, b=2)

    assert taken.output == '{"a": null, "other": {"deep": [1]}}'
    assert refused.error_code == "VALIDATION_ERROR"
    assert "more than one of the schemas" in str(refused.error)


async def test_garbage_on_standard_output_is_reported_and_survived(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    executor = await host.start(raw("noisy"))

    results = [await call(executor, "mcp__raw__echo", text=f"hello {n}") for n in range(10)]

    assert [result.output for result in results] == [f"hello {n}" for n in range(10)]
    lines = [
        record.line for record in caplog.records if record.msg == "An MCP server wrote a line that is not a message"
    ]
    assert lines[:4] == ["DEBUG: about to answer", "{not json}", "red", '{"jsonrpc": "2.0"}']
    assert lines[4] == "y" * 200 + "... (5,000 bytes)"
    assert len(lines) == 20


async def test_a_server_that_dies_in_a_call_fails_that_call_and_is_started_again(host: Host) -> None:
    executor = await host.start(raw("plain"))

    lost = await call(executor, "mcp__raw__crash")
    after = await call(executor, "mcp__raw__echo", text="back")

    assert lost.error_code == "MCP_DISCONNECTED"
    assert lost.error == (
        "The MCP server 'raw' was lost during the call: it ended with code 7; it last wrote: "
        "Segmentation fault (not really). Whether the call took effect is unknown."
    )
    assert "retryable" not in lost.metadata
    assert after.output == "back"


async def test_a_server_that_reads_no_more_costs_its_calls_their_time_and_no_more(host: Host) -> None:
    executor = await host.start(raw("deaf"), raw("plain", name="other"))
    impatient = ExecutionContext(working_dir=".", timeout=0.5)

    results = await asyncio.gather(
        *(executor.execute("mcp__raw__echo", impatient, text="x" * 200_000) for _ in range(3)),
        call(executor, "mcp__other__echo", text="here"),
    )

    assert [result.error_code for result in results] == ["TIMEOUT", "TIMEOUT", "TIMEOUT", None]


async def test_half_a_message_fails_the_call(host: Host) -> None:
    executor = await host.start(raw("plain"))

    lost = await call(executor, "mcp__raw__half")

    assert lost.error_code == "MCP_DISCONNECTED"
    assert "it ended with code 0" in str(lost.error)


async def test_neighbours_of_a_lost_call_are_lost_and_others_wait_for_the_next_server(
    host: Host, tmp_path: Path
) -> None:
    executor = await host.start(raw("plain"))
    mark = tmp_path / "mark"
    hanging = asyncio.create_task(call(executor, "mcp__raw__hang", mark=str(mark)))
    await reached(mark.exists, 60, "the call has not begun")

    results = await asyncio.gather(
        call(executor, "mcp__raw__crash"), *(call(executor, "mcp__raw__echo", text="t") for _ in range(5)), hanging
    )

    assert {result.error_code for result in (results[0], results[-1])} == {"MCP_DISCONNECTED"}
    assert (await call(executor, "mcp__raw__echo", text="back")).output == "back"


async def test_a_server_that_keeps_dying_is_not_started_all_the_time(host: Host) -> None:
    executor = await host.start(raw("plain"))

    result = await reached(
        lambda: call(executor, "mcp__raw__crash"), when=lambda it: "The next attempt is in" in str(it.error)
    )

    assert (result.error_code, result.metadata["retryable"]) == ("MCP_DISCONNECTED", True)


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("broken", "it ended with code 3; it last wrote: no licence for this machine"),
        ("chatty", "it ended with code 0; it last wrote: Usage: server --port PORT"),
        ("silent", "it did not answer within 1s"),
    ],
)
async def test_a_server_that_is_not_there_harms_no_other(host: Host, mode: str, said: str) -> None:
    patience = 1.0 if mode == "silent" else 60.0
    executor = await host.start(raw(mode, name="bad", start_timeout=patience), raw("plain"))

    assert (await call(executor, "mcp__raw__echo", text="here")).output == "here"
    assert not [name for name in names(executor) if "bad" in name]
    state = host.states()["bad"]
    assert (state.status, state.tools, state.why) == ("failing", 0, said)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"command": "no-such-program"}, "no-such-program could not be started: No such file or directory"),
        ({"command": "cat", "cwd": Path("/no/such/folder")}, "/no/such/folder: No such file or directory"),
    ],
)
async def test_a_program_that_cannot_be_started_is_named(host: Host, settings: dict[str, Any], said: str) -> None:
    await host.start(Server(name="bad", **settings))

    assert said in host.states()["bad"].why


async def test_a_timeout_tells_the_server_and_leaves_it_usable(host: Host, tmp_path: Path) -> None:
    executor = await host.start(raw("plain"))
    mark = tmp_path / "mark"

    result = await executor.execute("mcp__raw__hang", ExecutionContext(working_dir=".", timeout=3), mark=str(mark))

    assert (result.error_code, result.error) == ("TIMEOUT", "Tool timed out after 3s")
    await reached(lambda: mark.read_text() == "cancelled", 60, "the server was not told")
    assert (await call(executor, "mcp__raw__echo", text="here")).output == "here"


async def test_a_cancel_stops_the_call_in_the_server(host: Host, tmp_path: Path) -> None:
    executor = await host.start(good())
    mark = tmp_path / "mark"
    waiting = asyncio.create_task(call(executor, "mcp__good__wait", mark=str(mark)))
    await reached(mark.exists, 60, "the call has not begun")

    waiting.cancel()

    await reached(lambda: mark.read_text() == "stopped", 60, "the server goes on")


@pytest.mark.parametrize("server", [raw("plain"), good()])
async def test_tools_that_come_are_offered_and_those_that_go_are_gone(host: Host, server: Server) -> None:
    executor = await host.start(server)
    grow, gone, new = ("change", "hang", "fresh") if server.name == "raw" else ("grow", "visit", "novelty")
    before = host.states()[server.name].tools

    await call(executor, f"mcp__{server.name}__{grow}")
    await reached(lambda: f"mcp__{server.name}__{new}" in host.offered(), 60, "nobody noticed")
    result = await call(executor, f"mcp__{server.name}__{gone}", place={"city": "Bonn"})

    assert (result.error_code, result.metadata["retryable"]) == ("MCP_TOOL_GONE", False)
    assert f"no longer has a tool '{gone}'. It has: " in str(result.error)
    assert host.states()[server.name].tools == {"raw": 3, "good": before}[server.name]


async def test_a_server_that_changes_without_end_is_asked_now_and_then_and_fills_nothing(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "LIST_SECONDS", 0.01)
    monkeypatch.setattr(module, "MAX_TOOLS", 3)
    await host.start(raw("restless"))
    await reached(lambda: "mcp__raw__tool4" in str(host.states()["raw"].left_out), 60, "it is not asked again")

    assert len(host.offered()) == 3
    assert "3 tools since this worker started" in str(host.states()["raw"].left_out)


async def test_a_list_that_is_invalid_is_named_and_the_next_one_is_read(host: Host) -> None:
    await host.start(raw("careless", name="careless"))
    assert host.states()["careless"].why == "its answer is invalid: tools.0.inputSchema: Field required"
    executor = await host.start(raw("slip"))

    for _ in range(2):
        await call(executor, "mcp__raw__change")

    await reached(lambda: "mcp__raw__fresh" in host.offered(), 60, "nobody looked again")


async def test_a_server_that_misses_its_start_is_tried_until_it_serves(host: Host, tmp_path: Path) -> None:
    mark = tmp_path / "licence"
    await host.start(raw("until", str(mark), name="late"), patience=60)
    failed = host.states()["late"]
    mark.touch()

    await reached(lambda: "mcp__late__echo" in host.offered(), 60, "it was given up")

    assert (failed.status, failed.why) == (
        "failing",
        "it ended with code 3; it last wrote: no licence for this machine",
    )
    assert (host.states()["late"].status, host.states()["late"].why) == ("serving", "")


async def test_what_a_failing_server_says_is_told_without_its_secrets(host: Host) -> None:
    program = 'import os, sys; sys.exit(f\'401: {os.environ["API_KEY"]} is refused, mode {os.environ["MODE"]}\')'
    secret, mode = "sk-0123456789abcdef", "production"
    arguments = ("-c", program)

    await host.start(
        Server(name="s", command=sys.executable, args=arguments, env={"API_KEY": secret, "MODE": mode}),
    )

    assert host.states()["s"].why.endswith("401: [redacted] is refused, mode production")


async def test_a_server_that_dies_unasked_is_started_again(host: Host, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    await host.start(raw("stubborn", str(pids)))
    first = int(pids.read_text().split()[0])

    os.kill(first, 9)
    await reached(lambda: int((pids.read_text().split() or [first])[0]) != first, 60, "nobody missed it")

    await reached(lambda: host.states()["raw"].status == "serving", 60, "it does not serve")


async def test_servers_are_started_a_few_at_a_time(host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STARTS_AT_ONCE", 1)
    names = [f"s{number}" for number in range(4)]

    await host.start(*(raw("slow", str(tmp_path), name=name) for name in names))

    assert {name: state.status for name, state in host.states().items()} == dict.fromkeys(names, "serving")
    spans = sorted(tuple(map(float, path.read_text().split())) for path in tmp_path.iterdir())
    assert all(ended <= began for (_, ended), (began, _) in pairwise(spans))


async def test_a_tool_that_must_be_a_task_is_left_out(host: Host) -> None:
    await host.start(raw("tasks"))

    state = host.states()["raw"]
    assert "mcp__raw__long" not in host.offered()
    assert "mcp__raw__maybe" in host.offered()
    assert "only be called as a task" in state.left_out["mcp__raw__long"]


async def test_an_answer_that_is_too_long_fails_its_call_alone(host: Host) -> None:
    executor = await host.start(raw("plain"), max_message_bytes=100_000)

    result = await call(executor, "mcp__raw__echo", text="x" * 200_000)

    assert "The answer has 200," in str(result.error)
    assert "the limit is 100,000. Ask for less of it." in str(result.error)
    assert (await call(executor, "mcp__raw__echo", text="here")).output == "here"


async def test_an_answer_that_is_not_a_result_fails_its_call_alone(host: Host) -> None:
    executor = await host.start(raw("plain"))

    result = await call(executor, "mcp__raw__odd")

    assert result.error_code == "MCP_TOOL_ERROR"
    assert "'raw' is not a result: content.0.TextContent.text: Field required" in str(result.error)
    assert (await call(executor, "mcp__raw__echo", text="here")).output == "here"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ('"result": null', "it has no result and no error, or an invalid one"),
        ('"error": {"code": "x"}', "it has no result and no error, or an invalid one"),
        ('"result": {"content": [{"type": "text", "text": "\\ud800"}]}', "Invalid JSON: "),
        (f'"result": {{"content": [], "structuredContent": {{"n": {"[" * 5_000}{"]" * 5_000}}}}}', "Invalid JSON: "),
    ],
    ids=["null", "error", "surrogate", "deep"],
)
async def test_an_answer_that_cannot_be_read_fails_its_call_at_once(host: Host, answer: str, why: str) -> None:
    executor = await host.start(raw("garbled", timeout=600))

    result = await call(executor, "mcp__raw__odd", text=answer)

    assert result.error_code == "MCP_TOOL_ERROR"
    assert f"The answer is no message of the protocol: {why}" in str(result.error)


async def test_a_reason_that_is_longer_than_an_output_may_be_is_cut_like_one(host: Host) -> None:
    executor = await host.start(raw("garbled"))
    said = "e" * 200_000
    content = f'[{{"type": "text", "text": "{said}"}}]'

    for answer in (
        f'"error": {{"code": -1, "message": "{said}"}}',
        f'"result": {{"isError": true, "content": {content}}}',
    ):
        result = await call(executor, "mcp__raw__odd", text=answer)

        assert (result.error_code, result.metadata["truncated"]) == ("MCP_TOOL_ERROR", True)
        assert len(str(result.error)) <= CONTEXT.max_output_size


async def test_a_server_that_does_not_leave_is_ended_with_its_children(host: Host, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    await host.start(raw("stubborn", str(pids)))
    server, child = map(int, pids.read_text().split())

    await host.stop()

    assert not is_alive(server)
    assert not is_alive(child)


async def test_dry_runs_ask_nobody(host: Host) -> None:
    executor = await host.start(raw("plain"))

    result = await executor.execute("mcp__raw__crash", ExecutionContext(working_dir=".", dry_run=True))

    assert result.output == "[Dry Run] Would execute mcp__raw__crash with {}"


async def test_after_the_end_calls_are_refused(host: Host) -> None:
    executor = await host.start(raw("plain"))
    await host.stop()

    result = await call(executor, "mcp__raw__echo", text="late")

    assert (result.error_code, result.metadata["retryable"]) == ("MCP_DISCONNECTED", True)
