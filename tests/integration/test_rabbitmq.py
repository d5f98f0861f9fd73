"""RabbitMQ as the broker, with real workers: `FORGE_TEST_RABBITMQ=1` asks for it, and then it must be installed."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from amqp.exceptions import AMQPError, PreconditionFailed
from kombu.exceptions import OperationalError

from forge_tools.broker.celery_app import backlog, celery_app, open_broker
from forge_tools.broker.message import Broker, Message, queue_name
from forge_tools.client import ExecutorClient
from forge_tools.errors import ErrorCode
from forge_tools.model import ExecutionContext, Lane
from forge_tools.model.execution import Wakeup
from forge_tools.time_limits import CeleryLimits
from tests import rabbit
from tests.conftest import started
from tests.fleet import Fleet
from tests.rabbit import RabbitServer
from tests.server_process import ServiceMissingError
from tests.services import Services
from tests.waiting import reached, wait_until, within

LANES: tuple[Lane, ...] = ("async", "process")
NOT_ASKED_FOR = (
    "RabbitMQ is no wheel that pip installs, and takes 10 s to start: install it and set FORGE_TEST_RABBITMQ=1"
)


@pytest.fixture(scope="module")
def server(services: Services) -> Iterator[RabbitServer]:
    if not rabbit.is_wanted():
        pytest.skip(NOT_ASKED_FOR)
    running = started(lambda: RabbitServer(services.folder("rabbit")).start())
    yield running
    running.stop()


@pytest.fixture(scope="module")
def fleet(server: RabbitServer, services: Services, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A worker a lane on PostgreSQL, which starts after RabbitMQ: nobody needs it where the tests are skipped."""
    postgres = started(services.postgres)
    url = postgres.create_database()
    fleet = Fleet(tmp_path_factory.mktemp("fleet"), server.url, url, kill_grace=1.0)
    fleet.start("async", concurrency=20)
    fleet.start("process")
    yield fleet
    fleet.stop()
    postgres.drop_database(url)


@pytest.fixture
async def client(fleet: Fleet, server: RabbitServer) -> AsyncIterator[ExecutorClient]:
    """A client whose messages meet workers that listen, whatever the test before did to the broker."""
    await asyncio.to_thread(wait_until, lambda: are_heard(server), 60, "no worker consumes")
    async with ExecutorClient(fleet.settings) as client:
        yield client


@pytest.fixture
def context(fleet: Fleet) -> ExecutionContext:
    return ExecutionContext(working_dir=str(fleet.folder), timeout=60)


def are_heard(server: RabbitServer) -> bool:
    """Whether somebody consumes from the default queue of each lane."""
    try:
        with server.connect() as connection, connection.channel() as channel:
            return all(
                channel.queue_declare(queue_name("default", lane), passive=True).consumer_count for lane in LANES
            )
    except (OSError, AMQPError):
        return False


def waiting(server: RabbitServer, *queues: str) -> int | None:
    """How many messages wait; None if the broker does not say so in time."""
    try:
        return backlog(celery_app(server.url), queues)
    except (OSError, AMQPError, OperationalError):
        return None


async def until_confirmed(broker: Broker, message: Message, server: RabbitServer) -> None:
    """Publish until the broker confirms it and has something to deliver.

    A publisher gives up on a broker that takes long, which on a slow machine may be the first time that a queue is used.
    A message that was confirmed too late waits there twice.
    """
    queue = queue_name(message.queue, message.lane)
    for _ in within(120, f"nothing arrives in {queue}"):
        broker.publish(message)
        with suppress(AssertionError):
            await asyncio.to_thread(wait_until, lambda: not broker.is_down and waiting(server, queue), 5)
            return


def starts(mark: Path) -> int:
    return len(mark.read_text().splitlines()) if mark.exists() else 0


