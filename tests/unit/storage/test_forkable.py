"""A process may be forked at any moment, and use SQLite, whatever the threads of its parent were about."""

import asyncio
import os
import select
import signal
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from forge_tools.model.execution import new_id
from forge_tools.signals import handled
from forge_tools.storage import open_store
from forge_tools.storage.connection import forkable
from tests.migrated import database, migrated
from tests.waiting import PATIENCE, within

FORKS = 100
"""Of so many without precautions, nearly always at least one finds SQLite locked."""

ALLOCATES = """WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10000)
SELECT max(hex(randomblob(200)) || i) FROM n"""


async def with_hot_statements(url: str, use: Callable[[Callable[[], Awaitable[object]]], Awaitable[None]]) -> None:
    ids = [new_id() for _ in range(1000)]
    async with await open_store(url) as store:
        await use(lambda: store.queue.results(ids))


async def with_other_statements(url: str, use: Callable[[Callable[[], Awaitable[object]]], Awaitable[None]]) -> None:
    async with database(url) as opened:

        async def read() -> None:
            async with opened.reading() as connection:
                await connection.execute(text(ALLOCATES))

        await use(read)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("statements", [with_hot_statements, with_other_statements])
def test_a_fork_can_use_sqlite(statements: Callable[..., Awaitable[None]], tmp_path: Path) -> None:
    url, is_over, has_begun = migrated(f"sqlite:///{tmp_path / 'forge.db'}"), threading.Event(), threading.Event()

    async def again_and_again(statement: Callable[[], Awaitable[object]]) -> None:
        for _ in within(120, "the forks are not over"):
            if is_over.is_set():
                return
            await statement()
            has_begun.set()

    thread = threading.Thread(target=lambda: asyncio.run(statements(url, again_and_again)))
    thread.start()
    try:
        assert has_begun.wait(30)
        for _ in range(FORKS):
            fork_that_uses_sqlite()
    finally:
        is_over.set()
        thread.join()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_signal_handler_may_fork_while_a_fork_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forkable, "PATIENCE_SECONDS", 0.5)
    with held(forkable.lock_against_forks()) as is_over:

        def handle(*_: object) -> None:
            fork_that_uses_sqlite()
            is_over.set()

        with handled([signal.SIGALRM], handle):
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            fork_that_uses_sqlite()
            assert is_over.wait(30)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_in_a_signal_handler_frees_nothing_that_a_waiting_fork_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forkable, "PATIENCE_SECONDS", 0.5)
    locks, found = [forkable.lock_against_forks() for _ in range(20)], []

    def handle(*_: object) -> None:
        found.append(busy(locks))
        fork_that_uses_sqlite()
        found.append(busy(locks))

    with held(locks[0]), handled([signal.SIGALRM], handle):
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        fork_that_uses_sqlite()
    before, after = found
    assert after == before
    assert busy(locks) == []


@contextmanager
def held(lock: AbstractContextManager[Any]) -> Iterator[threading.Event]:
    """Hold it in another thread, until the block ends or sets the event."""
    is_held, is_over = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            is_held.set()
            is_over.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert is_held.wait(30)
        yield is_over
    finally:
        is_over.set()
        thread.join()


def busy(locks: list[Any]) -> list[Any]:
    """Those that another thread cannot have."""
    found = []

    def ask() -> None:
        for lock in locks:
            if lock.acquire(blocking=False):
                lock.release()
            else:
                found.append(lock)

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    return found


def fork_that_uses_sqlite() -> None:
    ended, ends = os.pipe()
    pid = os.fork()
    if pid == 0:
        sqlite3.connect(":memory:").execute("SELECT 1")
        os._exit(0)
    os.close(ends)
    try:
        assert select.select([ended], [], [], 10 * PATIENCE)[0], "it waits for ever"
    finally:
        os.close(ended)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
