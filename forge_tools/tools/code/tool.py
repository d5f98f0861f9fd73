"""What the code tools share: a path to look below, work on a thread with a deadline, and how places are shown."""

from abc import abstractmethod
from typing import Any, NoReturn

from forge_tools.errors import ToolFailure
from forge_tools.model import ExecutionContext, Lane, Tier, ToolCategory, ToolResult
from forge_tools.sandbox.paths.workspace import Workspace
from forge_tools.tools.builtin import PATH, ReadingTool, option
from forge_tools.tools.code.codebase import Codebase, Source
from forge_tools.tools.code.facts import Definition
from forge_tools.tools.deadline import Deadline

SYMBOL_NOT_FOUND = "SYMBOL_NOT_FOUND"
SYMBOL: dict[str, Any] = {"min_length": 1, "max_length": 300}

_MOST_CLOSE = 5


def below(what: str = "Folder to look below, by default the working directory.") -> Any:
    """Return the field for a path."""
    return option(what, ".", **PATH)


class CodeTool(ReadingTool):
    """A tool that parses. It runs in the process lane, since a parser may be slow and blocks the interpreter."""

    category = ToolCategory.OTHER
    tags = ("code",)
    lane: Lane = "process"
    walls: Tier | None = "landlock"

    async def _execute(self, context: ExecutionContext, **options: Any) -> ToolResult:
        workspace, deadline = self.workspace(context), Deadline(context.timeout)
        return await deadline.look(lambda: self._answer(workspace, deadline, options))

    @abstractmethod
    def _answer(self, workspace: Workspace, deadline: Deadline, options: dict[str, Any]) -> ToolResult:
        """Answer, on a thread."""


def place(source: Source, one: Definition) -> dict[str, Any]:
    """Return the metadata of a definition."""
    return {
        "path": source.path,
        "line": one.line,
        "column": one.column,
        "name": one.path,
        "kind": one.kind,
        "signature": one.signature,
    }


def line(source: Source, one: Definition) -> str:
    """Return a line such as `src/a.py:12  class Parser  class Parser(Base)`."""
    return f"{source.path}:{one.line}  {one.kind} {one.path}  {one.signature}"


def refuse(codebase: Codebase, symbol: str, where: str) -> NoReturn:
    """Report that a symbol does not exist, and name similar ones.

    Raises:
        ToolFailure: always.
    """
    from difflib import get_close_matches

    known = {one.name: f"{one.name} ({source.path}:{one.line})" for source, one in codebase.definitions()}
    near = get_close_matches(symbol.replace("::", ".").replace("/", ".").rpartition(".")[2], known, _MOST_CLOSE)
    close = f" Close: {', '.join(known[name] for name in near)}." if near else ""
    place = "the working directory" if where == "." else where
    raise ToolFailure(f"There is no symbol '{symbol}' in {place}.{close}{codebase.note}", code=SYMBOL_NOT_FOUND)
