"""`forge-tools tools versions, diff, pin and unpin`, and the definition that `show` names."""

import json
from typing import Any

import pytest

from forge_tools.cli.services import with_store
from forge_tools.cli.tools import Difference, differences
from forge_tools.model import Capabilities, ToolCategory, ToolParameter, ToolSpec, new_id
from tests.contract.calls import claimed, ended, finish_one, instance, submitted
from tests.unit.cli.conftest import Command

PATTERN = ToolParameter(name="pattern", type="string", description="What.")
FIRST = ToolSpec(
    name="Grep", description="Search.", category=ToolCategory.FILE, aliases=("grep",), parameters=(PATTERN,)
)
LIMIT = ToolParameter(name="limit", type="integer", description="Most.", required=False)
SECOND = FIRST.model_copy(update={"version": "1.1.0", "parameters": (PATTERN, LIMIT)})


@pytest.fixture
def run(command: Command) -> Command:
    """Run a command on a catalogue with a tool in two versions."""
    for spec in (FIRST, SECOND):
        with_store(lambda store, spec=spec: store.catalogue.publish([spec], new_id()))
    return command


def test_versions_are_listed_the_default_first(run: Command) -> None:
    code, shown, _ = run("tools", "versions", "grep")
    listed = json.loads(run("tools", "versions", "Grep", "-o", "json")[1])

    assert code == 0
    assert SECOND.digest in shown.splitlines()[2]
    assert shown.splitlines()[2].rstrip().endswith("default")
    assert [(one["version"], one["default"], one["pinned"]) for one in listed] == [
        ("1.1.0", True, False), ("1.0.0", False, False)
    ]  # fmt: skip


@pytest.mark.parametrize("definition", ["1.0.0", FIRST.digest, FIRST.digest[:4]])
def test_a_schema_is_printed_as_it_was_in_any_version(run: Command, definition: str) -> None:
    code, shown, _ = run("tools", "Grep", "--version", definition, "--format", "anthropic")

    [schema] = json.loads(shown)
    assert code == 0
    assert list(schema["input_schema"]["properties"]) == ["pattern"]


def test_schemas_of_a_category_come_from_the_default_alone(run: Command) -> None:
    [schema] = json.loads(run("tools", "--category", "file", "--format", "openai")[1])
    assert list(schema["function"]["parameters"]["properties"]) == ["pattern", "limit"]

    run("tools", "pin", "Grep", "1.0.0")

    [schema] = json.loads(run("tools", "--category", "file", "--format", "openai")[1])
    assert list(schema["function"]["parameters"]["properties"]) == ["pattern"]


def test_a_diff_goes_from_the_one_before_to_the_default_unless_it_is_told_otherwise(run: Command) -> None:
    _, forward, _ = run("tools", "diff", "Grep")
    _, backward, _ = run("tools", "diff", "Grep", "1.1.0", "1.0.0")
    _, none, _ = run("tools", "diff", "Grep", "1.1.0")

    assert forward.startswith(f"Grep  1.0.0 ({FIRST.digest}) -> 1.1.0 ({SECOND.digest})")
    assert "+   parameters.limit: {" in forward
    assert "- ! parameters.limit: {" in backward
    assert backward.endswith("\n! refuses calls that were accepted before\n")
    assert "refuses calls" not in forward
    assert "They are identical." in none


def test_a_diff_is_told_to_programs_too(run: Command) -> None:
    told = json.loads(run("tools", "diff", "Grep", "-o", "json")[1])

    assert (told["tool"], told["from"]["version"], told["to"]["digest"]) == ("Grep", "1.0.0", SECOND.digest)
    assert [(one["kind"], one["where"], one["breaks"]) for one in told["differences"]] == [
        ("changed", "version", False), ("added", "parameters.limit", False)
    ]  # fmt: skip


def test_a_single_definition_has_nothing_to_be_compared_with(command: Command) -> None:
    with_store(lambda store: store.catalogue.publish([FIRST], new_id()))

    said = f"Grep has only one definition, 1.0.0 ({FIRST.digest}): there is nothing to compare.\n"
    assert command("tools", "diff", "grep") == (0, said, "")
    assert json.loads(command("tools", "diff", "Grep", "-o", "json")[1])["differences"] == []


@pytest.mark.parametrize("change", [{"aliases": ()}, {"aliases": ("search",)}])
def test_a_name_that_a_tool_no_longer_has_is_marked_as_what_refuses_calls(change: dict[str, Any]) -> None:
    [gone] = differences(FIRST, FIRST.model_copy(update=change))
    [come] = differences(FIRST, FIRST.model_copy(update={"aliases": ("grep", "search")}))

    assert (gone.where, gone.breaks, come.breaks) == ("aliases", True, False)


def test_a_tool_that_passes_on_no_more_arguments_is_marked_as_what_refuses_calls() -> None:
    more = FIRST.model_copy(update={"extra": True})

    assert [[one.breaks for one in differences(*pair)] for pair in ((more, FIRST), (FIRST, more))] == [[True], [False]]


