"""A worker with one protection taken away, to show that the checker notices: `python -m tests.chaos.sabotage NAME ...`."""

import asyncio
import json
import os
import re
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kombu import Connection
from sqlalchemy import delete, update

from forge_tools.config import Settings
from forge_tools.model.execution import Claim, Outcome, Scope, Wakeup
from forge_tools.storage import open_store, statements
from forge_tools.storage.heartbeat import BEATS, NOW, Answers
from forge_tools.storage.queue.queue import ExecutionQueue
from forge_tools.storage.sqlalchemy_engine import AsyncConnection
from forge_tools.storage.sqlalchemy_tables import execution_attempts, execution_queue
from workers import app, engine
from workers.engine import Engine, Lifeline
from workers.lanes import loop
from workers.lanes.base import Body, Host
from workers.lanes.child import Child
from workers.lanes.children import ChildrenLane
from workers.lanes.frames import HEADER
from workers.program import main
from workers.services.fitness import Fitness
from workers.services.recovery import Recovery

SHORT_LEASE = {"lease": 5.0, "heartbeat": 0.5}
"""Below what settings allow, so that a control takes seconds; the run without sabotage has it too."""

POSTGRES = "postgresql_statements.sql"
IS_WAITING = ("q.status = 'queued'", "q.attempt < q.max_attempts")

live, ended = execution_queue.c, execution_attempts.c


async def _write(work: Callable[[AsyncConnection], Awaitable[None]]) -> None:
    """Write as the worker would, where nothing needs to be fast."""
    async with await open_store(os.environ["FORGE_DATABASE_URL"]) as store:
        await store.database.write(work)


def nothing() -> None:
    """Take nothing away: what the controls do must then be harmless."""


def compare_and_set() -> None:
    """Whoever wakeups gets the execution, whatever its state."""
    claim = ExecutionQueue.claim

    async def claim_blindly(self: ExecutionQueue, wakeups: Sequence[Wakeup], scope: Scope) -> list[Claim]:
        async def pretend(connection: AsyncConnection) -> None:
            for wakeup in wakeups:
                as_asked = {"status": "queued", "attempt": wakeup.attempt, "token": None, "owner": None}
                await connection.execute(update(execution_queue).where(live.id == wakeup.id).values(as_asked))

        await _write(pretend)
        return await claim(self, wakeups, scope)

    ExecutionQueue.claim = claim_blindly


def lone_claim() -> None:
    """Whoever wakes gets an execution that comes alone, whatever its state and attempt."""
    said = (statements.FOLDER / POSTGRES).read_text()
    [due] = re.findall(r"^-- name: is_due\n(.+)\n\n", said, re.MULTILINE)
    asked = "q.attempt = :attempt::int4 AND {is_due}"
    if said.count(asked) != 1 or any(due.count(condition) != 1 for condition in IS_WAITING):
        raise AssertionError("There is nothing to take away")
    for condition in IS_WAITING:
        due = due.replace(condition, "true")
    usual = statements.FOLDER
    with TemporaryDirectory() as folder:
        statements.FOLDER = Path(folder)
        (statements.FOLDER / POSTGRES).write_text(said.replace(asked, f":attempt::int4 >= 0 AND {due}"))
        statements.postgres_statement("claim_one")  # they are read once
    statements.FOLDER = usual


def fencing() -> None:
    """Whoever finishes writes, whoever owns the execution by then and even if it is over."""
    finish = ExecutionQueue.finish_many

    async def finish_blindly(self: ExecutionQueue, outcomes: Sequence[Outcome]) -> list[bool]:
        async def pretend(connection: AsyncConnection) -> None:
            for outcome in outcomes:
                mine = (ended.execution_id == outcome.id) & (ended.attempt == outcome.attempt)
                await connection.execute(delete(execution_attempts).where(mine, ~ended.final))
                await connection.execute(
                    update(execution_queue)
                    .where(live.id == outcome.id)
                    .values(status="running", attempt=outcome.attempt, token=outcome.token)
                )
                if outcome.give_back:
                    continue  # no attempt can have such a status
                await connection.execute(
                    update(execution_attempts)
                    .where(ended.execution_id == outcome.id, ended.final)
                    .values(status=outcome.status.value, error_code=outcome.error_code)
                )

        await _write(pretend)
        return await finish(self, outcomes)

    ExecutionQueue.finish_many = finish_blindly


