"""Whatever bytes a broker holds, busy workers drop them, count them, say so once, and go on."""

import asyncio
import base64
import json
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import pytest
from amqp import Message

from forge_tools.client import ExecutorClient
from forge_tools.dispatch import BULK, TASK, backlog, celery_app, queue_name
from forge_tools.dispatch.app import list_name
from forge_tools.records import ExecutionContext, Lane, new_id
from forge_tools.records.places import host_queue
from forge_tools.storage import open_store
from tests import rabbit
from tests.conftest import started
from tests.fleet import Fleet, WorkerProcess
from tests.rabbit import RabbitServer
from tests.services import Services, ValkeyServer, client
from tests.waiting import reached, wait_until

LANES: tuple[Lane, ...] = ("async", "process")
SEED = 20


class Wire(Protocol):
    """Writes raw messages into the queues of one broker; returns how many."""

    url: str

    def put(self, queue: str, messages: Sequence[bytes]) -> int: ...


class ValkeyWire:
    def __init__(self, url: str) -> None:
        self.url = url

    def put(self, queue: str, messages: Sequence[bytes]) -> int:
        with client(self.url) as server:
            for priority in (0, BULK):
                server.lpush(f"forge:{list_name(queue, priority)}", *messages)
        return 2 * len(messages)


class RawMessage(Message):
    """A message whose properties are whatever bytes RabbitMQ lets through."""

    raw = b"\0\0"

    def _serialize_properties(self) -> bytes:
        return self.raw


class RabbitWire:
    """Sends bodies without properties, with those of Celery, and with properties that are as bad; none of these count."""

    def __init__(self, server: RabbitServer) -> None:
        self.url, self._server = server.url, server

    def put(self, queue: str, messages: Sequence[bytes]) -> int:
        sent = [Message(message) for message in messages]
        sent += [Message(message, content_type="application/json", application_headers=HEADERS) for message in messages]
        sent += [_raw(properties) for properties in PROPERTIES]
        sent += [Message(rings(1), application_headers=HEADERS | {"compression": "bzip2"}, priority=255)]
        with self._server.connect() as connection, connection.channel() as channel:
            channel.confirm_select()
            for message in sent:
                channel.basic_publish(message, routing_key=queue)
        return len(sent) - 1


def _raw(properties: bytes) -> RawMessage:
    message = RawMessage(b"no rings")
    message.raw = properties
    return message


HEADERS = {"task": "celery.map", "id": "x", "eta": "never", "expires": [], "timelimit": "no", "retries": {}}
PROPERTIES = (
    b"\x80\x00\x02\xff\xfe",  # a content type that is not UTF-8
    b"\x04\x00\x02\xff\xfe",  # a correlation id of the same kind
    b"\x00\x40" + b"\xff" * 8,  # a time that no calendar has
    b"\x20\x00\x00\x00\x00\x0b\x01tT" + b"\xff" * 8,  # the same in a header
    b"\x20\x00\x00\x00\x00\x09\x01xS\x00\x00\x00\x02\xff\xfe",  # a header that is not UTF-8
)


def rings(count: int) -> bytes:
    """A body as Celery writes it, which wakes nobody."""
    return json.dumps([[[[new_id(), 0] for _ in range(count)]], {}, {}]).encode()


def entry(content: bytes, /, **changed: Any) -> bytes:
    """A message as kombu writes it into a list."""
    properties = {"delivery_tag": new_id(), "delivery_info": {}, "body_encoding": "base64"}
    fields = {"headers": {"task": TASK, "id": "x"}, "properties": properties, "content-type": "application/json"}
    envelope = fields | {"content-encoding": "utf-8", "body": base64.b64encode(content).decode()}
    return json.dumps(envelope | changed).encode()


