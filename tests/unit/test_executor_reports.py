"""In process, a listener hears what one call reports, from whichever thread, and no other call."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from forge_tools.base import BaseTool, ExecutionContext, ToolCategory, ToolParameter, ToolResult
from forge_tools.executor import ToolExecutor
from forge_tools.records import Output, Progress, Report
from forge_tools.registry import ScopedRegistry

WORD = ToolParameter(name="word", type="string", description="What to say.")


class Teller(BaseTool):
    """Say a word in several ways."""

    name = "Teller"
    category = ToolCategory.OTHER
    parameters = (WORD, WORD.model_copy(update={"name": "password", "sensitive": True, "required": False}))

    async def _execute(self, context: ExecutionContext, word: str, password: str = "") -> ToolResult:
        context.emit(word)
        await asyncio.to_thread(context.emit, f"{word} in a thread")
        thread = threading.Thread(target=context.emit, args=(f"{word} in a bare one",))
        thread.start()
        thread.join()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(context.progress, 1, 2, f"{word} {password}".strip()).result()
        return ToolResult.ok(word)


@pytest.fixture
def executor(registry: ScopedRegistry) -> ToolExecutor:
    registry.register(Teller())
    return ToolExecutor(registry)


def told(word: str, message: str) -> list[Report]:
    texts = (word, f"{word} in a thread", f"{word} in a bare one")
    return [*(Output(text=text) for text in texts), Progress(done=1.0, total=2.0, message=message)]


async def test_calls_at_once_are_heard_apart(executor: ToolExecutor) -> None:
    heard: dict[str, list[Report]] = {word: [] for word in ("a", "b", "c")}

    await asyncio.gather(*(executor.call("Teller", {"word": word}, on_report=heard[word].append) for word in heard))

    assert heard == {word: told(word, word) for word in heard}


async def test_without_a_listener_a_call_is_as_ever(executor: ToolExecutor, context: ExecutionContext) -> None:
    assert (await executor.execute("Teller", context, word="x")).output == "x"
    assert (await Teller().execute(context, word="y")).output == "y"


async def test_a_listener_that_fails_fails_no_call(executor: ToolExecutor) -> None:
    def fail(_: Report) -> None:
        raise RuntimeError("not the tool's fault")

    assert (await executor.call("Teller", {"word": "x"}, on_report=fail)).success


async def test_secrets_are_not_reported(executor: ToolExecutor) -> None:
    heard: list[Report] = []

    await executor.call("Teller", {"word": "x", "password": "hunter22"}, on_report=heard.append)

    assert heard == told("x", "x [redacted]")


async def test_the_record_of_a_call_holds_the_context_alone(executor: ToolExecutor, context: ExecutionContext) -> None:
    await executor.call("Teller", {"word": "x"}, context, on_report=lambda _: None)

    assert executor.get_executions()[0].context == context
