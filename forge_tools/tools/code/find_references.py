"""FindReferences: where a symbol is used, with a confidence for each place."""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from forge_tools.model import ToolResult
from forge_tools.sandbox.paths.workspace import Workspace
from forge_tools.tools.builtin import PATH, counted, option, parameters_of
from forge_tools.tools.code.codebase import Having, Source, read, texts_of
from forge_tools.tools.code.facts import Definition, parsed
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
        file = None
        if wish.file is not None:
            with workspace.open_file(wish.file) as handle:
                file = workspace.shown(workspace.inside(handle), handle)
        codebase = read(workspace, wish.path, deadline, Having.name(name))
        defined = codebase.named(wish.symbol, file=file)
        if not defined:
            refuse(read(workspace, wish.path, deadline), wish.symbol, wish.file or wish.path)
        target = _Target(name, defined, len(codebase.named(name)) == len(defined), Modules(codebase))
        found: list[dict[str, Any]] = []
        using = sorted((one for one in codebase.sources.values() if one.facts.has(name)), key=lambda one: one.path)
        for source, text in texts_of(workspace, using):
            if deadline.is_over:
                codebase.is_partial = True
                break
            found += (
                one for one in target.uses(source, text) if wish.include_definition or one["kind"] != "definition"
            )
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


@dataclass(frozen=True, slots=True)
class _Target:
    """A name and the definitions that are meant; `is_only` if nothing else has that name."""

    name: str
    defined: Sequence[tuple[Source, Definition]]
    is_only: bool
    modules: Modules

    def uses(self, source: Source, text: str) -> Iterator[dict[str, Any]]:
        """Yield the places in a file that name it."""
        lines = {one.line for home, one in self.defined if home.path == source.path}
        sure, said = self._confidence(source), text.split("\n")
        for above, node in _nodes(self.name, said, source):
            start = node.range().start
            line = above + start.line + 1
            is_definition = line in lines and _is_name_of_definition(node, source)
            yield {
                "path": source.path,
                "line": line,
                "column": start.column + 1,
                "kind": "definition" if is_definition else _kind(node),
                "confidence": sure,
                "text": said[line - 1].strip()[:_SHOWN],
            }

    def _confidence(self, source: Source) -> Confidence:
        homes = {home.path for home, _ in self.defined}
        if source.path in homes:
            return "exact"
        found = self.modules.resolve(self.name, source)
        if found and found.source:
            return found.confidence if found.source.path in homes else "guess"
        return "likely" if self.is_only else "guess"


def _nodes(name: str, lines: Sequence[str], source: Source) -> Iterator[tuple[int, Any]]:
    """Yield the nodes of a name with the number of lines above the part of the file that was parsed."""
    rule = {"any": [{"kind": kind} for kind in source.language.leaves], "regex": f"^{re.escape(name)}$"}
    for above, text in _parts(name, lines, source.facts.starts):
        seen: set[int] = set()
        for node in parsed(text, source.language).find_all({"rule": rule}):
            at = node.range().start.index
            if at not in seen and not node.children():
                seen.add(at)
                yield above, node


def _parts(name: str, lines: Sequence[str], starts: Sequence[int]) -> Iterator[tuple[int, str]]:
    """Yield the parts of a file that contain a name, with the number of lines above: the rest need not be parsed."""
    cuts = [0, *starts[1:], len(lines)]
    for after in dict.fromkeys(bisect_right(cuts, number) for number, line in enumerate(lines) if name in line):
        yield cuts[after - 1], "\n".join(lines[cuts[after - 1] : cuts[after]])


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