def bad_messages() -> list[bytes]:
    """The shapes that ended workers, calls of Celery's own tasks, valid messages cut short, and noise."""
    chance, valid = random.Random(SEED), entry(rings(1))
    celerys = json.dumps([["celery.backend_cleanup", [[]]], {}, {"callbacks": [{"task": "celery.map"}]}]).encode()
    return [
        *(b"garbage", b"\xff\xfe\x00", b"", b"[]", b"{}", b"7", b"null", b'"text"', b"[" * 50_000, b"1" * 10_000),
        *(entry(b"", body="no base64!"), entry(b"", body=7), entry(b"", body=None), entry(b"\xff"), entry(b"[[7]]")),
        *(entry(b"[]", properties=[]), entry(b"[]", headers=None), entry(celerys), celerys),
        *(entry(rings(0)), entry(rings(129)), entry(rings(20_000)), rings(0), rings(20_000)),
        *(valid[: chance.randrange(1, len(valid) - 1)] for _ in range(20)),
        *map(bytes, (chance.randbytes(chance.randrange(1, 200)) for _ in range(40))),
    ]


def changed_messages() -> list[bytes]:
    """A valid message of which chance has changed a few bytes; it may be valid still."""
    chance = random.Random(SEED)
    messages = [bytearray(entry(rings(1))) for _ in range(60)]
    for message in messages:
        for _ in range(3):
            message[chance.randrange(len(message))] = chance.randrange(256)
    return list(map(bytes, messages))


@pytest.fixture(scope="module", params=["valkey", "rabbitmq"])
def wire(request: pytest.FixtureRequest, services: Services) -> Iterator[Wire]:
    if request.param == "valkey":
        with started(lambda: ValkeyServer(services.folder("valkey-bytes"))) as server:
            yield ValkeyWire(server.url)
        return
    if not rabbit.is_wanted():
        pytest.skip("FORGE_TEST_RABBITMQ=1 asks for it")
    running = started(lambda: RabbitServer(services.folder("rabbit-bytes")).start())
    yield RabbitWire(running)
    running.stop()


@pytest.fixture(scope="module")
def fleet(wire: Wire, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
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
    names = ("default", "background", host_queue(fleet.settings.hostname))
    return [queue_name(name, lane) for name in names for lane in LANES]


async def test_no_bytes_end_a_busy_worker_or_what_it_runs(
    wire: Wire, fleet: Fleet, agent: ExecutorClient, tmp_path: Path
) -> None:
    context, tools = ExecutionContext(working_dir=str(fleet.folder), timeout=60), ("Sleep", "Block")
    marks = [tmp_path / tool for tool in tools]
    asked = [{"seconds": 8, "mark": str(mark)} for mark in marks]
    running = [await agent.submit(tool, context, one) for tool, one in zip(tools, asked, strict=True)]
    await asyncio.to_thread(wait_until, lambda: all(mark.exists() for mark in marks), 30, "nothing runs")

    doubtful = sum([await asyncio.to_thread(wire.put, queue, changed_messages()) for queue in served(fleet)])
    sent = sum([await asyncio.to_thread(wire.put, queue, bad_messages()) for queue in served(fleet)])
    await asyncio.to_thread(wait_until, lambda: not waiting(wire, fleet), 60, "messages are left")

    for tool in ("Echo", "EchoInProcess"):
        assert (await agent.execute(tool, context, message="served")).output == "served"
    assert [(await one.result(timeout=60)).error for one in running] == [None, None]
    assert [worker.process.poll() for worker in fleet.workers] == [None, None]
    await fleet.looked_again()
    assert sent <= await dropped(fleet) <= sent + doubtful
    assert [times_said(worker) for worker in fleet.workers] == [1, 1]


def times_said(worker: WorkerProcess) -> int:
    return worker.log.read_text().count("is no message of ours")


def waiting(wire: Wire, fleet: Fleet) -> int:
    app = celery_app(wire.url)
    try:
        return backlog(app, served(fleet))
    finally:
        app.close()


async def test_a_key_that_is_no_list_is_dropped_as_well(wire: Wire, fleet: Fleet, agent: ExecutorClient) -> None:
    if not isinstance(wire, ValkeyWire):
        pytest.skip("a queue of RabbitMQ holds nothing but messages")
    before, keys = await dropped(fleet), [f"forge:{name}" for name in served(fleet)]

    def spoil() -> None:
        with client(wire.url) as server:
            for key in keys:
                server.set(key, "no list")

    await asyncio.to_thread(spoil)
    context = ExecutionContext(working_dir=str(fleet.folder), timeout=60)
    assert (await agent.execute("Echo", context, message="served")).output == "served"
    await reached(
        lambda: dropped(fleet), otherwise="not every key was dropped", when=lambda now: now == before + len(keys)
    )