def test_a_version_of_a_disabled_tool_is_shown_as_disabled(run: Command) -> None:
    run("tools", "disable", "Grep")

    [shown] = json.loads(run("tools", "Grep", "--version", "1.0.0", "-o", "json")[1])
    [schema] = json.loads(run("tools", "Grep", "--version", "1.0.0", "--format", "anthropic")[1])

    assert (shown["version"], shown["enabled"], schema["name"]) == ("1.0.0", False, "Grep")
    assert "Grep (disabled)" in run("tools", "Grep", "--version", "1.0.0")[1]


def test_a_tool_is_pinned_and_let_go(run: Command) -> None:
    code, said, warned = run("tools", "pin", "grep", FIRST.digest[:5])

    assert (code, said) == (0, f"Grep is pinned to 1.0.0 ({FIRST.digest}).\n")
    assert "No live worker hosts it" in warned
    assert "default, pinned" in run("tools", "versions", "Grep")[1]
    assert run("tools", "unpin", "Grep")[1] == (
        f"Grep is not pinned. The default is the definition published last, 1.1.0 ({SECOND.digest}).\n"
    )


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("pin", "Grep", "9"), 1, "'9' is neither a version of it nor a digest. There are: 1.1.0"),
        (("pin", "Gerp", "1.0.0"), 1, "did you mean 'Grep'?"),
        (("versions", "Nope"), 1, "No worker ever published it"),
        (("diff", "Grep", "1.0.0", "2.0.0"), 1, "'2.0.0' is neither"),
        (("list", "--version", "1.0.0"), 2, "needs the NAME"),
        (("Grep", "--version", "1.0.0", "--format", "xml"), 2, "'xml' is not a format; there are openai"),
    ],
)
def test_what_is_not_there_is_said_with_what_is(run: Command, words: tuple[str, ...], code: int, said: str) -> None:
    assert run("tools", *words)[0] == code
    shown = " ".join(run("tools", *words)[2].split())
    assert said in shown


@pytest.mark.parametrize("is_new_there", [False, True])
def test_show_names_the_definition_and_prints_its_schema(run: Command, is_new_there: bool) -> None:
    async def called(store: Any) -> str:
        await store.workers.register(instance("instance-1"))
        await store.catalogue.publish([FIRST], "instance-1")
        id_ = await submitted(store)
        if is_new_there:
            await store.catalogue.publish([SECOND], "instance-1")
        await finish_one(store, ended(await claimed(store, id_)))
        return id_

    execution = with_store(called)

    shown = " ".join(run("show", execution)[1].split())
    other = f", run as 1.1.0 ({SECOND.digest}) by its worker" if is_new_there else " "
    assert f"definition 1.0.0 ({FIRST.digest}){other}" in shown
    assert json.loads(run("show", execution, "-o", "json")[1])["ran_as"]["version"] == (
        "1.1.0" if is_new_there else "1.0.0"
    )
    schema = json.loads(run("show", execution, "--schema", "anthropic")[1])
    assert list(schema["input_schema"]["properties"]) == ["pattern"]


def test_show_says_when_the_catalogue_does_not_have_it(run: Command) -> None:
    execution = with_store(submitted)

    assert "not in the catalogue" in run("show", execution)[1]
    code, _, said = run("show", execution, "--schema", "openai")
    assert (code, "does not have the definition" in said) == (1, True)


def changed(**fields: Any) -> Difference:
    """What differs when these fields of a parameter change."""
    before = ToolParameter(
        name="n", type="integer", description="d", required=False, aliases=("m",), enum=[1, 2], minimum=1
    )
    specs = (FIRST.model_copy(update={"parameters": (one,)}) for one in (before, before.model_copy(update=fields)))
    [found] = differences(*specs)
    return found


@pytest.mark.parametrize(
    ("fields", "breaks"),
    [
        ({"description": "e"}, False),
        ({"default": 2}, False),
        ({"type": "string"}, True),
        ({"required": True}, True),
        ({"enum": [1, 2, 3]}, False),
        ({"enum": [1]}, True),
        ({"enum": None}, False),
        ({"minimum": 0}, False),
        ({"minimum": 2}, True),
        ({"minimum": None}, False),
        ({"maximum": 5}, True),
        ({"aliases": ("m", "k")}, False),
        ({"aliases": ()}, True),
    ],
)
def test_what_refuses_calls_that_were_fine_is_marked(fields: dict[str, Any], breaks: bool) -> None:
    found = changed(**fields)

    assert found.where == f"parameters.n.{next(iter(fields))}"
    assert found.breaks == breaks


def test_a_parameter_that_is_new_breaks_calls_only_if_it_is_required() -> None:
    required = LIMIT.model_copy(update={"required": True})
    [added] = differences(FIRST, FIRST.model_copy(update={"parameters": (PATTERN, required)}))
    [gone] = differences(SECOND, SECOND.model_copy(update={"parameters": (LIMIT,)}))

    assert (added.kind, added.breaks, gone.kind, gone.breaks) == ("added", True, "removed", True)


def test_what_a_tool_may_do_is_compared_too() -> None:
    freer = FIRST.model_copy(update={"capabilities": Capabilities(accesses_network=True), "timeout": 5.0})

    assert [one.where for one in differences(FIRST, freer)] == ["capabilities", "timeout"]
