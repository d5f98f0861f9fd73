"""Small real tools that tests call."""

import asyncio
from pathlib import Path
from typing import Any

from forge_tools.base import BaseTool, Capabilities, ExecutionContext, ToolCategory, ToolParameter, ToolResult


def parameter(name: str, type: str = "string", **rest: Any) -> ToolParameter:
    return ToolParameter(name=name, type=type, description=f"The {name}", **rest)


class Echo(BaseTool):
    name = "Echo"
    description = "Return the message"
    category = ToolCategory.OTHER
    parameters = (parameter("message"),)

    async def _execute(self, context: ExecutionContext, message: str) -> ToolResult:
        return ToolResult.ok(message)


class Read(BaseTool):
    name = "Read"
    description = "Read contents of a file"
    category = ToolCategory.FILE
    aliases = ("read_file",)
    parameters = (
        ToolParameter(name="file_path", type="string", description="Absolute path to the file", aliases=("path",)),
        ToolParameter(name="offset", type="integer", description="Line number to start from", required=False),
        ToolParameter(name="limit", type="integer", description="Maximum lines to read", required=False),
    )

    async def _execute(
        self, context: ExecutionContext, file_path: str, offset: int | None = None, limit: int | None = None
    ) -> ToolResult:
        return ToolResult.ok(f"{file_path} {offset} {limit}")


class Write(BaseTool):
    name = "Write"
    description = "Write a file"
    category = ToolCategory.FILE
    capabilities = Capabilities(writes_files=True)
    parameters = (parameter("file_path"), parameter("content"))

    async def _execute(self, context: ExecutionContext, file_path: str, content: str) -> ToolResult:
        Path(context.working_dir, file_path).write_text(content)
        return ToolResult.ok("written")


class Bash(BaseTool):
    name = "Bash"
    description = "Run a command"
    category = ToolCategory.EXECUTION
    parameters = (parameter("command"),)

    async def _execute(self, context: ExecutionContext, command: str) -> ToolResult:
        return ToolResult.ok(command)


class Slow(BaseTool):
    name = "Slow"
    description = "Wait"
    category = ToolCategory.OTHER
    parameters = (parameter("seconds", "number", required=False, default=5),)

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.was_cancelled = False

    async def _execute(self, context: ExecutionContext, seconds: float) -> ToolResult:
        self.started.set()
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise
        return ToolResult.ok("done")


class Broken(BaseTool):
    name = "Broken"
    description = "Raise"
    category = ToolCategory.OTHER
    parameters = ()

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error or RuntimeError("the disk is on fire")

    async def _execute(self, context: ExecutionContext) -> ToolResult:
        raise self.error


class Recorder(BaseTool):
    """Remember what it was called with."""

    category = ToolCategory.OTHER

    def __init__(self, *parameters: ToolParameter, name: str = "Recorder", answer: Any = None, **declared: Any) -> None:
        self._name = name
        self._parameters = parameters
        self._answers = answer if isinstance(answer, list) else [answer]
        self.calls: list[dict[str, Any]] = []
        for attribute, value in declared.items():
            setattr(self, attribute, value)

    @property
    def name(self) -> str:
        return self._name

    @property
    def parameters(self) -> tuple[ToolParameter, ...]:
        return self._parameters

    async def _execute(self, context: ExecutionContext, /, **kwargs: Any) -> Any:
        self.calls.append(kwargs)
        answer = self._answers[min(len(self.calls), len(self._answers)) - 1]
        if isinstance(answer, BaseException):
            raise answer
        return answer


class Meet(BaseTool):
    """Wait until that many calls are here at once."""

    name = "Meet"
    category = ToolCategory.OTHER
    parameters = (parameter("who"), parameter("count", "integer"))

    def __init__(self) -> None:
        self._here = 0
        self._all_here = asyncio.Event()

    async def _execute(self, context: ExecutionContext, who: str, count: int) -> ToolResult:
        self._here += 1
        if self._here == count:
            self._all_here.set()
        await asyncio.wait_for(self._all_here.wait(), 5)
        return ToolResult.ok(f"{who} met")


class Table(BaseTool):
    """Return data."""

    name = "Table"
    category = ToolCategory.OTHER
    tags = ("data",)
    parameters = (parameter("columns", "array", required=False),)

    async def _execute(self, context: ExecutionContext, columns: list[Any] | None = None) -> ToolResult:
        return ToolResult.ok({"columns": columns or []})
