"""FindReferences: where a symbol is used, with a confidence for each place."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from forge_tools.model import ToolResult
from forge_tools.sandbox.paths.workspace import Workspace
from forge_tools.tools.builtin import PATH, counted, option, parameters_of
from forge_tools.tools.code.codebase import Codebase, Having, Source, lines_of, read
from forge_tools.tools.code.facts import parsed
from forge_tools.tools.code.modules import Confidence, Modules
from forge_tools.tools.code.tool import SYMBOL, CodeTool, below, refuse
from forge_tools.tools.deadline import Deadline

_SHOWN = 160
_CALLS = frozenset(
    {"call", "call_expression", "method_invocation", "new_expression", "object_creation_expression", "macro_invocation"}
)
_IMPORTS = frozenset(
    {
        "import_statement",
        "import_from_statement",
        "import_declaration",
        "use_declaration",
        "export_specifier",
        "import_specifier",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """Which symbol, and what to show."""

    symbol: str = option("Name, or path of names: parse, Registry/get.", **SYMBOL)
    file: str | None = option("File that defines it, if several do.", None, **PATH)
    path: str = below()
    include_definition: bool = option("Show the definition too.", default=False)
    limit: int = option("Maximum number of places shown.", 200, minimum=1, maximum=2000)


class FindReferences(CodeTool):
    """List where a symbol is used: calls, imports and other uses, by file and line; comments and strings do not count.

    `exact`: the imports of the file lead to the definition. `likely`: it is the only one of its name. `guess`: there are others.
    """

    name = "FindReferences"
    aliases = ("find_references",)
    parameters = parameters_of(Wish)

    def _answer(self, workspace: Workspace, deadline: Deadline, options: dict[str, Any]) -> ToolResult:
        wish = Wish(**options)
        name = wish.symbol.replace("::", ".").replace("/", ".").rpartition(".")[2]
        codebase = read(workspace, wish.path, deadline, Having.name(name))
        defined = codebase.named(wish.symbol, file=wish.file)
        if not defined:
            refuse(read(workspace, wish.path, deadline), wish.symbol, wish.file or wish.path)
        found = list(_references(name, wish, workspace, codebase, deadline))
        shown = [
            f"{one['path']}:{one['line']}  {one['kind']} [{one['confidence']}]  {one['text']}"
            for one in found[: wish.limit]
        ]
        files = len({one["path"] for one in found})
        head = f"{counted(len(found), 'reference')} to {wish.symbol} in {counted(files, 'file')}, defined at "
        head += ", ".join(f"{source.path}:{one.line}" for source, one in defined[:5])
        return ToolResult.ok(
            "\n".join([head, *shown]) + codebase.note,
            references=found[: wish.limit],
            total=len(found),
            index=codebase.index(),
        )


def _references(
    name: str, wish: Wish, workspace: Workspace, codebase: Codebase, deadline: Deadline
) -> Iterator[dict[str, Any]]:
    defined = codebase.named(wish.symbol, file=wish.file)
    homes = {source.path for source, _ in defined}
    lines = {(source.path, one.line) for source, one in defined}
    is_only = len(codebase.named(name)) == len(defined)
    modules = Modules(codebase)
    using = [path for path, source in codebase.sources.items() if name in source.facts.words]
    for path, text in sorted(lines_of(workspace, using).items()):
        if deadline.is_over:
            codebase.is_partial = True
            return
        source = codebase.sources[path]
        sure = _confidence(name, source, homes, modules, is_only=is_only)
        said = text.split("\n")
        for node in _uses(name, text, source):
            start = node.range().start
            is_definition = (path, start.line + 1) in lines and _is_name_of_definition(node, source)
            if is_definition and not wish.include_definition:
                continue
            yield {
                "path": path,
                "line": start.line + 1,
                "column": start.column + 1,
                "kind": "definition" if is_definition else _kind(node),
                "confidence": sure,
                "text": said[start.line].strip()[:_SHOWN],
            }


def _confidence(name: str, source: Source, homes: set[str], modules: Modules, *, is_only: bool) -> Confidence:
    if source.path in homes:
        return "exact"
    found = modules.resolve(name, source)
    if found and found.source:
        return found.confidence if found.source.path in homes else "guess"
    return "likely" if is_only else "guess"


def _uses(name: str, text: str, source: Source) -> Iterator[Any]:
    rule = {"any": [{"kind": kind} for kind in source.language.leaves], "regex": f"^{re.escape(name)}$"}
    seen: set[int] = set()
    for node in parsed(text, source.language).find_all({"rule": rule}):
        at = node.range().start.index
        if at not in seen and not node.children():
            seen.add(at)
            yield node


def _is_name_of_definition(node: Any, source: Source) -> bool:
    above = [one.kind() for one in node.ancestors()][:4]
    return any(kind in source.language.definitions for kind in above)


def _kind(node: Any) -> str:
    above = list(node.ancestors())[:5]
    if any(one.kind() in _IMPORTS for one in above):
        return "import"
    for one in above[:2]:
        if one.kind() in _CALLS:
            called = (
                one.field("function")
                or one.field("name")
                or one.field("constructor")
                or one.field("macro")
                or one.field("type")
            )
            if called is not None and called.range().start.index <= node.range().start.index < called.range().end.index:
                return "call"
    return "use"
