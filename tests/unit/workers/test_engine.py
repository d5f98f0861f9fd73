"""The engine claims only what it can run, settles every claim, and stops within its time: on SQLite and Valkey."""

import asyncio
import json
import logging
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from forge_tools.broker.message import BULK, list_name
from forge_tools.client import ExecutorClient
from forge_tools.config import Settings
from forge_tools.errors import (
    ConfigurationError,
    DatabaseUnavailableError,
    ErrorCode,
    ForgeError,
    StorageError,
    ToolError,
)
from forge_tools.model import ExecutionStatus, new_id
from forge_tools.model.execution import Claim, Scope, Wakeup
from forge_tools.storage import Store
from forge_tools.storage.heartbeat import Answers, Heartbeat
from forge_tools.tool.base import BaseTool, Capabilities, ExecutionContext, ToolCategory, ToolParameter, ToolResult
from tests.migrated import migrated
from tests.services import client as valkey_client
from tests.unit.workers.engines import begun, setup_of, take, threads
from tests.waiting import reached, wait_until
from workers import engine as module
from workers.engine import Engine


class Nap(BaseTool):
    """Sleep a little."""

    begun: ClassVar[set[str | None]] = set()
    name = "Nap"
    category = ToolCategory.OTHER
    lane = "async"
    capabilities = Capabilities(idempotent=True)
    parameters = (ToolParameter(name="seconds", type="number", description="How long.", required=False, default=0),)

    async def _execute(self, context: ExecutionContext, seconds: float) -> ToolResult:
        self.begun.add(context.execution_id)
        await asyncio.sleep(seconds)
        return ToolResult.ok(seconds)


class Once(Nap):
    """Sleep a little; not to be repeated."""

    name = "Once"
    capabilities = Capabilities()


NAMES = ("forge-engine", "forge-tools-loop")


class NeverReady(Nap):
    """Hang at the start, until it is to fail."""

    name = "NeverReady"
    is_over = threading.Event()

    async def initialize(self, context: ExecutionContext) -> None:
        await reached(self.is_over.is_set)
        raise RuntimeError("given up")


class Unready(Nap):
    """Fail at the start."""

    name = "Unready"

    async def initialize(self, context: ExecutionContext) -> None:
        raise RuntimeError("no licence")


@pytest.fixture
def settings(tmp_path: Path, valkey_url: str) -> Settings:
    """Heartbeats are slow, so that what is quick here is quick without them."""
    settings = Settings.load(
        home=tmp_path,
        broker_url=valkey_url,
        database_url=f"sqlite:///{tmp_path / 'forge.db'}",
        heartbeat=3.0,
        kill_grace=0.5,
    )
    migrated(settings.database)
    return settings


def build(settings: Settings, *tools: type[BaseTool], concurrency: int = 10) -> Engine:
    return Engine(setup_of(settings, *(tools or (Nap, Once)), concurrency=concurrency))


@pytest.fixture
def engine(settings: Settings) -> Iterator[Engine]:
    engine = begun(build(settings))
    yield engine
    engine.stop(drain=0)


@pytest.fixture
async def client(settings: Settings, engine: Engine) -> AsyncIterator[ExecutorClient]:
    """It notifies nobody, so that the engine hears of its calls from the test alone."""
    async with ExecutorClient(settings.model_copy(update={"broker_url": "redis+socket:///nowhere/x.sock"})) as client:
        yield client


async def submit(client: ExecutorClient, seconds: float = 0, tool: str = "Nap", **options: Any) -> str:
    context = ExecutionContext(working_dir=".")
    return (await client.submit(tool, {"seconds": seconds}, context, **options)).id


