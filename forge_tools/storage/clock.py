"""The database's clock, and the deadlines in the queue that move along when it is set."""

from sqlalchemy import Update, case, update

from forge_tools.records import ExecutionStatus
from forge_tools.storage.engine import Database
from forge_tools.storage.functions import database_now, from_now, seconds_between
from forge_tools.storage.models import execution_queue

LEAST_LEAD = 5.0
"""Seconds by which a row must be ahead of a clock that was set back, to be one from before."""

live = execution_queue.c


class Clock:
    """What time it is there. All deadlines are moments of this clock."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def now(self) -> float:
        """Unix seconds."""
        async with self._database.reading() as connection:
            return (await database_now(connection)).timestamp()

    async def follow(self, step: float) -> int:
        """Keep what is queued as far from its deadlines as it was before the clock was set by `step` seconds.

        Set forward, nothing expires that had time left; set back, nothing due waits for the old time to come again.
        Rows from before are told by when they came, or come back, into the queue. Returns how many moved.
        """
        statement = _forward(step) if step > 0 else _back(step)
        return (await self._database.write(lambda connection: connection.execute(statement))).rowcount


# When a row came into the queue is its expiry less what it was given; what waits for a retry came when it is due.
_expires_in = seconds_between(from_now(0.0), live.expires_at)
_came_in = _expires_in - live.expires_in
_waiting = update(execution_queue).where(
    live.status.in_([ExecutionStatus.QUEUED.value, ExecutionStatus.AWAITING_APPROVAL.value])
)


def _forward(step: float) -> Update:
    was_due = live.not_before <= from_now(-step)
    due = case((was_due, live.not_before), else_=_moved(step))
    return _waiting.where(_came_in <= -step / 2).values(not_before=due, expires_at=from_now(_expires_in + step))


def _back(step: float) -> Update:
    return _waiting.where(_came_in > LEAST_LEAD).values(
        not_before=_moved(step), expires_at=from_now(_expires_in + step)
    )


def _moved(step: float) -> from_now:
    return from_now(seconds_between(from_now(0.0), live.not_before) + step)
