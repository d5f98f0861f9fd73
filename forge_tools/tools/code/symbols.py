"""SymbolInfo, ResolveSymbol and ImportsExports: one definition, what a name refers to, and a file's imports and exports."""

from dataclasses import dataclass
from typing import Any

from forge_tools.model import ToolResult
from forge_tools.sandbox.paths.workspace import Workspace
from forge_tools.tools.builtin import PATH, Deadline, option
from forge_tools.tools.code.codebase import (
    SYMBOL,
    CodeTool,
    Having,
    Source,
    below,
    line,
    names_in,
    place,
    read,
    read_file,
    refuse,
    texts_of,
)
from forge_tools.tools.code.facts import Definition
from forge_tools.tools.code.modules import Modules

MAX_BODY = 400
_MOST = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _SymbolInfoWish:
    symbol: str = option(
        "Name, or path of names: parse, Registry/get, Registry.get, package.module.Registry.", **SYMBOL
    )
    file: str | None = option("File that defines it; by default all files below path are searched.", None, **PATH)
    path: str = below()
    include_body: bool = option("Show its code.", default=True)


class SymbolInfo(CodeTool):
    """Show a definition: kind, signature, where it is, its code, and others of the same name."""

    name = "SymbolInfo"
    aliases = ("get_symbol_info", "symbol_info")
    options = _SymbolInfoWish

    def _answer(self, wish: _SymbolInfoWish, workspace: Workspace, deadline: Deadline, max_chars: int) -> ToolResult:
        where = wish.file or wish.path
        codebase = read(workspace, where, deadline, Having.name(names_in(wish.symbol)[-1], defined=True))
        if not (found := codebase.named(wish.symbol)):
            codebase = read(workspace, where, deadline)
            found = codebase.named(wish.symbol) or Modules(codebase).below(names_in(wish.symbol))
        if not found:
            refuse(codebase, wish.symbol, where)
        source, one = found[0]
        parts = [line(source, one)]
        if wish.include_body:
            parts.append(_body(workspace, source, one))
        if others := found[1:]:
            same = "\n".join(line(*other) for other in others[:_MOST])
            parts.append(f"{len(others)} more have this name; give file, or a longer name:\n{same}")
        members = [
            f"  {inner.line}: {inner.signature}" for inner in source.facts.definitions if inner.container == one.path
        ]
        if members:
            parts.append("\n".join(["Members:", *members[: _MOST * 3]]))
        facts = {**place(source, one), "end_line": one.end_line, "is_public": one.is_public}
        said = ["\n\n".join(parts)]
        return codebase.answer(said, symbol=facts, others=[place(*other) for other in others[:_MOST]])


def _body(workspace: Workspace, source: Source, one: Definition) -> str:
    text = next((text for _, text in texts_of(workspace, [source])), "")
    body = text.split("\n")[one.start_line - 1 : one.end_line]
    numbered = [f"{number:>6}  {said}" for number, said in enumerate(body[:MAX_BODY], one.start_line)]
    if len(body) > MAX_BODY:
        numbered.append(
            f"... {len(body) - MAX_BODY} more lines; Read {source.path} with offset {one.start_line + MAX_BODY}"
        )
    return "\n".join(numbered)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ResolveSymbolWish:
    symbol: str = option("The name as the file writes it: Registry, or registry.Registry.", **SYMBOL)
    file: str = option("The file that uses it.", **PATH)
    path: str = below("Folder in which to look for the definition, by default the working directory.")


class ResolveSymbol(CodeTool):
    """Find where a name that a file uses is defined, following imports and re-exports.

    `exact`: the imports lead there. `likely`: they lead to one of several. `guess`: something of that name is defined there.
    """

    name = "ResolveSymbol"
    aliases = ("resolve_symbol",)
    options = _ResolveSymbolWish

    def _answer(self, wish: _ResolveSymbolWish, workspace: Workspace, deadline: Deadline, max_chars: int) -> ToolResult:
        using = read_file(workspace, wish.file, deadline)
        codebase = read(workspace, wish.path, deadline)
        first, *rest = names_in(wish.symbol)
        found = Modules(codebase).resolve(first, using)
        if found and rest:
            found = found.member(rest)
        if found and found.definition and found.source:
            via = [f"via {' -> '.join(found.via)}"] if found.via else []
            facts = {**place(found.source, found.definition), "confidence": found.confidence, "via": list(found.via)}
            said = f"{line(found.source, found.definition)}  [{found.confidence}]"
            return codebase.answer([said, *via], definitions=[facts])
        if found:
            said = f"{wish.symbol} comes from {found.module}, which is not below {wish.path}"
            return codebase.answer([said], definitions=[], external=found.module)
        candidates = codebase.named(wish.symbol) or codebase.named(names_in(wish.symbol)[-1])
        if not candidates:
            refuse(codebase, wish.symbol, wish.path)
        guesses = [{**place(*one), "confidence": "guess", "via": []} for one in candidates[:_MOST]]
        return codebase.answer((f"{line(*one)}  [guess]" for one in candidates[:_MOST]), definitions=guesses)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ImportsExportsWish:
    file: str = option("The file.", **PATH)
    path: str = below("Folder in which to look for what it imports, by default the working directory.")


class ImportsExports(CodeTool):
    """List what a file imports, from where, and what it exports."""

    name = "ImportsExports"
    aliases = ("get_imports_exports", "imports_exports")
    options = _ImportsExportsWish

    def _answer(
        self, wish: _ImportsExportsWish, workspace: Workspace, deadline: Deadline, max_chars: int
    ) -> ToolResult:
        source = read_file(workspace, wish.file, deadline)
        codebase = read(workspace, wish.path, deadline)
        modules = Modules(codebase)
        imports: list[dict[str, Any]] = [
            {
                "module": one.module,
                "names": [
                    called if taken in {called, ""} else f"{taken} as {called}" for taken, called in one.names if called
                ],
                "line": one.line,
                "resolved": next(iter(modules.of(one, source)), None),
            }
            for one in source.facts.imports
        ]
        exports: list[dict[str, Any]] = [
            {"name": one.path, "kind": one.kind, "line": one.line}
            for one in source.facts.definitions
            if one.is_public and not one.container
        ]
        exports += [
            {"name": called, "kind": f"from {one.module}", "line": one.line}
            for one in source.facts.imports
            if one.is_export
            for _, called in one.names
        ]
        said = [
            f"{source.path}:{one['line']}  {one['module']}  {', '.join(one['names'])}".rstrip()
            + f"  -> {one['resolved'] or 'external'}"
            for one in imports
        ]
        offered = [f"{source.path}:{one['line']}  {one['kind']} {one['name']}" for one in exports]
        said = [f"Imports of {source.path}: {len(imports)}", *said, "", f"Exports: {len(exports)}", *offered]
        return codebase.answer(said, imports=imports, exports=exports)
