"""Whatever bytes a broker holds, busy workers drop them, count them, report the first, and continue."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from forge_tools.broker.celery_app import backlog, celery_app
from forge_tools.client import ExecutorClient
from forge_tools.model import ExecutionContext
from forge_tools.storage import open_store
from tests import rabbit
from tests.chaos.brokers import BROKERS, LANES, BrokerUnderFire, ValkeyUnderFire, queues
from tests.conftest import started
from tests.fleet import Fleet, WorkerProcess
from tests.garbage import bad_messages, changed_messages
from tests.services import Services, client
from tests.waiting import reached, wait_until

SEED = 20


@pytest.fixture(scope="module", params=list(BROKERS))
def wire(request: pytest.FixtureRequest, services: Services) -> Iterator[BrokerUnderFire]:
    if request.param == "rabbitmq" and not rabbit.is_wanted():
        pytest.skip("FORGE_TEST_RABBITMQ=1 asks for it")
    running = started(lambda: BROKERS[request.param](services.folder(f"{request.param}-bytes")).start())
    yield running
    running.stop()


@pytest.fixture(scope="module")
def fleet(wire: BrokerUnderFire, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("fleet")
    fleet = Fleet(folder, wire.url, f"sqlite:///{folder / 'forge.db'}", kill_grace=1.0)
    for lane in LANES:
        fleet.start(lane, concurrency=2)
    yield fleet
    fleet.stop()


@pytest.fixture
async def agent(fleet: Fleet) -> AsyncIterator[ExecutorClient]:
    async with ExecutorClient(fleet.settings) as opened:
        yield opened


async def dropped(fleet: Fleet) -> int:
    async with await open_store(fleet.settings.database) as store:
        return sum(worker.dropped_messages for worker in await store.workers.list())


def served(fleet: Fleet) -> list[str]:
    return queues([fleet.settings.hostname])


async def test_no_bytes_end_a_busy_worker_or_what_it_runs(
    wire: BrokerUnderFire, fleet: Fleet, agent: ExecutorClient, tmp_path: Path
) -> None:
    context, tools = ExecutionContext(working_dir=str(fleet.folder), timeout=60), ("Sleep", "Block")
    marks = [tmp_path / tool for tool in tools]
    asked = [{"seconds": 8, "mark": str(mark)} for mark in marks]
    running = [await agent.submit(tool, one, context) for tool, one in zip(tools, asked, strict=True)]
    await asyncio.to_thread(wait_until, lambda: all(mark.exists() for mark in marks), 30, "nothing runs")

    doubtful = sum(
        [await asyncio.to_thread(wire.put, queue, changed_messages(random.Random(SEED))) for queue in served(fleet)]
    )
    sent = sum([await asyncio.to_thread(wire.put, queue, bad_messages(random.Random(SEED))) for queue in served(fleet)])
    await asyncio.to_thread(wait_until, lambda: not waiting(wire, fleet), 60, "messages are left")

    for tool in ("Echo", "EchoInProcess"):
        assert (await agent.execute(tool, context, message="served")).output == "served"
    assert [(await one.result(timeout=60)).error for one in running] == [None, None]
    assert [worker.process.poll() for worker in fleet.workers] == [None, None]
    await fleet.looked_again()
    assert sent <= await dropped(fleet) <= sent + doubtful
    assert [times_said(worker) for worker in fleet.workers] == [1, 1]


def times_said(worker: WorkerProcess) -> int:
    return worker.log.read_text().count("is not one of ours")


def waiting(wire: BrokerUnderFire, fleet: Fleet) -> int:
    app = celery_app(wire.url)
    try:
        return backlog(app, served(fleet))
    finally:
        app.close()


@pytest.mark.parametrize("and_then", ["busy", "cut"])
async def test_a_key_that_is_not_a_list_is_dropped_as_well(
    wire: BrokerUnderFire, fleet: Fleet, agent: ExecutorClient, and_then: str
) -> None:
    if not isinstance(wire, ValkeyUnderFire):
        pytest.skip("a queue of RabbitMQ holds nothing but messages")
    await asyncio.to_thread(wait_until, lambda: not waiting(wire, fleet), 60, "messages are left")
    await fleet.looked_again()
    before, keys = await dropped(fleet), [f"forge:{name}" for name in served(fleet)]

    def spoil() -> None:
        with client(wire.url) as server:
            server.mset(dict.fromkeys(keys, "not a list"))
            if and_then == "cut":
                wire.cut()

    await asyncio.to_thread(spoil)
    context = ExecutionContext(working_dir=str(fleet.folder), timeout=60)
    assert (await agent.execute("Echo", context, message="served")).output == "served"
    await reached(
        lambda: dropped(fleet), otherwise="not every key was dropped", when=lambda now: now == before + len(keys)
    )
    assert [times_warned(worker) for worker in fleet.workers] == [0, 0]


def times_warned(worker: WorkerProcess) -> int:
    """How often Celery said what it does when connections are lost, which is not what our settings say."""
    return worker.log.read_text().count("CPendingDeprecationWarning")
