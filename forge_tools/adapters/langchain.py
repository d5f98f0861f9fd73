"""Tools of any executor for LangChain and LangGraph."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any, Unpack

from forge_tools.adapters.conversation import extra
from forge_tools.adapters.toolset import Answer, Choice, Executor, ToolCall, Toolset
from forge_tools.langchain import argument_schema, run_in_thread


def langchain_tools(executor: Executor, **choice: Unpack[Choice]) -> list[Any]:
    """Wrap the tools of `executor` as `StructuredTool`s for an agent; `choice` and `artifacts` are those of `Toolset`.

    Invoked with a tool call, each answers with a `ToolMessage`: its text, the status `error` for a failure, and the
    fields of the `ToolResult` as artifact. An ExecutorClient must be connected; synchronous invocations of its tools
    come from other threads and run on its loop. A script without a loop passes a SyncExecutorClient.

    Raises:
        ImportError: without LangChain.
        ToolNotFoundError: when no tool has a given name.
    """
    toolset, home = Toolset(executor, **choice), _running_loop()

    async def run(call: ToolCall) -> Answer:
        [answer] = await toolset.answer([call])
        return answer

    def run_in_place(call: ToolCall) -> Answer:
        """Run on the loop where the tools were created if it runs in another thread; else on a new loop."""
        if home is not None and home.is_running() and home is not _running_loop():
            return asyncio.run_coroutine_threadsafe(run(call), home).result()
        return run_in_thread(lambda: run(call))

    return [
        _tool_class()(
            name=spec.name,
            description=spec.description,
            args_schema=argument_schema(spec),
            func=run_in_place,
            coroutine=run,
            tags=[*spec.tags, spec.category.value],
            handle_tool_error=True,
        )
        for spec in toolset.specs()
    ]


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


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

        func: Callable[..., Any]
        coroutine: Callable[..., Awaitable[Any]]

        def _to_args_and_kwargs(self, tool_input: Any, tool_call_id: str | None) -> tuple[Any, dict[str, Any]]:
            if isinstance(tool_input, str):  # the only parameter, else the JSON of all
                tool_input = dict.fromkeys(self.args, tool_input) if len(self.args) == 1 else tool_input
            return (ToolCall(tool_call_id or "", self.name, tool_input),), {}

        def _run(self, /, *args: Any, **_: Any) -> Any:
            return self._message(self.func(*args))

        async def _arun(self, /, *args: Any, **_: Any) -> Any:
            return self._message(await self.coroutine(*args))

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
