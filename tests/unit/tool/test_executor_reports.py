"""In process, a listener gets the reports of one call, from any thread, and of no other call."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from forge_tools.model import Output, Progress
from forge_tools.model.scope import Report
from forge_tools.tool import tool
from forge_tools.tool.base import BaseTool, ExecutionContext, ToolCategory, ToolParameter, ToolResult
from forge_tools.tool.executor import ToolExecutor
from forge_tools.tool.registry import ScopedRegistry
from tests.waiting import reached

WORD = ToolParameter(name="word", type="string", description="What to say.")


class Piecemeal(BaseTool):
    """Put out a password in parts, and then end in that way."""

    name = "Piecemeal"
    category = ToolCategory.OTHER
    parameters = (WORD, WORD.model_copy(update={"name": "password", "sensitive": True}))

    async def _execute(self, context: ExecutionContext, word: str, password: str) -> ToolResult:
        context.emit(f"it is {password[:3]}")
        thread = threading.Thread(target=context.emit, args=(password[3:5],))
        thread.start()
        thread.join()
        context.progress(1, 2)
        ExecutionContext(working_dir=".").emit(password[5:])
        context.emit(f", not {password[:6]}")
        if word == "fail":
            raise RuntimeError(word)
        if word == "wait":
            await asyncio.sleep(60)
        return ToolResult.ok(word)


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


@pytest.mark.parametrize("word", ["succeed", "fail", "wait", "cancel"])
async def test_a_secret_in_parts_is_reported_in_none_and_nothing_else_is_lost_however_it_ends(
    executor: ToolExecutor, registry: ScopedRegistry, word: str
) -> None:
    registry.register(Piecemeal())
    heard: list[Report] = []
    parameters = {"word": "wait" if word == "cancel" else word, "password": "hunter22"}
    context = ExecutionContext(working_dir=".", timeout=60.0 if word == "cancel" else 0.2)
    call = asyncio.ensure_future(executor.call("Piecemeal", parameters, context, on_report=heard.append))
    if word == "cancel":
        await reached(lambda: len(heard) >= 4)
        call.cancel()
    await asyncio.wait([call])

    texts = [report.text if isinstance(report, Output) else report.done for report in heard]
    assert texts == ["it is ", 1.0, "[redacted]", ", not ", "hunter"]


async def test_a_call_within_a_call_is_part_of_its_stream(executor: ToolExecutor, registry: ScopedRegistry) -> None:
    @tool(sensitive=["pin"])
    async def outer(context: ExecutionContext, pin: str) -> None:
        """Let another tool tell the rest."""
        context.emit(f"it is {pin[:4]}")
        await executor.execute("Teller", ExecutionContext(working_dir="."), word=pin[4:])
        context.emit("the end, hunt")

    registry.register(outer)
    heard: list[Report] = []

    await executor.call("outer", {"pin": "hunter22"}, on_report=heard.append)

    texts = [report.text for report in heard if isinstance(report, Output)]
    assert texts == ["it is ", "[redacted]", "er22 in a thread", "er22 in a bare one", "the end, ", "hunt"]


async def test_without_a_secret_every_part_is_reported_as_it_came(
    executor: ToolExecutor, registry: ScopedRegistry
) -> None:
    registry.register(Piecemeal())
    heard: list[Report] = []

    await executor.call("Piecemeal", {"word": "x", "password": "short"}, on_report=heard.append)

    assert [report.text for report in heard if isinstance(report, Output)] == ["it is sho", "rt", "", ", not short"]


async def test_the_record_of_a_call_holds_the_context_alone(executor: ToolExecutor, context: ExecutionContext) -> None:
    await executor.call("Teller", {"word": "x"}, context, on_report=lambda _: None)

    assert executor.get_executions()[0].context == context
