"""The interface of an adapter; loaded with every peer, so it uses only the standard library."""

import os
from contextlib import AbstractAsyncContextManager
from typing import Protocol

BROKER = "PEERS_BROKER"
DATABASE = "PEERS_DATABASE"

READY = "peers: ready"
READINGS = "peers: readings "
"""How the lines of a driver begin that are meant for its parent: libraries may print lines of their own."""

SLEPT = "slept"
"""What every call of `sleeps` returns."""


class Subject(Protocol):
    """A connected client. Every call returns its own number, so that mixed-up results are noticed."""

    async def call(self, number: int) -> int:
        """Send one no-op with a number, and return what its worker returned."""

    async def burst(self, numbers: range) -> list[int]:
        """Send a no-op for each number before waiting for any; return what came back, in order."""

    async def sleeps(self, count: int, seconds: float) -> list[str]:
        """Send that many waits at once; return what came back."""


class Adapter(Protocol):
    """What each module of `adapters` is."""

    @staticmethod
    def connect() -> AbstractAsyncContextManager[Subject]:
        """Open a client."""


def broker() -> str:
    """Where Valkey listens: `unix:///path/to/socket`."""
    return os.environ[BROKER]


def database() -> str:
    """A PostgreSQL database that only this peer uses: `postgresql://user:password@host:port/name`."""
    return os.environ[DATABASE]
