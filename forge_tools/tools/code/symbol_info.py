"""SymbolInfo: all that is known of one definition."""

from dataclasses import dataclass
from typing import Any

from forge_tools.model import ToolResult
from forge_tools.sandbox.paths.workspace import Workspace
from forge_tools.tools.builtin import PATH, option, parameters_of
from forge_tools.tools.code.codebase import Source, lines_of, read
from forge_tools.tools.code.facts import Definition
from forge_tools.tools.code.tool import SYMBOL, CodeTool, below, line, place, refuse
from forge_tools.tools.deadline import Deadline

MAX_BODY = 400
_MOST = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """Which one."""

    symbol: str = option("Name, or path of names: parse, Registry/get, Registry.get.", **SYMBOL)
    file: str | None = option("File that defines it; without it all below path are looked through.", None, **PATH)
    path: str = below()
    include_body: bool = option("Show its code.", default=True)


class SymbolInfo(CodeTool):
    """Show a definition: kind, signature, where it is, its code, and others of the same name."""

    name = "SymbolInfo"
    aliases = ("get_symbol_info", "symbol_info")
    parameters = parameters_of(Wish)

    def _answer(self, workspace: Workspace, deadline: Deadline, options: dict[str, Any]) -> ToolResult:
        wish = Wish(**options)
        name = wish.symbol.replace("::", ".").replace("/", ".").rpartition(".")[2]
        codebase = read(workspace, wish.file or wish.path, deadline, containing=name)
        found = codebase.named(wish.symbol)
        if not found:
            refuse(read(workspace, wish.file or wish.path, deadline), wish.symbol, wish.file or wish.path)
        source, one = found[0]
        parts = [line(source, one)]
        if wish.include_body:
            parts.append(_body(workspace, source, one))
        if others := found[1:]:
            same = "\n".join(line(*other) for other in others[:_MOST])
            parts.append(f"{len(others)} more of that name; give file, or a longer name:\n{same}")
        members = [
            f"  {inner.line}: {inner.signature}" for inner in source.facts.definitions if inner.container == one.path
        ]
        if members:
            parts.append("\n".join(["Members:", *members[: _MOST * 3]]))
        facts = {**place(source, one), "end_line": one.end_line, "is_public": one.is_public}
        return ToolResult.ok(
            "\n\n".join(parts) + codebase.note,
            symbol=facts,
            others=[place(*other) for other in others[:_MOST]],
            index=codebase.index(),
        )


def _body(workspace: Workspace, source: Source, one: Definition) -> str:
    text = lines_of(workspace, [source.path]).get(source.path, "").split("\n")
    body = text[one.line - 1 : one.end_line]
    numbered = [f"{number:>6}  {said}" for number, said in enumerate(body[:MAX_BODY], one.line)]
    if len(body) > MAX_BODY:
        numbered.append(f"... {len(body) - MAX_BODY} more lines; Read {source.path} with offset {one.line + MAX_BODY}")
    return "\n".join(numbered)
