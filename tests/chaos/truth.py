"""What SQL holds, read past the system under test with plain statements."""

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

from tests.chaos.checker import Ended, Execution
from tests.chaos.databases import UnderFire, read_if_up

BEAT_SECONDS = 15.0
"""A lease: others would take who is silent for so long for dead."""

_EXECUTIONS = "SELECT CAST(id AS TEXT), CAST(parameters AS TEXT), status, attempt FROM tool_executions ORDER BY id"
_ATTEMPTS = """
SELECT CAST(execution_id AS TEXT), attempt, final, status, pid, started_at IS NOT NULL, duration_ms,
       CAST(output AS TEXT), error_code, error
FROM execution_attempts {where} ORDER BY execution_id, attempt
"""


async def executions(database: UnderFire) -> list[Execution]:
    """Every execution; a call is known by its mark, whatever its id."""
    rows = await database.rows(_EXECUTIONS)
    return [Execution(id_, _mark(parameters), status, attempt) for id_, parameters, status, attempt in rows]


async def attempts(database: UnderFire) -> list[Ended]:
    return [_ended(row) for row in await database.rows(_ATTEMPTS.format(where=""))]


async def queued(database: UnderFire) -> list[str]:
    return [row[0] for row in await database.rows("SELECT CAST(id AS TEXT) FROM execution_queue")]


async def events(database: UnderFire) -> dict[str, int]:
    """How many events there are of each kind."""
    return dict(await database.rows("SELECT kind, count(*) FROM execution_events GROUP BY kind ORDER BY kind"))


async def unfinished(database: UnderFire) -> bool:
    """Whether something is still on its way; also while nobody can tell."""
    rows = await read_if_up(database, "SELECT count(*) FROM execution_queue")
    return rows is None or rows[0][0] > 0


async def dropped(database: UnderFire) -> int:
    """How many messages workers counted as dropped."""
    return int((await database.rows("SELECT coalesce(sum(dropped_messages), 0) FROM workers"))[0][0])


async def silent(database: UnderFire, living: Callable[[], set[int]]) -> set[int]:
    """The pids of workers that live on and do not beat; it waits until each has beaten once more, for a lease at most."""
    before = await _beats(database)
    watched, deadline = living(), time.monotonic() + BEAT_SECONDS
    while watched and time.monotonic() < deadline:
        await asyncio.sleep(0.2)
        now = await _beats(database)
        watched = {pid for pid in watched & living() if now.get(pid, -1) <= before.get(pid, -1)}
    return watched


async def _beats(database: UnderFire) -> dict[int, int]:
    return dict(await database.rows("SELECT pid, max(beat) FROM workers GROUP BY pid"))


class Watch:
    """Notes each final row when it first appears, so that a later change of it is seen."""

    def __init__(self, database: UnderFire, *, every: float) -> None:
        self._database = database
        self._every = every
        self.seen: dict[tuple[str, int], Ended] = {}

    async def run(self) -> None:
        """Look for ever."""
        while True:  # no deadline: it looks until the run cancels it
            for row in await read_if_up(self._database, _ATTEMPTS.format(where="WHERE final")) or []:
                self.seen.setdefault((row[0], row[1]), _ended(row))
            await asyncio.sleep(self._every)


def _mark(parameters: str) -> str:
    return str(json.loads(parameters).get("mark"))


def _ended(row: tuple[Any, ...]) -> Ended:
    id_, attempt, is_final, status, pid, is_started, duration_ms, output, error_code, error = row
    return Ended(
        id_,
        attempt,
        bool(is_final),
        status,
        pid,
        bool(is_started),
        None if duration_ms is None else duration_ms / 1000,
        None if output is None else json.loads(output),
        error_code,
        error,
    )
