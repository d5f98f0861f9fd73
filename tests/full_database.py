"""SQLite databases that have no room, as on a full disk."""

import sqlite3
from functools import partial
from typing import Any

import pytest

ROOMY = 2**30


class Pages:
    """How far the databases that are opened from now on may grow with hot statements: to `most` pages, and to what they have."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.most = ROOMY
        pages = self

        class Limited(sqlite3.Connection):
            def execute(self, *statement: Any) -> sqlite3.Cursor:
                super().execute(f"PRAGMA max_page_count = {pages.most}").fetchone()
                return super().execute(*statement)

        monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Limited))