def hold_claims(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """Keep claims under way, after SQL has them, until told to let go."""
    began, let_go, claim = threading.Event(), threading.Event(), engine.worker.store.queue.claim

    async def held(wakeups: Sequence[Wakeup], scope: Scope) -> list[Claim]:
        claims = await claim(wakeups, scope)
        began.set()
        await asyncio.to_thread(let_go.wait, 10)
        return claims

    monkeypatch.setattr(engine.worker.store.queue, "claim", held)
    return began, let_go


async def test_what_a_message_names_is_run_and_recorded(engine: Engine, client: ExecutorClient) -> None:
    one = await submit(client)

    await take(engine, one)

    record = await client.history.get((await client.calls.attach(one).result(30)).metadata["execution_id"])
    assert (record.status, record.worker_id, record.attempt) == (ExecutionStatus.SUCCEEDED, engine.worker_id, 1)


@pytest.mark.parametrize("priority", [0, BULK])
async def test_wakeups_that_find_no_slot_are_published_again_for_others(
    settings: Settings, client: ExecutorClient, engine: Engine, priority: int
) -> None:
    small = begun(build(settings, concurrency=1))
    ids = [await submit(client, 0.3) for _ in range(3)]

    await take(small, *ids, is_bulk=priority == BULK)

    with valkey_client(settings.broker) as server:
        queue = f"forge:{list_name('forge.default.async', priority)}"
        await reached(lambda: server.llen(queue))
        [message] = server.lrange(queue, 0, -1)
    assert json.loads(message)["headers"]["timelimit"] == list(reversed(settings.time_limits.limits(120)))
    await asyncio.to_thread(small.stop)
    assert [(await client.history.get(one)).status for one in ids] == ["succeeded", "queued", "queued"]


async def test_a_worker_has_loaded_its_whole_store_when_it_begins(engine: Engine) -> None:
    """Later it may be out of descriptors, and a service that cannot load its part would end it."""
    parts = {name for name, part in vars(Store).items() if isinstance(part, cached_property)}

    assert {"transitions", "rollups"} <= parts <= vars(engine.worker.store).keys()


async def test_a_slot_kept_for_a_message_in_vain_goes_to_who_waits(settings: Settings, client: ExecutorClient) -> None:
    small = begun(build(settings, concurrency=1))
    one = await submit(client)

    await asyncio.gather(take(small, new_id()), take(small, one))

    assert (await client.calls.attach(one).result(1.5)).success
    await asyncio.to_thread(small.stop)


async def test_a_claim_under_way_when_the_engine_stops_is_handed_back(
    engine: Engine, client: ExecutorClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, let_go = hold_claims(engine, monkeypatch)
    one = await submit(client, tool="Once")
    taking = asyncio.ensure_future(take(engine, one))
    await asyncio.to_thread(began.wait, 10)

    stopping = asyncio.ensure_future(asyncio.to_thread(engine.stop, 0))
    await asyncio.sleep(0.2)
    let_go.set()
    await asyncio.gather(stopping, taking)

    record = await client.history.get(one)
    assert (record.status, record.attempt) == (ExecutionStatus.QUEUED, 0)


async def test_a_body_gets_the_drain_to_finish_in(engine: Engine, client: ExecutorClient) -> None:
    one = await submit(client, 0.5)
    await take(engine, one)
    await reached(lambda: one in Nap.begun)

    await asyncio.to_thread(engine.stop, 5)

    assert (await client.history.get(one)).status == ExecutionStatus.SUCCEEDED


async def test_a_second_stop_cuts_the_first_one_short(engine: Engine, client: ExecutorClient) -> None:
    idempotent, once = await submit(client, 60), await submit(client, 60, tool="Once")
    await take(engine, idempotent, once)
    await reached(lambda: Nap.begun >= {idempotent, once})
    started = time.monotonic()

    patient = asyncio.ensure_future(asyncio.to_thread(engine.stop, 30))
    await asyncio.sleep(0.2)
    await asyncio.to_thread(engine.stop, 0)
    await patient

    assert time.monotonic() - started < 20
    assert [(await client.history.get(one)).status for one in (idempotent, once)] == ["queued", "lost"]


async def test_messages_that_come_after_the_end_are_dropped_and_block_nobody(
    engine: Engine, client: ExecutorClient
) -> None:
    one = await submit(client)
    await asyncio.to_thread(engine.stop, 0)

    engine.worker.claims.hand_over([Wakeup(one, 0)], "default", is_bulk=False, taken=lambda: None)
    await asyncio.to_thread(engine.stop)

    assert (await client.history.get(one)).status == ExecutionStatus.QUEUED


async def test_a_take_that_waits_for_a_slot_ends_with_the_engine(settings: Settings, client: ExecutorClient) -> None:
    small = begun(build(settings, concurrency=1))
    held = asyncio.ensure_future(take(small, await submit(client, 60)))
    await reached(small.worker.lane.running)
    waiting = asyncio.ensure_future(take(small, await submit(client)))
    await asyncio.sleep(0.1)

    await asyncio.to_thread(small.stop, 0)

    await asyncio.gather(held, waiting)


async def test_an_engine_whose_beats_go_unanswered_starts_no_body(engine: Engine, client: ExecutorClient) -> None:
    one = await submit(client)
    engine.worker.lease.renew(float("-inf"))

    await take(engine, one)

    assert (await client.history.get(one)).status == ExecutionStatus.QUEUED


async def test_a_claim_that_came_after_the_beats_went_unanswered_is_handed_back(
    engine: Engine, client: ExecutorClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, let_go = hold_claims(engine, monkeypatch)
    one = await submit(client)
    taking = asyncio.ensure_future(take(engine, one))
    await asyncio.to_thread(began.wait, 10)
    engine.worker.lease.renew(float("-inf"))
    let_go.set()
    await taking
    await reached(engine.worker.is_at_rest)

    record = await client.history.get(one)
    assert (record.status, record.attempt) == (ExecutionStatus.QUEUED, 0)


async def test_a_beat_counts_from_when_it_was_sent(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = begun(build(settings.model_copy(update={"heartbeat": 0.1})))
    sent: list[float] = []
    answered = threading.Event()
    beat = engine.worker.store.workers.beat

    async def slow(heartbeat: Heartbeat) -> Answers:
        sent.append(time.monotonic())
        answers = await beat(heartbeat)
        await asyncio.sleep(0.3)
        answered.set()
        return answers

    monkeypatch.setattr(engine.worker.store.workers, "beat", slow)
    await asyncio.to_thread(answered.wait, 10)
    await reached(lambda: engine.worker.lease.renewed_at > sent[0] - 0.05)

    assert engine.worker.lease.renewed_at <= sent[-1]
    await asyncio.to_thread(engine.stop, 0)


async def test_a_cancel_is_seen_at_the_next_beat(settings: Settings, client: ExecutorClient) -> None:
    quick = build(settings.model_copy(update={"heartbeat": 0.05}))
    quick.start()
    one = await submit(client, 60)
    await reached(quick.worker.lane.running)

    assert await client.calls.cancel(one) == "requested"

    assert (await client.calls.attach(one).result(30)).error_code == ErrorCode.CANCELLED
    await asyncio.to_thread(quick.stop, 0)


async def test_due_rows_are_pulled_one_slot_after_the_other_without_waiting_for_a_beat(
    settings: Settings, client: ExecutorClient
) -> None:
    ids = [await submit(client) for _ in range(20)]
    await asyncio.sleep(0.1)
    slow = settings.model_copy(update={"heartbeat": 15.0, "lease": 75.0})
    small = build(slow, concurrency=2)
    started = time.monotonic()
    small.start()

    for one in ids:
        assert (await client.calls.attach(one).result(30)).success

    assert time.monotonic() - started < slow.heartbeat
    await asyncio.to_thread(small.stop, 0)


async def test_a_call_whose_message_was_lost_goes_first_now_and_then_where_no_slot_stays_free(
    settings: Settings, client: ExecutorClient
) -> None:
    small = begun(build(settings, concurrency=1))
    unheard, heard = await submit(client), await submit(client)
    small.worker.claims.pulled_at -= 1000

    await take(small, heard)

    assert (await client.calls.attach(unheard).result(1.5)).success
    await asyncio.to_thread(small.stop, 0)


async def test_ten_calls_at_once_leave_nothing_behind(engine: Engine, client: ExecutorClient) -> None:
    ids = [await submit(client, 0.05) for _ in range(10)]
    await take(engine, *ids, new_id(), ids[0])
    for one in ids:
        await client.calls.attach(one).result(30)
    await reached(lambda: engine.worker.recorder.is_idle)

    assert (engine.worker.claims.free_slots(), engine.worker.activity.is_quiet) == (10, True)
    assert engine.worker.lane.running() == []


def test_an_engine_without_a_database_says_so_and_starts_nothing(settings: Settings, tmp_path: Path) -> None:
    engine = build(settings.model_copy(update={"database_url": f"sqlite:///{tmp_path / 'none.db'}"}))

    with pytest.raises((StorageError, ConfigurationError)):
        engine.start()

    engine.stop()
    wait_until(lambda: not threads("forge-engine"), 30, "its thread does not end")


def test_a_tool_that_cannot_start_keeps_the_worker_from_starting(settings: Settings) -> None:
    engine = build(settings, Unready)
    before = set(threads(*NAMES))

    with pytest.raises(ToolError, match="no licence"):
        engine.start()

    wait_until(lambda: before.issuperset(threads(*NAMES)), 30, "its threads do not end")


def test_a_start_that_hangs_is_said_within_its_limit(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "START_DEADLINE", 0.3)
    engine = build(settings, NeverReady)

    with pytest.raises(ForgeError, match=r"not ready after 0.3s"):
        engine.start()

    engine.stop()
    NeverReady.is_over.set()
    wait_until(lambda: not threads("forge-engine"), 30, "its thread does not end")


def test_an_engine_that_was_never_started_stops_at_once(settings: Settings) -> None:
    build(settings).stop()


async def test_a_service_that_breaks_ends_the_process(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = begun(build(settings))
    killed: list[tuple[int, int]] = []
    fake = SimpleNamespace(getpid=os.getpid, kill=lambda pid, number: killed.append((pid, number)))
    monkeypatch.setattr(module, "os", fake)

    engine.broken(KeyError("a defect"))

    assert killed == [(os.getpid(), signal.SIGTERM)]
    assert engine.is_broken
    with caplog.at_level(logging.INFO):
        await asyncio.to_thread(engine.stop)
    [left] = [record.seconds for record in caplog.records if "Worker stops" in record.message]
    assert left == settings.lease < settings.drain, "later the others take it for dead, and its calls are theirs"


async def test_leaving_takes_its_last_steps_and_ends_even_if_they_fail_or_hang(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes: list[int] = []
    taken: list[str] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    monkeypatch.setattr(module, "LEAVE_SECONDS", 0.1)

    async def fail() -> None:
        taken.append("fails")
        raise DatabaseUnavailableError("away")

    async def hang() -> None:
        taken.append("hangs")
        await asyncio.sleep(60)

    engine: Any = build(settings)
    engine.worker = SimpleNamespace(
        tools=SimpleNamespace(settle=fail),
        claims=SimpleNamespace(close=lambda: None),
        lane=SimpleNamespace(running=list, stop=hang),
    )
    engine.replace_process("tool X held its event loop")
    await reached(lambda: codes)

    assert (taken, codes) == (["fails", "hangs"], [75])
