"""ResolveSymbol: where a name that a file uses is defined."""

from dataclasses import dataclass, replace
from typing import Any

from forge_tools.model import ToolResult
from forge_tools.sandbox.paths.workspace import Workspace
from forge_tools.tools.builtin import PATH, option, parameters_of
from forge_tools.tools.code.codebase import Source, read, read_file
from forge_tools.tools.code.facts import Definition
from forge_tools.tools.code.modules import Found, Modules
from forge_tools.tools.code.tool import SYMBOL, CodeTool, below, line, place, refuse
from forge_tools.tools.deadline import Deadline

_MOST = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """Which name, used where."""

    symbol: str = option("The name as the file writes it: Registry, or registry.Registry.", **SYMBOL)
    file: str = option("The file that uses it.", **PATH)
    path: str = below("Folder in which it may be defined, by default the working directory.")


class ResolveSymbol(CodeTool):
    """Find where a name that a file uses is defined, through its imports and those that hand it on.

    `exact`: the imports lead there. `likely`: they lead to one of several. `guess`: something of that name is defined there.
    """

    name = "ResolveSymbol"
    aliases = ("resolve_symbol",)
    parameters = parameters_of(Wish)

    def _answer(self, workspace: Workspace, deadline: Deadline, options: dict[str, Any]) -> ToolResult:
        wish = Wish(**options)
        using = read_file(workspace, wish.file, deadline)
        codebase = read(workspace, wish.path, deadline)
        first, _, rest = wish.symbol.replace("::", ".").partition(".")
        found = Modules(codebase).resolve(first, using)
        if found and found.source and found.definition and rest:
            found = _member(found, found.source, found.definition, rest)
        if found and found.definition and found.source:
            via = f"\nvia {' -> '.join(found.via)}" if found.via else ""
            facts = {**place(found.source, found.definition), "confidence": found.confidence, "via": list(found.via)}
            text = f"{line(found.source, found.definition)}  [{found.confidence}]{via}"
            return ToolResult.ok(text + codebase.note, definitions=[facts], index=codebase.index())
        if found and found.source is None:
            text = f"{wish.symbol} comes from {found.module}, which is not below {wish.path}"
            return ToolResult.ok(text + codebase.note, definitions=[], external=found.module, index=codebase.index())
        candidates = codebase.named(wish.symbol) or codebase.named(wish.symbol.rpartition(".")[2])
        if not candidates:
            refuse(codebase, wish.symbol, wish.path)
        guesses = [{**place(*one), "confidence": "guess", "via": []} for one in candidates[:_MOST]]
        text = "\n".join(f"{line(*one)}  [guess]" for one in candidates[:_MOST])
        return ToolResult.ok(text + codebase.note, definitions=guesses, index=codebase.index())


def _member(found: Found, source: Source, one: Definition, rest: str) -> Found | None:
    """What a name within the one that was found means; None where that is not known."""
    base = "" if one.kind == "module" else f"{one.path}/"
    wanted = f"{base}{rest.replace('.', '/')}"
    inner = next((each for each in source.facts.definitions if each.path == wanted), None)
    return replace(found, definition=inner) if inner else None
