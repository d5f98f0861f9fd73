"""Calls whose tool is disabled, pinned or replaced while they are on their way to SQL: none is lost, doubled or left hanging."""

import asyncio
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest
from sqlalchemy import select

from forge_tools.client import Call, ExecutorClient, Handle
from forge_tools.client.submissions import PART
from forge_tools.config import Settings
from forge_tools.errors import DatabaseUnavailableError, ErrorCode, ExecutionNotFoundError, ForgeError
from forge_tools.model import ExecutionContext, ToolParameter
from forge_tools.model.execution import NewExecution
from forge_tools.storage import open_store
from forge_tools.storage.directory import Directories, Directory
from forge_tools.storage.history.view import tool_executions
from forge_tools.storage.queue.queue import Answer, ExecutionQueue
from tests.migrated import database
from tests.unit.client.conftest import ECHO, publish
from tests.waiting import reached

CONTEXT = ExecutionContext(working_dir=".")
BURST = 2 * PART + 100
LANGUAGE = ToolParameter(name="language", type="string", description="Which.")
NEWER = ECHO.model_copy(update={"version": "1.1.0"})
STRICTER = ECHO.model_copy(update={"version": "1.2.0", "parameters": (*ECHO.parameters, LANGUAGE)})


@pytest.fixture
async def client(settings: Settings) -> AsyncIterator[ExecutorClient]:
    async with ExecutorClient.connect(settings) as client:
        yield client


async def disable(settings: Settings) -> None:
    """Do what an operator does elsewhere."""
    async with await open_store(settings.database) as store:
        await store.catalogue.switch("Echo", is_enabled=False)


async def pin(settings: Settings) -> None:
    await publish(settings, NEWER)
    async with await open_store(settings.database) as store:
        await store.catalogue.pin("Echo", ECHO.digest)


async def stored(settings: Settings) -> Counter[tuple[str, str]]:
    """How many rows there are of each definition, as (digest, status)."""
    async with database(settings.database) as rows:
        known = tool_executions.c
        return Counter((digest, status) for digest, status in await rows.rows(select(known.tool_digest, known.status)))


