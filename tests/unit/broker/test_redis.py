"""One kept connection publishes, notifies and listens; it comes back after every outage, and nobody waits for it."""

import asyncio
import base64
import json
import logging
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import psutil
import pytest
from fakeredis import FakeRedis, TcpFakeServer
from kombu import Queue

from forge_tools.broker import redis as redis_module
from forge_tools.broker.celery_app import celery_app, open_broker, speaks_redis
from forge_tools.broker.message import BULK, CHANNEL_PREFIX, TASK, Message
from forge_tools.broker.redis import RedisBroker
from forge_tools.config import Settings
from forge_tools.errors import ConfigurationError
from forge_tools.model.execution import Wakeup
from forge_tools.time_limits import CeleryLimits
from tests.services import GivenValkey, ValkeyServer, client
from tests.waiting import reached

Valkey = ValkeyServer | GivenValkey
NOWHERE = "redis+socket:///nowhere/valkey.sock"
AWAY = "Broker unavailable; workers find calls in SQL, and clients find results there"


class Heard(list[bytes]):
    """Collects notifications."""

    def __call__(self, notification: bytes) -> None:
        self.append(notification)

    async def wait_for(self, notification: bytes, again: Callable[[], object] = lambda: None) -> None:
        async with asyncio.timeout(30):
            while notification not in self:
                again()
                await asyncio.sleep(0.01)


@asynccontextmanager
async def broker_at(url: str, channel: str | None = None, heard: Heard | None = None) -> AsyncIterator[RedisBroker]:
    broker = RedisBroker(url)
    try:
        if channel is not None:
            broker.listen(channel, heard if heard is not None else Heard())
            await reached(lambda: broker.is_listening, 30)
        yield broker
    finally:
        await broker.close()


@pytest.fixture(autouse=True)
def comes_back_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_module, "RECONNECT_SECONDS", 0.02)
    monkeypatch.setattr(redis_module, "PAUSE_SECONDS", 0.05)