def recovery() -> None:
    """Nobody looks after the dead."""

    async def look_away(self: Recovery) -> list[str]:
        return []

    Recovery.settle = look_away


def heartbeat_rule() -> None:
    """Who misses one beat is dead."""
    seen: dict[str, int] = {}

    async def condemn_at_once(self: Recovery) -> list[str]:
        beats = await self._store.workers.beats()
        for instance in [
            instance for instance, beat in beats.items() if instance != self._worker_id and seen.get(instance) == beat
        ]:
            await self._store.transitions.recover(instance, "no heartbeat at one look")
        seen.update(beats)
        return []

    Recovery.settle = condemn_at_once


def sweep() -> None:
    """What a stopped body of the async lane started runs on."""

    async def look_away(body: Body) -> None: ...

    loop.end_processes = look_away


def drain() -> None:
    """Who is asked to stop leaves at once."""
    stop = Engine.stop

    def stop_at_once(self: Engine, drain: float | None = None) -> None:
        stop(self, 0)

    Engine.stop = stop_at_once


def own_beats() -> None:
    """Who was not seen to beat for a lease is dead, though nobody could look."""
    _judge_by(lambda answers: time.monotonic())


def steady_clock() -> None:
    """The same, though only the clock that tells so was set."""
    _judge_by(lambda answers: answers[NOW])


def _judge_by(clock: Callable[[Answers], float]) -> None:
    hear_honestly = Recovery.hear
    seen: dict[str, float] = {}
    condemning: set[asyncio.Task[None]] = set()

    async def condemn(instance: str) -> None:
        async with await open_store(os.environ["FORGE_DATABASE_URL"]) as store:  # its pool may be silent
            await store.transitions.recover(instance, "it was not seen")

    def hear(self: Recovery, answers: Answers) -> None:
        now = clock(answers)
        for instance in answers[BEATS].keys() - {self._worker_id}:
            if now - seen.get(instance, now) > SHORT_LEASE["lease"]:
                condemning.add(asyncio.create_task(condemn(instance)))
            seen[instance] = now
        hear_honestly(self, answers)

    Recovery.hear = hear


def reception() -> None:
    """Celery reads what is in the queues by itself."""
    app.ReceivingConnection = Connection


def pairs() -> None:
    """Whoever connects and names a child is taken for it."""
    start = ChildrenLane.start

    async def welcome_all(self: ChildrenLane, door: socket.socket) -> None:
        while True:  # no deadline: it ends with its lane
            end, _ = await self._loop.sock_accept(door)
            length, _ = HEADER.unpack(await self._loop.sock_recv(end, HEADER.size))
            hello = json.loads(await self._loop.sock_recv(end, length))["hello"]
            if (child := self._children.get(hello)) is not None:
                self._adopt(child.process, child.handle.again(), end, child.limit, child.output)

    async def listen(self: ChildrenLane, host: Host) -> None:
        await start(self, host)
        door = socket.socket(socket.AF_UNIX)
        door.setblocking(False)
        door.bind(f"\0chaos-{os.getpid()}")
        door.listen()
        self._do(welcome_all(self, door), self._steps)

    ChildrenLane.start = listen


def fitness() -> None:
    """Nobody looks at what a worker or a child lacks."""

    async def look_away(self: Fitness) -> None: ...

    Fitness.step = look_away
    Fitness.may_claim = lambda self: self._lease.is_held
    Child._unfit = lambda self, outcome: None  # noqa: SLF001  the sabotage


def ending_with_the_engine() -> None:
    """The end of the engine ends nothing, and nobody watches from outside."""
    Lifeline.__enter__ = lambda self: self
    Engine.replace_process = lambda self, why: None
    Engine.broken = lambda self, error: None
    engine.end_process = lambda worker_id: None


PROTECTIONS: dict[str, Callable[[], None]] = {
    one.__name__: one
    for one in (
        nothing,
        compare_and_set,
        lone_claim,
        fencing,
        recovery,
        heartbeat_rule,
        sweep,
        drain,
        own_beats,
        steady_clock,
        reception,
        pairs,
        fitness,
        ending_with_the_engine,
    )
}


def shorten_lease() -> None:
    load = Settings.load

    def load_shorter(**overrides: Any) -> Settings:
        return load(**overrides).model_copy(update=SHORT_LEASE)

    Settings.load = load_shorter


if __name__ == "__main__":
    shorten_lease()
    PROTECTIONS[sys.argv[1]]()
    sys.exit(main(sys.argv[2:]))
