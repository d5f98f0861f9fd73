"""Workers with two versions of one tool: which is offered, which runs, and what each call was checked by and run as."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from forge_tools.client import ExecutorClient, Handle
from forge_tools.model import ExecutionContext, ExecutionStatus
from forge_tools.model.overview import StuckReason
from forge_tools.storage import open_store
from tests.fleet import Fleet

DATABASES = ("postgres",)

FIRST, SECOND = "tests.versioned_tools:FIRST", "tests.versioned_tools:SECOND"
CONTEXT = ExecutionContext(working_dir=".")


@pytest.fixture
async def client(fresh_fleet: Fleet) -> AsyncIterator[ExecutorClient]:
    async with ExecutorClient(fresh_fleet.settings) as client:
        yield client


async def started(fleet: Fleet, tools: str, **environment: str) -> None:
    await asyncio.to_thread(fleet.start, "async", tools=tools, **environment)


async def heard(fleet: Fleet) -> None:
    """Let every worker take a look, and every client be older than its last."""
    await asyncio.sleep(1.1)
    await fleet.looked_again()


async def greetings(client: ExecutorClient, count: int = 8) -> set[str]:
    """How calls at once were answered, by version."""
    calls = (client.execute("Greet", CONTEXT, name="ann") for _ in range(count))
    return {str(result.output)[:3] for result in await asyncio.gather(*calls)}


def parameters(client: ExecutorClient) -> set[str]:
    [spec] = [spec for spec in client.specs() if spec.name == "Greet"]
    return {parameter.name for parameter in spec.parameters}


async def test_a_new_definition_is_the_default_at_once_and_a_pin_takes_that_back(
    fresh_fleet: Fleet, client: ExecutorClient
) -> None:
    await started(fresh_fleet, FIRST)
    assert await greetings(client) == {"1.0"}
    await started(fresh_fleet, SECOND)
    await heard(fresh_fleet)

    result = await client.execute("Greet", CONTEXT, name="ann", language="de")
    assert parameters(client) == {"name", "language"}
    assert result.success or "language" in str(result.error), "a worker of the old one may have met it"

    await client.catalogue.pin("Greet", "1.0.0")
    await heard(fresh_fleet)
    assert parameters(client) == {"name"}
    assert await greetings(client, 20) == {"1.0"}

    await client.catalogue.pin("Greet", "1.1.0")
    await heard(fresh_fleet)
    assert await greetings(client, 20) == {"1.1"}
    assert (await client.execute("Greet", CONTEXT, name="ann", language="de")).output == "1.1: hello ann (de)"


async def test_while_a_parameter_with_a_default_is_deployed_workers_without_it_run_calls_that_do_not_give_it(
    fresh_fleet: Fleet, client: ExecutorClient
) -> None:
    await started(fresh_fleet, FIRST)
    await started(fresh_fleet, SECOND)
    await client.catalogue.refresh()
    assert parameters(client) == {"name", "language"}

    results = await asyncio.gather(*(client.execute("Greet", CONTEXT, name="ann") for _ in range(60)))

    assert {str(result.output or result.error) for result in results} == {"1.0: hello ann", "1.1: hello ann (en)"}


async def test_a_call_is_known_by_what_it_was_checked_by_and_what_it_ran_as(
    fresh_fleet: Fleet, client: ExecutorClient
) -> None:
    await started(fresh_fleet, FIRST)
    await client.catalogue.refresh()
    [old] = await client.catalogue.versions("Greet")
    handle = await client.submit("Greet", {"name": "ann"}, CONTEXT)
    await handle.result(timeout=60)
    await started(fresh_fleet, SECOND)
    new = (await client.catalogue.versions("Greet"))[0]
    record = await handle.record()

    async with await open_store(fresh_fleet.settings.database) as store:
        checked_by = await store.catalogue.definition(record.tool, record.tool_version, record.tool_digest)
        ran_as = await store.catalogue.hosted(str(record.worker_id), "Greet")

    assert checked_by == old.spec != new.spec
    assert ran_as == ("1.0.0", old.digest)


async def test_calls_of_a_pinned_definition_that_nobody_hosts_wait_are_named_and_run_when_somebody_does(
    fresh_fleet: Fleet, client: ExecutorClient
) -> None:
    await started(fresh_fleet, FIRST)
    fresh_fleet.workers[0].stop()
    await started(fresh_fleet, SECOND)
    await client.catalogue.pin("Greet", "1.0.0")
    await heard(fresh_fleet)
    handle = await client.submit("Greet", {"name": "ann"}, CONTEXT)

    async with await open_store(fresh_fleet.settings.database) as store, asyncio.timeout(60):
        while (
            not (found := (await store.overviews.read(window=1.0, lease=15, patience=1)).stuck)
            or found[0].reason == StuckReason.NOT_TAKEN
        ):
            await asyncio.sleep(0.2)  # one that stopped while the machine was busy may count as alive for a lease
    [stuck] = found
    assert (stuck.reason, await handle.status()) == (StuckReason.OTHER_VERSION, ExecutionStatus.QUEUED)
    assert (str(stuck.wanted)[:5], stuck.hosted[0][:5]) == ("1.0.0", "1.1.0")

    await started(fresh_fleet, FIRST)
    assert (await handle.result(timeout=60)).output == "1.0: hello ann"


async def test_under_the_policy_pinned_a_new_definition_waits_for_the_operator(
    fresh_fleet: Fleet, client: ExecutorClient
) -> None:
    await started(fresh_fleet, FIRST, tool_versions="pinned")
    await started(fresh_fleet, SECOND, tool_versions="pinned")
    await heard(fresh_fleet)
    assert await greetings(client, 20) == {"1.0"}
    assert "is hosted here, but pinned to 1.0.0" in fresh_fleet.workers[1].log.read_text()

    await client.catalogue.pin("Greet", "1.1.0")
    await heard(fresh_fleet)

    assert await greetings(client, 20) == {"1.1"}
    assert isinstance(await client.submit("Greet", {"name": "x", "language": "de"}, CONTEXT), Handle)
