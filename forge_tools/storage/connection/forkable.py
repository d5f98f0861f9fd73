"""Keeps threads out of SQLite while the process forks.

SQLite has locks for the whole process. One that a thread holds at the moment of a fork stays locked in the child, which
has no such thread: any use of SQLite there, on any connection, would wait for ever.
"""

import os
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any
from weakref import WeakSet

PATIENCE_SECONDS = 2.0
"""How long a fork waits for statements under way: enough for a write that waits for another process, not for a long report."""

_USES_OF_BOTH = ("execute", "executemany", "executescript", "close")
_USES = (*_USES_OF_BOTH, "commit", "rollback", "create_function")
_USES_OF_CURSORS = (*_USES_OF_BOTH, "fetchone", "fetchmany", "fetchall", "__next__")

_registering = threading.RLock()  # a signal handler may fork while a fork waits
_locks: WeakSet[Any] = WeakSet()
_held: list[list[Any]] = []  # by each fork that has begun


def lock_against_forks() -> AbstractContextManager[Any]:
    """Return a lock for the uses of one connection: this process is forked only while nobody holds it."""
    lock = threading.RLock()
    with _registering:
        _locks.add(lock)
    return lock


def _begin() -> None:
    _registering.acquire()
    deadline = time.monotonic() + PATIENCE_SECONDS
    _held.append([])
    _held[-1].extend(lock for lock in _locks if lock.acquire(timeout=max(0.0, deadline - time.monotonic())))


def _end() -> None:
    for lock in _held.pop():
        lock.release()
    _registering.release()


def _end_in_child() -> None:
    _end()
    _locks.clear()  # they are of connections that only the parent has


os.register_at_fork(before=_begin, after_in_parent=_end, after_in_child=_end_in_child)


class _Cursor(sqlite3.Cursor):
    def __init__(self, connection: "ForkableConnection") -> None:
        self.lock = connection.lock
        super().__init__(connection)


class ForkableConnection(sqlite3.Connection):
    """For `sqlite3.connect`, as its `factory`: holds such a lock in each method by which SQLAlchemy uses SQLite."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.lock = lock_against_forks()
        with self.lock:
            super().__init__(*arguments, **options)

    def cursor(self, factory: Any = _Cursor) -> Any:
        return super().cursor(factory)


def _locked(use: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(use)
    def used(self: Any, *arguments: Any, **options: Any) -> Any:
        with self.lock:
            return use(self, *arguments, **options)

    return used


for _kind, _names in ((ForkableConnection, _USES), (_Cursor, _USES_OF_CURSORS)):
    for _name in _names:
        setattr(_kind, _name, _locked(getattr(_kind, _name)))