@pytest.fixture
def silent_server() -> Iterator[str]:
    """A port that accepts connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"redis://127.0.0.1:{server.getsockname()[1]}/0"


@pytest.fixture
def fake_server() -> Iterator[TcpFakeServer]:
    """A Redis in this process, over TCP."""
    with TcpFakeServer(("127.0.0.1", 0)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def message(count: int = 1, *, first: int = 0) -> Message:
    return Message("default", "async", tuple(Wakeup(f"id-{first + n}", 0) for n in range(count)), CeleryLimits(10, 12))


def waiting(server: Any, queue: str = "forge.default.async") -> list[dict[str, Any]]:
    """What waits in a queue, oldest first."""
    return [json.loads(one) for one in reversed(server.lrange(f"forge:{queue}", 0, -1))]


def wakeups(entry: dict[str, Any]) -> list[list[Any]]:
    arguments, _, _ = json.loads(base64.b64decode(entry["body"]))
    return list(arguments[0])


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_message_is_written_as_celery_would_with_ids_and_limits(fake_server: TcpFakeServer) -> None:
    host, port = fake_server.server_address[:2]
    async with broker_at(f"redis://{host!s}:{port}/0") as broker:
        broker.publish(message(2))
        broker.publish(message(first=7))

    with FakeRedis(server=fake_server.fake_server) as server:
        first, second = waiting(server)
    assert (first["headers"]["task"], first["headers"]["timelimit"]) == (TASK, [12, 10])
    assert (wakeups(first), wakeups(second)) == ([["id-0", 0], ["id-1", 0]], [["id-7", 0]])
    assert not broker.is_down


async def test_bulk_waits_in_the_list_that_kombu_reads_last(valkey: Valkey) -> None:
    async with broker_at(valkey.url) as broker:
        broker.publish(replace(message(2), is_bulk=True))
        broker.publish(message(first=7))

    app = celery_app(valkey.url)
    with app.connection_for_read() as connection:
        channel: Any = connection.default_channel
        queue = Queue("forge.default.async", channel=channel)
        read = [queue.get(no_ack=True) for _ in range(2)]
        assert channel.priority_steps == [0, BULK]
    assert [one.payload[0][0] for one in read] == [[["id-7", 0]], [["id-0", 0], ["id-1", 0]]]
    assert [one.properties["priority"] for one in read] == [0, BULK]
    app.close()


async def test_kombu_reads_the_database_that_the_url_of_a_socket_names(valkey: Valkey) -> None:
    url = Settings.load(broker_url=f"{valkey.url}?virtual_host=3").broker
    async with broker_at(url) as broker:
        broker.publish(message())

    with celery_app(url) as app, app.connection_for_read() as connection:
        queue = Queue("forge.default.async", channel=connection.default_channel)
        assert queue.get(no_ack=True).payload[0][0] == [["id-0", 0]]


async def test_each_listener_hears_only_its_own_while_its_connection_publishes(valkey: Valkey) -> None:
    mine, theirs = Heard(), Heard()
    async with broker_at(valkey.url, "me", mine) as broker, broker_at(valkey.url, "them", theirs) as other:
        for _ in range(50):
            broker.publish(message())
        broker.notify("me", b"one two")
        other.notify("them", b"three")
        broker.notify("nobody", b"four")
        await mine.wait_for(b"one two")
        await theirs.wait_for(b"three")

    with client(valkey.url) as server:
        assert len(waiting(server)) == 50
    assert (mine, theirs) == ([b"one two"], [b"three"])


async def test_a_loop_that_is_busy_does_not_take_its_broker_for_gone(
    valkey: Valkey, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(redis_module, "CONNECT_SECONDS", 0.3)
    async with broker_at(valkey.url) as broker:
        broker.listen("me", Heard())
        await asyncio.sleep(0)
        time.sleep(0.5)  # the caller imports or computes
        await reached(lambda: broker.is_listening)

    assert AWAY not in warnings(caplog)


async def test_whoever_sends_before_it_listens_listens_on_the_same_connection(valkey: Valkey) -> None:
    heard = Heard()
    async with broker_at(valkey.url) as broker:
        broker.publish(message())
        broker.listen("me", heard)
        broker.listen("me", heard)
        await reached(lambda: broker.is_listening, 30)
        broker.notify("me", b"once")
        await heard.wait_for(b"once")
        with client(valkey.url) as server:
            assert server.pubsub_numsub(f"{CHANNEL_PREFIX}me") == [(f"{CHANNEL_PREFIX}me".encode(), 1)]

    assert heard == [b"once"]


async def test_a_connection_that_is_cut_is_made_again_and_what_may_be_lost_is_said(valkey: Valkey) -> None:
    heard, missed = Heard(), list[bool]()
    async with broker_at(valkey.url) as broker:
        broker.listen("me", heard, lambda: missed.append(True))
        await reached(lambda: broker.is_listening, 30)
        with client(valkey.url) as server:
            server.client_kill_filter(_type="pubsub")
        await reached(lambda: missed, 30)
        await reached(lambda: broker.is_listening, 30)

        broker.notify("me", b"again")
        await heard.wait_for(b"again")


async def test_a_broker_that_dies_and_comes_back_is_found_again(
    services: Any, caplog: pytest.LogCaptureFixture
) -> None:
    server, heard = ValkeyServer(services.folder("broker-valkey")), Heard()
    with server:
        async with broker_at(server.url, "me", heard) as broker:
            server.kill()
            await reached(lambda: not broker.is_listening, 30)
            broker.publish(message())
            await reached(lambda: broker.is_down, 30)
            for _ in range(20):
                broker.publish(message())
                await asyncio.sleep(0.005)
            server.start()

            await heard.wait_for(b"after", lambda: broker.notify("me", b"after"))
            assert not broker.is_down
    assert warnings(caplog) == [AWAY]


async def test_a_listener_waits_for_a_broker_that_is_not_there_yet(services: Any) -> None:
    server = ValkeyServer(services.folder("late-valkey"))
    broker = RedisBroker(server.url)
    broker.listen("me", Heard())
    await reached(lambda: broker.is_down, 30)

    with server:
        await reached(lambda: broker.is_listening, 30)
        await broker.close()


async def test_a_broker_that_is_away_neither_fails_nor_delays_who_sends(caplog: pytest.LogCaptureFixture) -> None:
    async with broker_at(NOWHERE) as broker:
        broker.publish(message())
        assert not broker.is_down  # it came back before the attempt was over
        await reached(lambda: broker.is_down, 30)
        for _ in range(20):
            broker.notify("me", b"lost")
            await asyncio.sleep(0.005)

    assert warnings(caplog) == [AWAY]


async def test_what_the_server_refuses_is_said(valkey: Valkey, caplog: pytest.LogCaptureFixture) -> None:
    with client(valkey.url) as server:
        server.set("forge:forge.default.async", "no list")
    async with broker_at(valkey.url) as broker:
        broker.publish(message())
        await reached(lambda: broker.is_down, 30)
    assert "WRONGTYPE" in str(vars(caplog.records[0])["error"])


async def test_a_server_that_falls_silent_is_left(
    services: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(redis_module, "SILENCE_SECONDS", 0.1)
    heard = Heard()
    with ValkeyServer(services.folder("silent-valkey")) as server:
        async with broker_at(server.url, "me", heard) as broker:
            await asyncio.sleep(0.5)
            assert broker.is_listening, "it answers when it is asked"
            frozen = psutil.Process(server.process.pid)
            frozen.suspend()
            try:
                await reached(lambda: not broker.is_listening, 30)
            finally:
                frozen.resume()
            await heard.wait_for(b"back", lambda: broker.notify("me", b"back"))


@pytest.mark.parametrize("noise", [b"\xff\xfe not utf-8", b"", b"  ", b"\r\n*1\r\n$4\r\nPING\r\n"])
async def test_whatever_others_send_to_the_channel_is_heard_as_it_is(valkey: Valkey, noise: bytes) -> None:
    heard = Heard()
    async with broker_at(valkey.url, "me", heard) as broker:
        with client(valkey.url) as server:
            server.publish(f"{CHANNEL_PREFIX}me", noise)
        broker.notify("me", b"one")
        await heard.wait_for(b"one")

    assert heard == [noise, b"one"]


@pytest.mark.parametrize(
    "said",
    [b"what is this\r\n", b"$99999999\r\n" + b"x" * 100_000, b"$-7\r\n", b"*-2\r\n"],
    ids=["nonsense", "does not end", "a length that leads back", "a negative length"],
)
async def test_a_server_that_talks_nonsense_or_without_end_is_left(
    said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_module, "MOST_BYTES", 50_000)
    greeted, left = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            for _ in range(100):
                command = await reader.read(1000)
                if b"SUBSCRIBE" in command:
                    writer.write(said)
                    greeted.set()
                else:
                    writer.write(b"+OK\r\n" * command.count(b"*"))
        left.set()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server, asyncio.timeout(30):
        port = server.sockets[0].getsockname()[1]
        async with broker_at(f"redis://127.0.0.1:{port}/0") as broker:
            broker.listen("me", Heard())
            await greeted.wait()
            await left.wait()


@pytest.mark.parametrize("null", [b"$-1\r\n", b"*-1\r\n", b"_\r\n"])
async def test_what_follows_a_null_is_read(null: bytes, caplog: pytest.LogCaptureFixture) -> None:
    left = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            for _ in range(100):
                command = await reader.read(1000)
                writer.write(null + b"-ERR no\r\n" if b"LPUSH" in command else b"+OK\r\n" * command.count(b"*"))
        writer.close()
        left.set()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server, asyncio.timeout(30):
        port = server.sockets[0].getsockname()[1]
        async with broker_at(f"redis://127.0.0.1:{port}/0") as broker:
            broker.publish(message())
            await reached(lambda: broker.is_down, 30)
        await left.wait()

    assert vars(caplog.records[0])["error"] == "ERR no"


async def test_closing_waits_for_a_silent_broker_only_so_long(
    silent_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_module, "CLOSE_SECONDS", 0.3)
    broker = RedisBroker(silent_server)
    broker.publish(message())
    await asyncio.sleep(0)
    started = time.monotonic()

    await broker.close()

    assert time.monotonic() - started < 30


async def test_what_was_never_used_closes_at_once_and_what_was_closed_does_nothing(valkey: Valkey) -> None:
    broker = RedisBroker(valkey.url)
    async with asyncio.timeout(30):
        await broker.close()

    broker.publish(message())
    broker.listen("me", Heard())
    await asyncio.sleep(0.1)

    with client(valkey.url) as server:
        assert waiting(server) == []
        assert server.pubsub_numsub(f"{CHANNEL_PREFIX}me") == [(f"{CHANNEL_PREFIX}me".encode(), 0)]


def test_what_is_not_a_url_of_a_broker_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="FORGE_BROKER_URL"):
        open_broker("redis://host/no-number?db=x")


@pytest.mark.parametrize(
    ("url", "is_direct"),
    [
        ("redis://host/0", True),
        ("rediss://host/0", True),
        ("redis+socket:///tmp/valkey.sock", True),
        ("amqp://host//", False),
        ("memory://", False),
    ],
)
def test_only_redis_and_its_kin_are_reached_directly(url: str, *, is_direct: bool) -> None:
    assert speaks_redis(url) is is_direct


async def test_another_broker_carries_no_notifications() -> None:
    broker = open_broker("amqp://nowhere//")
    broker.listen("me", Heard())
    broker.notify("me", b"one")

    assert not broker.is_listening
    await broker.close()
