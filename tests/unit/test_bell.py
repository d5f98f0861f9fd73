"""The bell wakes whoever it is meant for, comes back after every outage, and is never more than a hint."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from fakeredis import FakeRedis, FakeServer

from forge_tools import bell
from forge_tools.bell import PREFIX, Listener, Ringer
from forge_tools.broker import speaks_redis
from tests.services import GivenValkey, ValkeyServer, client
from tests.waiting import reached

Valkey = ValkeyServer | GivenValkey
NOWHERE = "redis+socket:///nowhere/valkey.sock"
ANYWHERE = "redis://anywhere/0"


class Heard:
    """Collects ids, and waits for some to come."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self._more = asyncio.Event()

    def __call__(self, ids: list[str]) -> None:
        self.ids += ids
        self._more.set()

    async def wait_for(self, *ids: str) -> None:
        async with asyncio.timeout(30):
            while not set(ids) <= set(self.ids):
                self._more.clear()
                await self._more.wait()


@asynccontextmanager
async def listening(url: str, submitter: str, heard: Heard) -> AsyncIterator[Listener]:
    listener = Listener(url, submitter, heard)
    listener.start()
    try:
        assert await listener.ready(10)
        yield listener
    finally:
        await listener.close()


@asynccontextmanager
async def ringer_on(url: str) -> AsyncIterator[Ringer]:
    ringer = Ringer(url)
    try:
        yield ringer
    finally:
        await ringer.close()


@pytest.fixture(autouse=True)
def reconnects_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bell, "RECONNECT_SECONDS", 0.02)


async def test_a_submitter_hears_the_ids_that_ended(fake_broker: FakeServer) -> None:
    heard = Heard()
    async with listening(ANYWHERE, "me", heard), ringer_on(ANYWHERE) as ringer:
        await ringer.ring({"me": ["one", "two"]})

        await heard.wait_for("one", "two")


async def test_each_submitter_hears_only_its_own(fake_broker: FakeServer) -> None:
    mine, theirs = Heard(), Heard()
    async with (
        listening(ANYWHERE, "me", mine),
        listening(ANYWHERE, "them", theirs),
        ringer_on(ANYWHERE) as ringer,
    ):
        await ringer.ring({"me": ["one"], "them": ["two"], "nobody": ["three"]})
        await mine.wait_for("one")
        await theirs.wait_for("two")

    assert (mine.ids, theirs.ids) == (["one"], ["two"])


async def test_a_flush_of_many_ids_is_one_message(fake_broker: FakeServer) -> None:
    heard = Heard()
    ids = [f"id-{number}" for number in range(1000)]
    async with listening(ANYWHERE, "me", heard), ringer_on(ANYWHERE) as ringer:
        await ringer.ring({"me": ids})
        await heard.wait_for(ids[-1])

    assert heard.ids == ids


async def test_nothing_to_ring_for_is_not_a_round_trip() -> None:
    async with ringer_on(NOWHERE) as ringer:
        await ringer.ring({})


async def test_starting_twice_listens_once(fake_broker: FakeServer) -> None:
    heard = Heard()
    async with listening(ANYWHERE, "me", heard) as listener:
        listener.start()
        await asyncio.sleep(0)
        with FakeRedis(server=fake_broker) as server:
            assert server.pubsub_numsub(PREFIX + "me") == [((PREFIX + "me").encode(), 1)]


async def test_a_listener_whose_connection_is_cut_listens_again(valkey: Valkey) -> None:
    heard = Heard()
    async with listening(valkey.url, "me", heard), ringer_on(valkey.url) as ringer:
        with client(valkey.url) as server:
            server.client_kill_filter(_type="pubsub")

        async with asyncio.timeout(30):
            while "again" not in heard.ids:
                await ringer.ring({"me": ["again"]})
                await asyncio.sleep(0.01)


async def test_a_listener_outlives_its_broker(services: Any) -> None:
    server = ValkeyServer(services.folder("bell-valkey"))
    heard = Heard()
    with server:
        async with listening(server.url, "me", heard) as listener, ringer_on(server.url) as ringer:
            server.kill()
            await reached(lambda: not listener.is_listening, 30)
            server.start()

            assert await listener.ready(10)
            await ringer.ring({"me": ["after"]})
            await heard.wait_for("after")


async def test_a_listener_waits_for_a_broker_that_is_not_there_yet(services: Any) -> None:
    server = ValkeyServer(services.folder("late-valkey"))
    listener = Listener(server.url, "me", Heard())
    listener.start()
    assert not await listener.ready(0.1)

    with server:
        assert await listener.ready(10)
        await listener.close()


@pytest.mark.parametrize("noise", [b"\xff\xfe not utf-8", b"", b"  "])
async def test_what_others_write_to_the_channel_does_not_end_the_listening(
    fake_broker: FakeServer, noise: bytes
) -> None:
    heard = Heard()
    async with listening(ANYWHERE, "me", heard), ringer_on(ANYWHERE) as ringer:
        with FakeRedis(server=fake_broker) as server:
            server.publish(PREFIX + "me", noise)

        async with asyncio.timeout(30):
            while "one" not in heard.ids:
                await ringer.ring({"me": ["one"]})
                await asyncio.sleep(0.01)


async def test_a_ring_into_an_outage_is_lost_quietly_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    async with ringer_on(NOWHERE) as ringer:
        await ringer.ring({"me": ["one"]})
        await ringer.ring({"me": ["two"]})

    warnings = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert warnings == ["Bell unavailable; clients will poll for results"]


async def test_a_ringer_rings_again_after_an_outage(services: Any, caplog: pytest.LogCaptureFixture) -> None:
    server = ValkeyServer(services.folder("ringer-valkey"))
    async with ringer_on(server.url) as ringer:
        await ringer.ring({"me": ["lost"]})
        heard = Heard()
        with server:
            async with listening(server.url, "me", heard):
                await ringer.ring({"me": ["found"]})
                await heard.wait_for("found")

    assert heard.ids == ["found"]


@pytest.mark.parametrize(
    ("url", "carries"),
    [
        ("redis://host/0", True),
        ("rediss://host/0", True),
        ("redis+socket:///tmp/valkey.sock", True),
        ("amqp://host//", False),
        ("memory://", False),
    ],
)
def test_only_redis_and_its_kin_carry_the_bell(url: str, *, carries: bool) -> None:
    assert speaks_redis(url) is carries


async def test_over_another_broker_nobody_listens_and_ringing_does_nothing() -> None:
    listener = Listener("amqp://nowhere//", "me", Heard())
    listener.start()
    async with ringer_on("amqp://nowhere//") as ringer:
        await ringer.ring({"me": ["one"]})

    assert not await listener.ready(0.01)
    assert not listener.is_listening
    await listener.close()


async def test_closing_ends_a_subscription_that_swallowed_its_first_cancellation(valkey_url: str) -> None:
    async def stubborn() -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        await asyncio.sleep(60)

    listener = Listener(valkey_url, "client", lambda _: None)
    listener._task = asyncio.ensure_future(stubborn())
    await asyncio.sleep(0)

    async with asyncio.timeout(30):
        await listener.close()


async def test_a_listener_that_was_closed_does_not_start_again(fake_broker: FakeServer) -> None:
    listener = Listener(ANYWHERE, "me", Heard())
    await listener.close()

    listener.start()

    assert not await listener.ready(0.2)
