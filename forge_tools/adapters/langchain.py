"""Tools of any executor for LangChain and LangGraph."""

import asyncio
from functools import cache
from typing import Any, Unpack

from forge_tools.adapters.sdk import extra
from forge_tools.adapters.toolset import Answer, BlockingExecutor, Choice, Executor, ToolCall, Toolset
from forge_tools.langchain import argument_schema, run_in_thread


def langchain_tools(executor: Executor | BlockingExecutor, **choice: Unpack[Choice]) -> list[Any]:
    """Wrap the tools of `executor` as `StructuredTool`s for an agent; `choice` and `artifacts` are those of `Toolset`.

    Invoked with a tool call, each answers with a `ToolMessage`: its text, the status `error` for a failure, and the
    fields of the `ToolResult` as artifact. An ExecutorClient must be connected; synchronous invocations of its tools
    come from other threads and run on its loop. A script without a loop passes a SyncExecutorClient.

    Raises:
        ImportError: without LangChain.
        ToolNotFoundError: when no tool has a given name.
    """
    toolset = Toolset(executor, **choice)
    runner = _Runner(toolset)
    return [
        _tool_class()(
            name=spec.name,
            description=spec.description,
            args_schema=argument_schema(spec),
            func=runner.run_in_place,
            coroutine=runner.run,
            tags=[*spec.tags, spec.category.value],
            handle_tool_error=True,
        )
        for spec in toolset.specs()
    ]


class _Runner:
    """Runs calls on the loop they belong to, from any thread and loop."""

    def __init__(self, toolset: Toolset) -> None:
        self._toolset = toolset
        try:
            self._home: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            self._home = None

    async def run(self, call: ToolCall) -> Answer:
        [answer] = await self._toolset.answer([call])
        return answer

    def run_in_place(self, call: ToolCall) -> Answer:
        """Run on the loop where the tools were created if it runs in another thread; else on a new loop."""
        if self._home is not None and self._home.is_running() and not _is_here(self._home):
            return asyncio.run_coroutine_threadsafe(self.run(call), self._home).result()
        return run_in_thread(lambda: self.run(call))


def _is_here(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


@cache
def _tool_class() -> Any:
    with extra("langchain", "LangChain"):
        from langchain_core.messages import ToolMessage
        from langchain_core.tools import StructuredTool, ToolException

    class ExecutorTool(StructuredTool):
        """A tool that runs wherever its executor runs it.

        Arguments pass unchanged: LangChain would otherwise inject its own `config`, `callbacks` and `run_manager`
        over parameters of those names.
        """

        def _to_args_and_kwargs(self, tool_input: Any, tool_call_id: str | None) -> tuple[Any, dict[str, Any]]:
            if isinstance(tool_input, str):
                tool_input = dict.fromkeys(self.args, tool_input) if len(self.args) == 1 else tool_input
            return (ToolCall(tool_call_id or "", self.name, tool_input),), {}

        def _run(self, /, *args: Any, **_: Any) -> Any:
            return self._message(self.func(*args))  # type: ignore[misc]  # always given above

        async def _arun(self, /, *args: Any, **_: Any) -> Any:
            return self._message(await self.coroutine(*args))  # type: ignore[misc]  # always given above

        def _message(self, answer: Answer) -> Any:
            if answer.is_error and not (answer.call.id and self.handle_tool_error is True):
                raise ToolException(answer.text)
            if not answer.call.id:
                return answer.text
            status = "error" if answer.is_error else "success"
            artifact = answer.result.model_dump()  # plain data, which every checkpointer can keep
            images = [{"type": "image_url", "image_url": {"url": one.url}} for one in answer.media if one.is_image]
            content: Any = [{"type": "text", "text": answer.text}, *images] if images else answer.text
            return ToolMessage(content, tool_call_id=answer.call.id, name=self.name, status=status, artifact=artifact)

    return ExecutorTool
