"""Tools are switched off and on while clients and workers run: nothing restarts, and no call is lost."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from forge_tools.client import Call, ExecutorClient, Handle
from forge_tools.errors import ErrorCode, ToolNotFoundError
from forge_tools.model import ExecutionContext, ExecutionStatus, ToolResult, new_id
from tests.fleet import Fleet
from tests.integration.test_deployed_versions import heard
from tests.waiting import reached

DATABASES = ("postgres",)


@pytest.fixture(autouse=True)
async def all_enabled(client: ExecutorClient) -> AsyncIterator[None]:
    yield
    for tool in ("Echo", "EchoInProcess", "Sleep"):
        await client.catalogue.enable(tool)


async def test_clients_that_are_connected_refuse_a_disabled_tool_and_offer_it_no_more(
    client: ExecutorClient, fleet: Fleet, context: ExecutionContext
) -> None:
    async with ExecutorClient(fleet.settings) as other:
        await client.catalogue.disable("Echo")
        await asyncio.sleep(1.1)  # then no client trusts its last look
        result = await other.execute("Echo", context, message="x")
        record = await other.history.get(result.metadata["execution_id"])

        assert result.error_code == ErrorCode.TOOL_DISABLED
        assert (
            result.error
            == "Tool disabled: Echo. It was switched off; use another tool, or ask an operator to enable it."
        )
        assert record.status == ExecutionStatus.REJECTED
        for one in (client, other):
            assert "Echo" not in {spec.name for spec in one.specs()}

        await client.catalogue.enable("Echo")
        assert (await other.execute("Echo", context, message="x")).output == "x"


@pytest.mark.parametrize("tool", ["Echo", "EchoInProcess"])
async def test_workers_leave_calls_of_a_disabled_tool_alone_until_it_is_enabled(
    client: ExecutorClient, fleet: Fleet, context: ExecutionContext, tool: str
) -> None:
    later = [Call(tool, {"message": str(n)}, context, delay=1.0) for n in range(5)]
    handles = [one for one in await client.calls.submit_many(later) if isinstance(one, Handle)]
    await client.catalogue.disable(tool)
    await heard(fleet)
    assert (await client.execute("Sleep", context, seconds=0.01)).success, "others run meanwhile"
    await heard(fleet)
    assert [await handle.status() for handle in handles] == [ExecutionStatus.QUEUED] * 5

    await client.catalogue.enable(tool)

    results = await asyncio.gather(*(handle.result(timeout=30) for handle in handles))
    assert [result.output for result in results] == list("01234")


async def test_what_runs_when_its_tool_is_disabled_may_finish(
    client: ExecutorClient, context: ExecutionContext
) -> None:
    handle = await client.submit("Sleep", {"seconds": 3}, context)
    await reached(handle.status, 30, when=lambda status: status is ExecutionStatus.RUNNING)

    await client.catalogue.disable("Sleep")

    assert (await handle.result(timeout=20)).output == "slept 3s"


async def test_each_call_of_a_burst_during_which_its_tool_is_switched_off_and_on_runs_once_or_is_refused(
    client: ExecutorClient, fleet: Fleet
) -> None:
    context = ExecutionContext(working_dir=str(fleet.folder), session_id=new_id())
    async with ExecutorClient(fleet.settings) as other:
        is_off = asyncio.Event()
        burst = [asyncio.create_task(call_later(other, context, n, is_off)) for n in range(2_000)]
        await asyncio.sleep(1.5)
        await client.catalogue.disable("Echo")
        is_off.set()
        await heard(fleet)
        await client.catalogue.enable("Echo")
        async with asyncio.timeout(60):
            results = await asyncio.gather(*burst)

    refused = [result for result in results if not result.success]
    assert {result.error_code for result in refused} == {ErrorCode.TOOL_DISABLED}
    assert all(result.output == str(n) for n, result in enumerate(results) if result.success)
    recorded = await client.history.list(session_id=context.session_id, limit=3_000)
    assert {record.id for record in recorded} == {result.metadata["execution_id"] for result in results}
    assert len(recorded) == 2_000


async def call_later(
    client: ExecutorClient, context: ExecutionContext, number: int, is_off: asyncio.Event
) -> ToolResult:
    """One call of a burst that lasts five seconds; its last part begins when the tool is off, however late that is."""
    if number >= 1_000:
        await is_off.wait()
    await asyncio.sleep(number % 1_000 / 400)
    return await client.execute("Echo", context, message=str(number))


async def test_a_tool_that_nobody_published_cannot_be_disabled(client: ExecutorClient) -> None:
    with pytest.raises(ToolNotFoundError, match="did you mean 'Echo'"):
        await client.catalogue.disable("Ecko")


async def test_a_worker_that_starts_knows_what_is_disabled(fresh_fleet: Fleet, context: ExecutionContext) -> None:
    first = fresh_fleet.start("async")
    async with ExecutorClient(fresh_fleet.settings) as client:
        first.stop()
        handle = await client.submit("Echo", {"message": "x"}, context)
        await client.catalogue.disable("Echo")

        fresh_fleet.start("async")
        assert (await client.execute("Sleep", context, seconds=0.01)).success
        await heard(fresh_fleet)
        assert await handle.status() == ExecutionStatus.QUEUED

        await client.catalogue.enable("Echo")
        assert (await handle.result(timeout=20)).output == "x"
