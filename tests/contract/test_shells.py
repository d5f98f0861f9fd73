"""The contract of shell rows, on every database: hosts are believed, and what ended stays ended."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text, update

from forge_tools.model.places import ShellRecord, ShellStatus, shell_id
from forge_tools.storage import Store
from forge_tools.storage.functions import from_now
from forge_tools.storage.shells import MOST_LISTED
from forge_tools.storage.sqlalchemy_tables import workers
from tests.contract.calls import beat, instance

START = datetime(2026, 5, 17, 9, 30, 0, 123456, tzinfo=UTC)


def shell(number: int = 1, host: str = "host-1", **changes: Any) -> ShellRecord:
    plain = ShellRecord(
        id=shell_id(host, f"{number:012x}"),
        hostname=host,
        command="npm run dev",
        cwd="web",
        status=ShellStatus.RUNNING,
        kernel="b00t-1d",
        pid=4242,
        start_ticks=9_876_543_210_123,
        started_at=START,
        session_id="session-1",
    )
    return replace(plain, **changes)


def exited(of: ShellRecord, code: int = 0) -> ShellRecord:
    return replace(of, status=ShellStatus.EXITED, exit_code=code, ended_at=START + timedelta(seconds=9), size=300)


def killed(of: ShellRecord) -> ShellRecord:
    return replace(of, status=ShellStatus.KILLED, signal=15, ended_at=START + timedelta(seconds=5))


def lost(of: ShellRecord) -> ShellRecord:
    return replace(of, status=ShellStatus.LOST)


async def silent_for(store: Store, seconds: float, *instances: str) -> None:
    """Let workers have been silent, without waiting for it."""
    statement = update(workers).where(workers.c.id.in_(instances)).values(last_seen_at=from_now(-seconds))
    await store.database.write(lambda connection: connection.execute(statement))


async def test_a_shell_is_read_back_as_its_host_told_of_it(store: Store) -> None:
    told = exited(
        shell(description="the server", agent_id="agent-1", execution_id="01a00000-0000-7000-8000-00000000abcd"), -9
    )

    await store.shells.record(told)

    assert await store.shells.find(told.id) == told
    assert await store.shells.find(shell(2).id) is None
    assert await store.shells.find("no such \x00 handle \ud800") is None


@pytest.mark.parametrize(
    ("told", "kept"),
    [
        ((shell(), exited(shell(), 3)), exited(shell(), 3)),
        ((exited(shell(), 3), shell()), exited(shell(), 3)),
        ((killed(shell()), exited(shell())), killed(shell())),
        ((exited(shell()), lost(shell())), exited(shell())),
        ((shell(), lost(shell())), lost(shell())),
        ((lost(shell()), shell()), shell()),
        ((lost(shell()), exited(shell(), 1)), exited(shell(), 1)),
        ((lost(shell()), exited(shell(), 1), shell()), exited(shell(), 1)),
        ((shell(size=500), shell(size=70)), shell(size=500)),
        ((shell(size=500), lost(shell())), lost(shell(size=500))),
    ],
)
async def test_what_ended_stays_ended_and_only_lost_is_taken_back(
    store: Store, told: Sequence[ShellRecord], kept: ShellRecord
) -> None:
    for each in told:
        await store.shells.record(each)

    assert await store.shells.find(kept.id) == kept


async def test_many_are_told_of_at_once_and_by_several_hosts(store: Store) -> None:
    seen = [shell(number) for number in range(50)]

    await store.shells.record_many([])
    await asyncio.gather(*(store.shells.record_many(seen[::turn]) for turn in (1, -1, 1, -1)))

    assert await store.shells.of_session("session-1") == seen


async def test_a_session_sees_its_own_shells_on_all_hosts_the_oldest_first(store: Store) -> None:
    late, early = shell(1, started_at=START + timedelta(seconds=1)), shell(2, "host-2")
    await store.shells.record_many([late, early, shell(3, session_id="session-2"), shell(4, session_id=None)])

    assert await store.shells.of_session("session-1") == [early, late]
    assert [each.session_id for each in await store.shells.of_session(None)] == [None]
    assert await store.shells.of_session("nobody's") == []


@pytest.mark.parametrize("session", ["s" * 50_000, "zero \x00 and half \ud800"])
async def test_any_text_names_a_session(store: Store, session: str) -> None:
    await store.shells.record(shell(command="echo \x00 \ud800", session_id=session))

    [found] = await store.shells.of_session(session)

    assert found.command == "echo \\x00 \\ud800"
    assert await store.shells.of_session(session[:-1]) == []


async def test_of_very_many_shells_those_that_run_are_not_left_out(store: Store) -> None:
    old = shell(0, started_at=START - timedelta(days=1))
    await store.shells.record_many([old, *(exited(shell(number)) for number in range(1, MOST_LISTED + 10))])

    listed = await store.shells.of_session("session-1")

    assert len(listed) == MOST_LISTED
    assert listed[0] == old


async def test_what_runs_on_a_host_is_told_from_what_ended_and_from_other_hosts(store: Store) -> None:
    await store.shells.record_many([shell(1), exited(shell(2)), shell(3, "host-2"), lost(shell(4))])

    assert await store.shells.running_of("host-1") == [shell(1)]


async def test_only_what_was_said_to_run_becomes_lost(store: Store) -> None:
    seen = [shell(1), exited(shell(2)), shell(3)]
    await store.shells.record_many(seen)

    assert await store.shells.mark_lost([]) == []
    assert await store.shells.mark_lost([each.id for each in seen[:2]]) == [seen[0].id]
    assert await store.shells.mark_lost([seen[0].id]) == []

    statuses = [each.status for each in await store.shells.of_session("session-1")]
    assert statuses == [ShellStatus.LOST, ShellStatus.EXITED, ShellStatus.RUNNING]


async def test_shells_of_a_host_without_a_worker_are_lost_after_a_while(store: Store) -> None:
    hosts = ("alive", "stopped", "silent", "never")
    for name in hosts[:3]:
        await store.workers.register(instance(name, hostname=name))
    await store.workers.stop("stopped")
    await silent_for(store, 400, "silent")
    await store.shells.record_many([shell(1, host) for host in hosts] + [exited(shell(2, "silent"))])

    assert await store.shells.deserted_hosts(300) == {"silent", "never"}
    assert await store.shells.deserted_hosts(500) == {"never"}

    await beat(store, "silent")
    assert await store.shells.desert({"silent", "never"}, 300) == [shell(1, "never").id]
    assert await store.shells.desert(set(), 300) == []
    assert await store.shells.deserted_hosts(300) == set()


async def test_a_host_with_one_live_worker_among_dead_ones_keeps_its_shells(store: Store) -> None:
    for name in ("old", "new"):
        await store.workers.register(instance(name))
    await silent_for(store, 4000, "old")
    await store.shells.record(shell())

    assert await store.shells.deserted_hosts(300) == set()
    assert await store.shells.desert({"host-1"}, 300) == []


async def test_the_silence_of_a_host_is_that_of_the_worker_seen_last_in_that_lane(store: Store) -> None:
    for name in ("one", "two"):
        await store.workers.register(instance(name))
    await store.workers.register(instance("other", lane="process"))
    await store.workers.stop("one")
    await silent_for(store, 100, "one")
    await silent_for(store, 200, "two")

    assert await store.workers.silence_of("host-1", "async") == pytest.approx(100, abs=5)
    assert await store.workers.silence_of("host-1", "process") == pytest.approx(0, abs=5)
    assert await store.workers.silence_of("host-2", "async") is None


@pytest.mark.parametrize(
    ("asked", "index"),
    [
        ("status = 'running' AND hostname = 'host-1'", "shells_running"),
        ("session_id = 'session-7'", "shells_of_session"),
        ("session_id IS NULL ORDER BY started_at LIMIT 5", "shells_of_"),  # on SQLite, either of them will do
    ],
)
async def test_what_runs_and_what_a_session_has_is_found_without_reading_all(
    store: Store, asked: str, index: str
) -> None:
    old = [exited(shell(number, session_id=f"session-{number}")) for number in range(400)]
    await store.shells.record_many([*old, shell(400)])
    explain = "EXPLAIN QUERY PLAN" if store.dialect == "sqlite" else "EXPLAIN"
    question = f"SELECT id FROM shells WHERE {asked}"

    async with store.database.reading() as connection:
        if store.dialect == "postgresql":
            await connection.execute(text("ANALYZE shells"))
        plan = [str(tuple(row)) for row in await connection.execute(text(f"{explain} {question}"))]

    assert index in "\n".join(plan)
