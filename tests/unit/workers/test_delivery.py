"""A worker is deaf only if messages stay at the broker in its sight while it has nothing to do."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from forge_tools.broker.celery_app import backlog, celery_app
from forge_tools.broker.message import BULK, list_name
from tests.services import client
from tests.waiting import reached
from workers.services import polling as module
from workers.services.polling import CHECKS, Delivery
from workers.services.service import Leadership, keep

EVERY = 0.02
QUEUE = "forge.default.async"
NOWHERE = "redis+socket:///nowhere/valkey.sock"


def wakeup(url: str, count: int = 1, *, priority: int = 0) -> None:
    """Put messages into the broker queue that nobody takes."""
    with client(url) as server:
        server.lpush(f"forge:{list_name(QUEUE, priority)}", *["{}"] * count)


class Claims:
    """What a worker says of its messages: whether it waits for them alone, and when the last one came."""

    def __init__(self, is_idle: Callable[[], bool], woken_at: Callable[[], float]) -> None:
        self.is_idle = is_idle
        self._woken_at = woken_at

    @property
    def woken_at(self) -> float:
        return self._woken_at()


@pytest.fixture(autouse=True)
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The signals that this process would have got from itself."""
    sent: list[int] = []
    monkeypatch.setattr(module.os, "kill", lambda pid, number: sent.append(number))
    return sent


@asynccontextmanager
async def watching(
    url: str,
    *,
    is_idle: Callable[[], bool] = lambda: True,
    woken_at: Callable[[], float] = lambda: 0.0,
) -> AsyncIterator[Delivery]:
    claims: Any = Claims(is_idle, woken_at)
    delivery = Delivery(url, [QUEUE, "forge.background.async"], claims, EVERY)
    task = asyncio.ensure_future(keep(delivery, Leadership("any")))
    yield delivery
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def is_deaf(url: str, sent: list[int], *, patience: float = 1.0, **options: Any) -> bool:
    async with watching(url, **options):
        try:
            async with asyncio.timeout(patience):
                while not sent:
                    await asyncio.sleep(EVERY)
        except TimeoutError:
            return False
        return True


async def test_messages_that_stay_while_nothing_is_heard_are_proof(
    valkey_url: str, sent: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    wakeup(valkey_url)

    assert await is_deaf(valkey_url, sent, patience=60.0)
    assert "this worker ends, so that another takes its place" in caplog.text


async def test_an_empty_queue_is_no_proof(valkey_url: str, sent: list[int]) -> None:
    assert not await is_deaf(valkey_url, sent)


async def test_a_busy_worker_is_not_deaf(valkey_url: str, sent: list[int]) -> None:
    wakeup(valkey_url)

    assert not await is_deaf(valkey_url, sent, is_idle=lambda: False)


async def test_a_worker_that_hears_is_not_deaf_however_much_waits(valkey_url: str, sent: list[int]) -> None:
    wakeup(valkey_url, 100)

    assert not await is_deaf(valkey_url, sent, woken_at=time.monotonic)


async def test_a_broker_that_is_away_is_no_proof(sent: list[int]) -> None:
    assert not await is_deaf(NOWHERE, sent)


async def test_one_look_that_finds_nothing_begins_again(
    valkey_url: str, sent: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = iter([1] * (CHECKS - 1) + [0] + [1] * CHECKS)
    looks: list[int] = []

    def count(*_: Any) -> int:
        looks.append(next(counts))
        return looks[-1]

    monkeypatch.setattr(module, "backlog", count)

    assert await is_deaf(valkey_url, sent, patience=60.0)
    assert len(looks) == 2 * CHECKS


def test_the_backlog_counts_what_waits_in_those_queues(valkey_url: str) -> None:
    app = celery_app(valkey_url)
    wakeup(valkey_url, 3)
    wakeup(valkey_url, 4, priority=BULK)

    assert backlog(app, [QUEUE, "forge.absent.async"]) == 7
    assert backlog(app, ["forge.absent.async"]) == 0
    app.close()


@pytest.mark.parametrize("drains", [True, False], ids=["drains", "does not even drain"])
async def test_a_deaf_worker_is_asked_to_stop_once_and_killed_if_it_does_not_even_drain(
    sent: list[int], monkeypatch: pytest.MonkeyPatch, drains: bool
) -> None:
    monkeypatch.setattr(module, "FORCE_SECONDS", 0.1)
    monkeypatch.setattr(module, "backlog", lambda *_: 3)

    async with watching(NOWHERE, is_idle=lambda: not (sent and drains)):
        await reached(lambda: sent)
        await asyncio.sleep(0.5) if drains else await reached(lambda: len(sent) > 1)

    assert sent[:2] == ([signal.SIGTERM] if drains else [signal.SIGTERM, signal.SIGKILL])