class HeldInsert:
    """An insert that its client has begun, and that has not reached the database."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.began, self.go_on = asyncio.Event(), asyncio.Event()
        self.before_the_answer: Callable[[], object] = lambda: None
        submit_many = ExecutionQueue.submit_many

        async def held(queue: ExecutionQueue, rows: Sequence[NewExecution]) -> list[ForgeError | None]:
            self.began.set()
            await self.go_on.wait()
            answers = await submit_many(queue, rows)
            self.before_the_answer()
            return answers

        monkeypatch.setattr(ExecutionQueue, "submit_many", held)


@pytest.fixture
def insert(monkeypatch: pytest.MonkeyPatch) -> HeldInsert:
    return HeldInsert(monkeypatch)


async def burst(client: ExecutorClient, insert: HeldInsert, change: Callable[[], Any]) -> list[Handle]:
    """Accept many calls, change their tool while they are on their way, and see each of them settled."""
    submitting = asyncio.gather(*(client.submit("Echo", {"message": str(n)}, CONTEXT) for n in range(BURST)))
    await insert.began.wait()
    await change()
    insert.go_on.set()
    async with asyncio.timeout(60):
        return await submitting


async def test_a_burst_whose_tool_is_disabled_meanwhile_is_refused_and_recorded(
    settings: Settings, client: ExecutorClient, insert: HeldInsert
) -> None:
    handles = await burst(client, insert, lambda: disable(settings))

    assert {(await handle.result(30)).error_code for handle in handles} == {ErrorCode.TOOL_DISABLED}
    assert await stored(settings) == {(ECHO.digest, "rejected"): BURST}


async def test_a_burst_whose_tool_is_replaced_meanwhile_is_stored_once_by_the_new_definition(
    settings: Settings, client: ExecutorClient, insert: HeldInsert
) -> None:
    handles = await burst(client, insert, lambda: publish(settings, NEWER))

    assert len({handle.id for handle in handles}) == BURST
    assert await stored(settings) == {(NEWER.digest, "queued"): BURST}


async def test_a_burst_is_judged_by_the_parameters_of_the_new_definition(
    settings: Settings, client: ExecutorClient, insert: HeldInsert
) -> None:
    handles = await burst(client, insert, lambda: publish(settings, STRICTER))

    assert {(await handle.result(30)).error_code for handle in handles} == {ErrorCode.VALIDATION_ERROR}
    assert await stored(settings) == {(STRICTER.digest, "rejected"): BURST}


async def test_a_burst_whose_tool_is_published_and_pinned_back_goes_as_it_was_accepted(
    settings: Settings, client: ExecutorClient, insert: HeldInsert
) -> None:
    await burst(client, insert, lambda: pin(settings))

    assert await stored(settings) == {(ECHO.digest, "queued"): BURST}


async def test_a_burst_of_awaited_calls_is_refused_and_recorded_as_well(
    settings: Settings, client: ExecutorClient, insert: HeldInsert
) -> None:
    calling = asyncio.gather(*(client.execute("Echo", CONTEXT, message=str(n)) for n in range(BURST)))
    await insert.began.wait()
    await disable(settings)
    insert.go_on.set()
    async with asyncio.timeout(60):
        results = await calling

    assert {result.error_code for result in results} == {ErrorCode.TOOL_DISABLED}
    assert len({result.metadata["execution_id"] for result in results}) == BURST
    assert await stored(settings) == {(ECHO.digest, "rejected"): BURST}


async def test_many_calls_at_once_are_each_judged_where_they_are_stored(
    settings: Settings, client: ExecutorClient
) -> None:
    await disable(settings)

    good, _ = await client.calls.submit_many([Call("Echo", {"message": "x"}, CONTEXT), Call("Echo", {}, CONTEXT)])

    assert isinstance(good, Handle)
    assert (await good.result(30)).error_code == ErrorCode.TOOL_DISABLED


async def test_a_call_whose_tool_changes_again_and_again_is_told_so_and_recorded(
    settings: Settings, client: ExecutorClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit_many, versions = ExecutionQueue.submit_many, iter((NEWER, STRICTER.model_copy(), NEWER))

    async def published_first(queue: ExecutionQueue, rows: Sequence[NewExecution]) -> list[ForgeError | None]:
        await publish(settings, next(versions))
        return await submit_many(queue, rows)

    monkeypatch.setattr(ExecutionQueue, "submit_many", published_first)

    result = await client.execute("Echo", CONTEXT, message="x")

    assert (result.error_code, result.metadata["retryable"]) == (ErrorCode.TOOL_CHANGED, True)
    assert [status for _, status in await stored(settings)] == ["rejected"]
    assert next(versions), "it is stored once more, and no more"


async def test_a_keyed_call_is_judged_by_the_definition_that_counts(settings: Settings, client: ExecutorClient) -> None:
    await publish(settings, NEWER)

    first, again = [await client.submit("Echo", {"message": "x"}, CONTEXT, idempotency_key="k") for _ in range(2)]

    assert (first.id, again.is_repeat) == (again.id, True)
    assert await stored(settings) == {(NEWER.digest, "queued"): 1}


async def test_a_replay_hears_that_its_tool_was_disabled(settings: Settings, client: ExecutorClient) -> None:
    handle = await client.submit("Echo", {"message": "x"}, CONTEXT)
    await handle.cancel()
    await disable(settings)

    again = await client.calls.replay(handle.id)

    assert (await again.result(30)).error_code == ErrorCode.TOOL_DISABLED


async def test_a_client_that_is_closed_meanwhile_says_of_no_call_that_it_goes_on_unless_it_is_stored(
    settings: Settings, insert: HeldInsert
) -> None:
    client = ExecutorClient(settings)
    await client.open()
    calling = [asyncio.ensure_future(client.execute("Echo", CONTEXT, message=str(n))) for n in range(20)]
    await insert.began.wait()
    await disable(settings)
    closing = asyncio.ensure_future(client.close())
    await asyncio.sleep(0)
    insert.go_on.set()
    async with asyncio.timeout(20):
        await closing
        results = await asyncio.gather(*calling)

    async with ExecutorClient(settings) as other:
        for result in results:
            if (execution_id := result.metadata.get("execution_id")) is not None:
                assert await other.calls.attach(execution_id).status()


async def test_a_client_that_is_being_closed_takes_no_more_calls_and_says_so(
    settings: Settings, insert: HeldInsert
) -> None:
    client = ExecutorClient(settings)
    await client.open()
    before = asyncio.ensure_future(client.submit("Echo", {"message": "before"}, CONTEXT))
    await insert.began.wait()
    closing = asyncio.ensure_future(client.close())
    await asyncio.sleep(0)
    late = await client.execute("Echo", CONTEXT, message="late")
    insert.go_on.set()
    async with asyncio.timeout(20):
        await closing

    assert "accepts no more calls" in str(late.error)
    assert "execution_id" not in late.metadata
    async with ExecutorClient(settings) as other:
        assert [record.id for record in await other.history.list()] == [(await before).id]


async def is_recorded(settings: Settings, client: ExecutorClient, count: int) -> None:
    """See that so many calls of a disabled tool are on record, and after one more call so many and that one."""
    await reached(lambda: stored(settings), when=lambda rows: rows.total() == count)
    assert (await client.execute("Echo", CONTEXT, message="later")).error_code == ErrorCode.TOOL_DISABLED
    await client.close()
    assert await stored(settings) == {(ECHO.digest, "rejected"): count + 1}


@pytest.mark.parametrize("detached", [False, True])
async def test_a_call_that_is_cancelled_while_it_is_stored_is_recorded_only_if_it_is_detached(
    settings: Settings, client: ExecutorClient, insert: HeldInsert, detached: bool
) -> None:
    running = asyncio.ensure_future(client.calls.execute(Call("Echo", {"message": "x"}, CONTEXT, detached=detached)))
    await insert.began.wait()
    await disable(settings)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    insert.go_on.set()

    await is_recorded(settings, client, int(detached))


async def test_a_keyed_call_that_is_cancelled_while_its_tool_is_replaced_goes_on_by_the_new_definition(
    settings: Settings, client: ExecutorClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit_many, began, go_on = ExecutionQueue.submit_many, asyncio.Event(), asyncio.Event()

    async def held(queue: ExecutionQueue, rows: Sequence[NewExecution]) -> list[Answer]:
        began.set()
        await go_on.wait()
        return await submit_many(queue, rows)

    monkeypatch.setattr(ExecutionQueue, "submit_many", held)
    submitting = asyncio.ensure_future(client.submit("Echo", {"message": "x"}, CONTEXT, idempotency_key="k"))
    await began.wait()
    await publish(settings, NEWER)
    submitting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await submitting
    go_on.set()

    await reached(lambda: stored(settings), when=lambda rows: rows == {(NEWER.digest, "queued"): 1})


ENTRIES: dict[str, Callable[[ExecutorClient, Call], Any]] = {
    "execute": lambda client, call: client.calls.execute(call),
    "submit": lambda client, call: client.submit(call.name, call.parameters, call.context, detached=call.detached),
}


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("detached", [True, False])
async def test_a_call_that_is_cancelled_in_the_turn_in_which_it_is_told_to_be_judged_again_is_not_dropped(
    settings: Settings, client: ExecutorClient, insert: HeldInsert, entry: str, detached: bool
) -> None:
    call = Call("Echo", {"message": "x"}, CONTEXT, detached=detached)
    running = asyncio.ensure_future(ENTRIES[entry](client, call))
    await insert.began.wait()
    await disable(settings)
    loop = asyncio.get_running_loop()
    insert.before_the_answer = lambda: loop.call_soon(running.cancel)  # it has its answer then, and has not run yet
    insert.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await running

    await is_recorded(settings, client, int(detached))


async def test_an_answer_that_was_asked_for_earlier_does_not_replace_one_that_was_asked_for_later(
    settings: Settings, client: ExecutorClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, go_on = Directories.read, asyncio.Event()

    async def slow(directories: Directories, within: float) -> Directory:
        answer = await read(directories, within)
        await go_on.wait()
        return answer

    with monkeypatch.context() as patched:
        patched.setattr(Directories, "read", slow)
        earlier = asyncio.ensure_future(client.catalogue.refresh())
        await asyncio.sleep(0.2)
    await client.catalogue.disable("Echo")
    go_on.set()
    await earlier

    assert client.specs() == []


async def test_the_error_of_a_whole_burst_is_told_to_each_by_a_traceback_of_its_own(
    client: ExecutorClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: object) -> list[ForgeError | None]:
        raise DatabaseUnavailableError("The database is away")

    monkeypatch.setattr(ExecutionQueue, "submit_many", fails)
    submits = (client.submit("Echo", {"message": "x"}, CONTEXT) for _ in range(200))
    errors = await asyncio.gather(*submits, return_exceptions=True)

    lengths = []
    for error in errors:
        assert isinstance(error, DatabaseUnavailableError)
        lengths.append(len(traceback.extract_tb(error.__traceback__)))
    assert max(lengths) < 10


async def test_two_who_wait_for_one_execution_get_a_result_each(client: ExecutorClient) -> None:
    handle = await client.submit("Echo", {"message": "x"}, CONTEXT)
    waiting = [asyncio.ensure_future(client.calls.attach(handle.id).result(30)) for _ in range(2)]
    await asyncio.sleep(0.1)
    await handle.cancel("enough")
    first, second = await asyncio.gather(*waiting)

    first.metadata["mine"] = True

    assert "mine" not in second.metadata
    with pytest.raises(ExecutionNotFoundError):
        await client.calls.attach(handle.id[:-1] + ("0" if handle.id[-1] != "0" else "1")).result(30)