def test_a_run_that_asks_for_rabbitmq_where_there_is_none_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")

    with pytest.raises(ServiceMissingError, match=r"apt-get install rabbitmq-server.*unset FORGE_TEST_RABBITMQ"):
        rabbit.found("rabbitmq-server")


@pytest.mark.parametrize("lane", LANES)
def test_queues_are_quorum_queues(fleet: Fleet, server: RabbitServer, lane: Lane) -> None:
    wait_until(lambda: are_heard(server), 60, "no worker consumes")

    with server.connect() as connection, pytest.raises(PreconditionFailed, match="'quorum'"):
        connection.channel().queue_declare(queue_name("default", lane), durable=True, auto_delete=False)


@pytest.mark.parametrize("tool", ["Echo", "EchoInProcess"])
async def test_a_call_of_either_lane_is_answered(client: ExecutorClient, context: ExecutionContext, tool: str) -> None:
    result = await client.execute(tool, context, message="over AMQP")

    assert result.output == "over AMQP"


async def test_a_burst_is_answered_and_leaves_no_message(
    client: ExecutorClient, context: ExecutionContext, server: RabbitServer
) -> None:
    calls = [client.execute("Echo", context, message=str(n)) for n in range(300)]
    calls += [client.execute("EchoInProcess", context, message=str(n)) for n in range(40)]

    results = await asyncio.gather(*calls)

    assert [result.output for result in results] == [*map(str, range(300)), *map(str, range(40))]
    queues = [queue_name("default", lane) for lane in LANES]
    await asyncio.to_thread(wait_until, lambda: waiting(server, *queues) == 0, 30, "messages are left")


@pytest.mark.parametrize("tool", ["Sleep", "Block"])
async def test_a_running_call_is_cancelled(
    client: ExecutorClient, context: ExecutionContext, tmp_path: Path, tool: str
) -> None:
    mark = tmp_path / "mark"
    call = await client.submit(tool, {"seconds": 50, "mark": str(mark)}, context)
    await asyncio.to_thread(wait_until, mark.exists, 20, "the body did not start")

    await call.cancel()

    assert (await call.result(timeout=20)).error_code == ErrorCode.CANCELLED


@pytest.mark.parametrize("tool", ["Sleep", "Block"])
async def test_a_call_ends_at_its_timeout(client: ExecutorClient, fleet: Fleet, tmp_path: Path, tool: str) -> None:
    context = ExecutionContext(working_dir=str(fleet.folder), timeout=1)

    result = await client.execute(tool, context, seconds=50, mark=str(tmp_path / "mark"))

    assert (result.error_code, result.error) == (ErrorCode.TIMEOUT, "Tool timed out after 1s")


async def test_a_call_for_one_host_runs_there(client: ExecutorClient, context: ExecutionContext, fleet: Fleet) -> None:
    call = await client.submit("Echo", {"message": "here"}, context, queue=f"host.{fleet.settings.hostname}")

    assert (await call.result(timeout=20)).output == "here"


async def test_what_waits_is_counted_and_a_queue_that_is_not_there_holds_nothing(server: RabbitServer) -> None:
    broker = open_broker(server.url)
    for lane in LANES:
        await until_confirmed(broker, Message("unserved", lane, (Wakeup("an id", 0),), CeleryLimits(1, 2)), server)
    await broker.close()

    queues = [queue_name("unserved", lane) for lane in LANES]
    with server.connect() as connection, connection.channel() as channel:
        each = [channel.queue_declare(queue, passive=True).message_count for queue in queues]
    await asyncio.to_thread(
        wait_until, lambda: waiting(server, "forge.never.seen", *queues) == sum(each), 30, f"they are not {each}"
    )


