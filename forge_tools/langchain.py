"""A tool as a LangChain `Tool`."""

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, Protocol, TypeVar

from forge_tools.model.calls import ExecutionContext, ToolResult
from forge_tools.model.tools import Schema, ToolSpec
from forge_tools.schema.providers import render

T = TypeVar("T")


class RunnableTool(Protocol):
    """The part of a tool that the wrapper needs."""

    @property
    def spec(self) -> ToolSpec: ...

    async def execute(self, context: ExecutionContext, /, **kwargs: Any) -> ToolResult: ...


def to_langchain_tool(tool: RunnableTool, context: ExecutionContext | None = None) -> Any:
    """Wrap `tool` in a `langchain_core.tools.Tool` that takes any number of arguments (contradiction C04).

    Calls run in `context`, by default with the current folder as `working_dir`. They return text; a failure is the text
    `Error: ...`, with the status `error` if LangChain shows one.

    Raises:
        ImportError: without LangChain.
    """
    spec, around = tool.spec, context or ExecutionContext(working_dir=".")

    async def run(**arguments: Any) -> str:
        from langchain_core.tools import ToolException

        result = await tool.execute(around, **arguments)
        if not result.success:
            raise ToolException(result.to_text())
        return result.to_text()

    def run_in_place(**arguments: Any) -> str:
        return run_in_thread(lambda: run(**arguments))

    return _wrapper_class()(
        name=spec.name,
        description=spec.description,
        func=run_in_place,
        coroutine=run,
        args_schema=argument_schema(spec),
        handle_tool_error=True,
    )


def argument_schema(spec: ToolSpec) -> Schema:
    """Describe a tool's arguments as the `args_schema` of LangChain's tools, which pass it to any provider."""
    parameters: Schema = render(spec, "openai")["function"]["parameters"]
    return {"title": spec.name, **parameters}


def run_in_thread(run: Callable[[], Awaitable[T]]) -> T:
    """Run on a separate thread: the caller's may already run an event loop (contradiction C38)."""

    async def main() -> T:  # asyncio.run takes nothing but coroutines
        return await run()

    here = contextvars.copy_context()  # a new thread would see none of the caller's variables
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(lambda: here.run(asyncio.run, main())).result()


@cache
def _wrapper_class() -> Any:
    try:
        from langchain_core.tools import Tool, ToolException
    except ImportError as error:
        raise ImportError("LangChain is not installed. Install forge-tools[langchain].") from error

    class LangChainTool(Tool):
        """A `Tool` without its limit of one argument.

        Arguments pass as they are: LangChain would otherwise inject its own `config`, `callbacks` and `run_manager`
        over parameters of those names.
        """

        func: Callable[..., Any]
        coroutine: Callable[..., Awaitable[Any]]

        def _to_args_and_kwargs(self, tool_input: Any, tool_call_id: str | None) -> tuple[Any, dict[str, Any]]:
            if not isinstance(tool_input, str):
                return (), dict(tool_input)
            names = list(self.args)
            if len(names) > 1:
                raise ToolException(
                    f"Error: {self.name} takes {', '.join(names)}. Pass them by name, not as one string."
                )
            return (), dict.fromkeys(names, tool_input)

        def _run(self, /, *args: Any, **kwargs: Any) -> Any:
            return self.func(*args, **kwargs)

        async def _arun(self, /, *args: Any, **kwargs: Any) -> Any:
            return await self.coroutine(*args, **kwargs)

    return LangChainTool
