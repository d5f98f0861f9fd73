"""Statements compiled once for all engines of a process, as in a program with one engine: here each test has its own."""

from typing import Any

from sqlalchemy.engine import Engine
from sqlalchemy.util import LRUCache

STATEMENTS = 4_000


class Compiled:
    """The cache of an engine; a key begins with its dialect, of which each engine has one, too."""

    _statements: LRUCache[Any, Any] = LRUCache(STATEMENTS)

    def get(self, key: tuple[Any, ...]) -> Any:
        return self._statements.get(self._shared(key))

    def __setitem__(self, key: tuple[Any, ...], compiled: Any) -> None:
        self._statements[self._shared(key)] = compiled

    def _shared(self, key: tuple[Any, ...]) -> tuple[Any, ...]:
        dialect, *rest = key
        return (type(dialect), dialect.server_version_info, *rest)


def share() -> None:
    """Give the engines that are made from now on what others have compiled."""
    make = Engine.__init__

    def made(self: Engine, *words: Any, **options: Any) -> None:
        make(self, *words, **options)
        self._compiled_cache = Compiled()

    Engine.__init__ = made
