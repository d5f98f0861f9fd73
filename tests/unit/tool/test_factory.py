"""Tools get what they ask for: configuration by name, dependencies by type."""

import asyncio
import os
from collections.abc import Callable
from typing import Any

import pytest

from forge_tools.errors import ConfigurationError, InvalidToolError
from forge_tools.model import ToolParameter
from forge_tools.tool import ToolFactory, load_tools, tool
from forge_tools.tool.base import BaseTool, ExecutionContext, ToolCategory, ToolResult

CONTEXT = ExecutionContext(working_dir=".")


class Settings:
    def __init__(self, url: str) -> None:
        self.url = url


class Index:
    made = 0

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        Index.made += 1

    def find(self, query: str) -> str:
        return f"{self.settings.url}?{query}"


class Search(BaseTool):
    """Search the index."""

    name = "Search"
    category = ToolCategory.OTHER
    parameters = (ToolParameter(name="query", type="string", description="What."),)

    def __init__(self, index: Index, limit: int = 10, *, backup: "Settings | None" = None) -> None:
        self.index, self.limit, self.backup = index, limit, backup

    async def _execute(self, context: ExecutionContext, query: str) -> ToolResult:
        return ToolResult.ok([self.index.find(query), self.limit])


class Plain(BaseTool):
    """Need nothing."""

    name = "Plain"
    category = ToolCategory.OTHER
    parameters: tuple[ToolParameter, ...] = ()

    async def _execute(self, context: ExecutionContext) -> ToolResult:
        return ToolResult.ok("plain")


def lookup(query: str, index: Index, context: ExecutionContext) -> list[str]:
    """Look something up."""
    return [index.find(query), context.working_dir]


def whole() -> ToolFactory:
    factory = ToolFactory().provide(Settings, lambda: Settings("db://")).provide(Index, Index)
    return factory.add(Search, limit=3).add(lookup, name="Lookup", timeout=5).add(Plain)


factory = whole()


def call(one: BaseTool, **values: Any) -> Any:
    result = asyncio.run(one.execute(CONTEXT, **values))
    assert result.success, result
    return result.output


def test_a_class_gets_its_configuration_and_what_it_depends_on() -> None:
    search = whole().create(Search, limit=3)

    assert call(search, query="a") == ["db://?a", 3]
    assert isinstance(search, Search)
    assert search.backup is not None, "optional ones are given where they are provided"


def test_a_function_gets_its_dependencies_hidden_from_callers() -> None:
    found = whole().create(lookup, name="Lookup", timeout=5)

    assert [parameter.name for parameter in found.parameters] == ["query"]
    assert (found.spec.name, found.spec.timeout) == ("Lookup", 5)
    assert call(found, query="a") == ["db://?a", "."]


def test_a_list_of_what_is_provided_is_not_filled_with_one_of_it() -> None:
    def search_all(indexes: list[Index]) -> None:
        """Search in all of them."""

    with pytest.raises(InvalidToolError, match="parameter 'indexes'"):
        whole().create(search_all)


def test_a_reference_to_a_factory_loads_what_it_makes() -> None:
    tools = load_tools([f"{__name__}:factory"], builtins=False, entry_points=False)

    assert [one.spec.name for one in tools] == ["Search", "Lookup", "Plain"]


def test_what_is_provided_is_made_once_and_only_when_needed() -> None:
    mine, before = whole(), Index.made
    plain, found = mine.create(Plain), mine.create(lookup)
    assert (call(plain), Index.made) == ("plain", before)

    call(found, query="a")
    call(mine.create(Search), query="b")

    assert Index.made == before + 1


def test_a_forked_process_makes_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = whole()
    found, before = mine.create(lookup), Index.made
    call(found, query="a")

    monkeypatch.setattr(os, "getpid", lambda: 1)
    call(found, query="b")

    assert Index.made == before + 2


def test_providers_may_be_added_after_the_tools() -> None:
    late = ToolFactory().add(Search)
    late.provide(Index, Index).provide(Settings, lambda: Settings("late://"))

    assert call(late()[0], query="a")[0] == "late://?a"


class Loop:
    def __init__(self, other: "Other") -> None: ...


class Other:
    def __init__(self, loop: Loop) -> None: ...


class NeedsLoop(Plain):
    def __init__(self, loop: Loop) -> None: ...


def broken() -> Settings:
    raise RuntimeError("no licence")


class NoTool:
    pass


@tool
def made() -> str:
    """Be a tool already."""
    return ""


@pytest.mark.parametrize(
    ("create", "message"),
    [
        (
            lambda: ToolFactory().create(Search),
            "Search needs index: tests.unit.plugins.test_factory.Index, which is neither configured nor provided "
            "(provided: nothing). Pass index= where the tool is added, or call provide() with its type.",
        ),
        (lambda: ToolFactory().provide(Index, Index).create(Search), "the provider of Index needs settings: "),
        (lambda: whole().create(Search, limt=3), "Search takes no 'limt' (did you mean 'limit'?)"),
        (
            lambda: ToolFactory().provide(Loop, Loop).provide(Other, Other).create(NeedsLoop),
            "Loop needs Other needs Loop: a provider cannot depend on itself.",
        ),
        (
            lambda: ToolFactory().provide(Settings, broken).provide(Index, Index).create(Search),
            "the provider of Settings could not be created: RuntimeError: no licence",
        ),
        (
            lambda: ToolFactory().create(BaseTool),
            "BaseTool could not be created: TypeError: Can't instantiate abstract",
        ),
        (
            lambda: ToolFactory().create(NoTool),
            "The class NoTool is not a BaseTool. Add a subclass of BaseTool, or a function.",
        ),
        (lambda: ToolFactory().create(made), "made is already created. Add its class, or its function without @tool."),
    ],
)
def test_what_is_missing_or_wrong_is_named(create: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        create()

    assert message in str(caught.value).replace(__name__, "tests.unit.plugins.test_factory")


def test_a_function_whose_dependency_nobody_provides_is_refused_as_any_other() -> None:
    with pytest.raises(InvalidToolError, match=r"parameter 'index' of .*lookup cannot be described as JSON Schema"):
        ToolFactory().create(lookup)


def test_a_broken_factory_is_told_with_its_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "factory", ToolFactory().add(Search))

    with pytest.raises(ConfigurationError, match=r"'.*test_factory:factory'.* Search needs index"):
        load_tools([f"{__name__}:factory"], builtins=False, entry_points=False)
