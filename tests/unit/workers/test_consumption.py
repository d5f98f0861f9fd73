"""A worker is deaf only if messages stay at the broker in its sight while it has nothing to do."""

import asyncio
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from forge_tools.broker import BULK, backlog, celery_app
from forge_tools.broker.celery_app import list_name
from tests.services import client
from tests.waiting import reached
from workers import consumption as module
from workers.consumption import LOOKS, Consumption

EVERY = 0.02
QUEUE = "forge.default.async"
NOWHERE = "redis+socket:///nowhere/valkey.sock"


def wakeup(url: str, count: int = 1, *, priority: int = 0) -> None:
    """Put messages into the broker queue that nobody takes."""
    with client(url) as server:
        server.lpush(f"forge:{list_name(QUEUE, priority)}", *["{}"] * count)


async def is_deaf(
    url: str,
    *,
    is_idle: Callable[[], bool] = lambda: True,
    woken_at: Callable[[], float] = lambda: 0.0,
    patience: float = 1.0,
) -> bool:
    consumption = Consumption(url, [QUEUE, "forge.background.async"], EVERY)
    try:
        async with asyncio.timeout(patience):
            await consumption.until_deaf(is_idle, woken_at)
    except TimeoutError:
        return False
    return True


async def test_messages_that_stay_while_nothing_is_heard_are_proof(
    valkey_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    wakeup(valkey_url)

    assert await is_deaf(valkey_url, patience=60.0)
    assert "this worker ends so that another takes its place" in caplog.text


async def test_an_empty_queue_is_no_proof(valkey_url: str) -> None:
    assert not await is_deaf(valkey_url)


async def test_a_busy_worker_is_not_deaf(valkey_url: str) -> None:
    wakeup(valkey_url)

    assert not await is_deaf(valkey_url, is_idle=lambda: False)


async def test_a_worker_that_hears_is_not_deaf_however_much_waits(valkey_url: str) -> None:
    wakeup(valkey_url, 100)

    assert not await is_deaf(valkey_url, woken_at=time.monotonic)


async def test_a_broker_that_is_away_is_no_proof() -> None:
    assert not await is_deaf(NOWHERE)


async def test_one_look_that_finds_nothing_begins_anew(valkey_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter([1] * (LOOKS - 1) + [0] + [1] * LOOKS)
    looks: list[int] = []

    def count(*_: Any) -> int:
        looks.append(next(counts))
        return looks[-1]

    monkeypatch.setattr(module, "backlog", count)

    assert await is_deaf(valkey_url, patience=60.0)
    assert len(looks) == 2 * LOOKS


def test_the_backlog_counts_what_waits_in_those_queues(valkey_url: str) -> None:
    app = celery_app(valkey_url)
    wakeup(valkey_url, 3)
    wakeup(valkey_url, 4, priority=BULK)

    assert backlog(app, [QUEUE, "forge.absent.async"]) == 7
    assert backlog(app, ["forge.absent.async"]) == 0
    app.close()


async def test_a_worker_that_drains_is_asked_to_stop_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    monkeypatch.setattr(module, "FORCE_SECONDS", 0.1)
    monkeypatch.setattr(module.os, "kill", lambda pid, number: sent.append(number))
    consumption = Consumption(NOWHERE, [QUEUE], 0.01)
    monkeypatch.setattr(consumption, "_count", lambda: 3)
    leaving = asyncio.create_task(consumption.leave_when_deaf(lambda: not sent, lambda: 0.0))

    await reached(lambda: sent)
    await asyncio.wait([leaving], timeout=0.5)

    leaving.cancel()
    assert sent == [signal.SIGTERM]
