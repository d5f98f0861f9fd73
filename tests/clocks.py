"""Databases whose clock a test can set, without touching that of the machine."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

import pytest

from forge_tools.storage.columns import MOMENT_FORMAT
from forge_tools.storage.connection import database
from forge_tools.storage.queue import sqlite
from tests.services import admin

SetClock = Callable[[float], None]
"""Set the clock that many seconds ahead of the true one."""

_SHADOW = """
CREATE SCHEMA shadow;
CREATE TABLE shadow.ahead (seconds float8 NOT NULL);
INSERT INTO shadow.ahead VALUES (0);
CREATE FUNCTION shadow.now() RETURNS timestamptz LANGUAGE sql STABLE AS
  'SELECT pg_catalog.now() + pg_catalog.make_interval(secs => seconds) FROM shadow.ahead';
CREATE FUNCTION shadow.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS
  'SELECT pg_catalog.clock_timestamp() + pg_catalog.make_interval(secs => seconds) FROM shadow.ahead';
"""


def postgres_clock(url: str) -> SetClock:
    """Shadow the clock of one database; whoever connects from now on reads the shadow."""
    name = urlsplit(url).path[1:]
    admin(url, _SHADOW)
    admin(url, f'ALTER DATABASE "{name}" SET search_path = shadow, public, pg_catalog')
    return lambda seconds: admin(url, f"UPDATE shadow.ahead SET seconds = {seconds}")


def sqlite_clock(monkeypatch: pytest.MonkeyPatch) -> SetClock:
    """Shadow the clock that this process lends to SQLite; Stores opened from now on read the shadow."""
    ahead = [0.0]

    def forge_now(seconds: float = 0.0) -> str:
        return (datetime.now(UTC) + timedelta(seconds=seconds + ahead[0])).strftime(MOMENT_FORMAT)

    for module in (database, sqlite):
        monkeypatch.setattr(module, "forge_now", forge_now)
    return lambda seconds: ahead.__setitem__(0, seconds)