async def test_a_broker_that_dies_under_load_and_returns_loses_nothing_and_repeats_nothing(
    client: ExecutorClient, context: ExecutionContext, server: RabbitServer, tmp_path: Path
) -> None:
    marks = [tmp_path / f"mark-{number}" for number in range(90)]
    tools = ["Block" if number % 3 else "Sleep" for number in range(90)]
    parameters = [{"seconds": 0.2, "mark": str(mark)} for mark in marks]
    calls = [await client.submit(tool, one, context) for tool, one in zip(tools[:45], parameters[:45], strict=True)]
    await asyncio.to_thread(wait_until, lambda: sum(map(starts, marks)) > 3, 20, "nothing started")
    server.kill()
    calls += [await client.submit(tool, one, context) for tool, one in zip(tools[45:], parameters[45:], strict=True)]
    server.start()

    results = [await call.result(timeout=60) for call in calls]

    assert [result.error for result in results if not result.success] == []
    assert [starts(mark) for mark in marks] == [1] * 90


async def test_connections_that_are_cut_under_load_cost_no_call(
    client: ExecutorClient, context: ExecutionContext, server: RabbitServer, tmp_path: Path
) -> None:
    marks = [tmp_path / f"mark-{number}" for number in range(30)]
    calls = [await client.submit("Block", {"seconds": 0.2, "mark": str(mark)}, context) for mark in marks]

    await asyncio.to_thread(server.cut)
    results = [await call.result(timeout=60) for call in calls]

    assert [result.error for result in results if not result.success] == []
    assert [starts(mark) for mark in marks] == [1] * 30


async def test_a_frozen_broker_blocks_nobody_and_is_used_again_when_it_thaws(
    client: ExecutorClient, context: ExecutionContext, server: RabbitServer
) -> None:
    frozen = psutil.Process(server.process.pid)
    await client.execute("Echo", context, message="connected")
    frozen.suspend()
    try:
        began = time.monotonic()
        results = [await client.execute(tool, context, message="frozen") for tool in ("Echo", "EchoInProcess") * 3]
        seconds = time.monotonic() - began
    finally:
        frozen.resume()

    assert [result.output for result in results] == ["frozen"] * 6
    assert seconds < 30
    assert (await client.execute("Echo", context, message="thawed")).output == "thawed"


async def test_a_publisher_lets_go_of_a_frozen_broker(server: RabbitServer) -> None:
    """A thread that waits for ever would keep its program from ending."""
    broker = open_broker(server.url)
    message = Message("frozen", "async", (Wakeup("an id", 0),), CeleryLimits(1, 2))
    await until_confirmed(broker, message, server)
    frozen = psutil.Process(server.process.pid)
    frozen.suspend()
    try:
        broker.publish(message)
        await reached(lambda: broker.is_down, 40)
    finally:
        frozen.resume()

    await broker.close()


async def test_a_publisher_whose_connection_was_cut_loses_no_message(server: RabbitServer) -> None:
    broker = open_broker(server.url)
    message = Message("cut", "async", (Wakeup("an id", 0),), CeleryLimits(1, 2))
    await until_confirmed(broker, message, server)
    queue = queue_name(message.queue, message.lane)
    before = await reached(lambda: waiting(server, queue), 30)

    await asyncio.to_thread(server.cut)
    broker.publish(message)

    await asyncio.to_thread(wait_until, lambda: waiting(server, queue) == before + 1, 30, "the message is lost")
    assert not broker.is_down
    await broker.close()


async def test_a_worker_that_no_longer_consumes_leaves(
    fleet: Fleet, client: ExecutorClient, context: ExecutionContext
) -> None:
    worker = await asyncio.to_thread(fleet.start, "async", queues="deaf", consumption_interval="1")
    await client.catalogue.refresh()
    await (await client.submit("Deafen", context=context, queue="deaf")).result(timeout=20)

    calls = [await client.submit("Echo", {"message": "pulled"}, context, queue="deaf") for _ in range(3)]

    assert [(await call.result(timeout=20)).output for call in calls] == ["pulled"] * 3
    assert await asyncio.to_thread(worker.process.wait, 60) in (0, -signal.SIGTERM)
    assert "none arrives here; this worker ends" in worker.log.read_text()
