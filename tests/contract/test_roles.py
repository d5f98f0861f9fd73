"""The roles of deploy/postgres/, with real logins: what each may do, and what a hostile client cannot do."""

import random
import secrets
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import ANY
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

from forge_tools.artifacts.parts import PART_BYTES, pack
from forge_tools.cli.doctor import check_database
from forge_tools.config import Settings
from forge_tools.errors import ArtifactDamagedError, ArtifactNotFoundError, ExecutionNotFoundError, ForgeError
from forge_tools.model import ExecutionStatus, new_id
from forge_tools.model.artifacts import Artifact
from forge_tools.model.audit import Pruning
from forge_tools.model.documents import DocumentScope, DocumentWriter
from forge_tools.model.execution import Outcome, Wakeup
from forge_tools.storage import Store, open_store
from forge_tools.storage.retention import PruneRun
from tests.contract.calls import SCOPE, beat, call, ended, finish_one, instance, statuses, submit_one
from tests.contract.sealed import seal_all, verified
from tests.contract.test_retention import everything
from tests.contract.test_rollups import HOUR, OLD, put_back, rolled_hours
from tests.services import admin

ROLES = (Path(__file__).parents[2] / "deploy" / "postgres" / "roles.sql").read_text()
MEMBERS = {
    "alice": "forge_client", "mallory": "forge_client", "walter": "forge_worker", "kim": "forge_keeper", "ada": "forge_auditor"
}  # fmt: skip


@dataclass(frozen=True)
class Logins:
    """A database with roles, and the URL of each login."""

    owner: str
    urls: dict[str, str]
    names: dict[str, str]


@pytest.fixture
def logins(migrated_postgres: str, postgres: Any) -> Iterator[Logins]:
    for _ in range(2):  # again is harmless
        admin(migrated_postgres, ROLES)
    suffix, password = secrets.token_hex(4), secrets.token_hex(8)
    names = {person: f"{person}_{suffix}" for person in MEMBERS}
    parts = urlsplit(migrated_postgres)
    urls = {}
    for person, role in MEMBERS.items():
        admin(migrated_postgres, f"CREATE ROLE {names[person]} LOGIN PASSWORD '{password}' IN ROLE {role}")
        host = f"{names[person]}:{password}@{parts.hostname}:{parts.port}"
        urls[person] = urlunsplit(parts._replace(netloc=host))
    yield Logins(migrated_postgres, urls, names)
    for name in names.values():
        admin(migrated_postgres, f"DROP OWNED BY {name}; DROP ROLE {name}")


@pytest.fixture
async def alice(logins: Logins) -> AsyncIterator[Store]:
    async with await open_store(logins.urls["alice"]) as store:
        yield store


@pytest.fixture
async def mallory(logins: Logins) -> AsyncIterator[Store]:
    async with await open_store(logins.urls["mallory"]) as store:
        yield store


@pytest.fixture
async def walter(logins: Logins) -> AsyncIterator[Store]:
    async with await open_store(logins.urls["walter"]) as store:
        yield store


async def worked_off(worker: Store, execution_id: str, **outcome: Any) -> None:
    [claim] = await worker.queue.claim([Wakeup(execution_id, 0)], SCOPE)
    assert await finish_one(worker, ended(claim, **outcome))


async def sql(url: str, statement: str, *arguments: object) -> list[Any]:
    connection = await asyncpg.connect(url)
    try:
        return list(await connection.fetch(statement, *arguments))
    finally:
        await connection.close()


WITHHELD = {
    ("INSERT", "executions"): {"submitted_by"},
    ("SELECT", "execution_queue"): {"token", "encrypted", "reply_key"},
    ("INSERT", "execution_queue"): {"token", "owner", "hostname", "pid", "started_at", "cancel_requested_at"},
    ("INSERT", "execution_attempts"): {"token", "worker_id", "hostname", "pid", "started_at"},
    ("INSERT", "artifacts"): {"uploaded_by"},
}


@pytest.mark.parametrize(("verb", "table"), WITHHELD)
async def test_a_client_has_all_columns_but_those_that_say_who_runs_a_call(
    logins: Logins, verb: str, table: str
) -> None:
    query = "SELECT attname FROM pg_attribute WHERE attrelid = $1::regclass AND attnum > 0"
    query += " AND NOT has_column_privilege('forge_client', attrelid, attnum, $2)"

    rows = await sql(logins.owner, query, table, verb)

    assert {row["attname"] for row in rows} == WITHHELD[verb, table]


async def test_a_client_submits_a_worker_runs_and_the_client_reads_what_came_of_it(
    logins: Logins, alice: Store, walter: Store
) -> None:
    new = call()
    await submit_one(alice, new)
    await walter.workers.register(instance())
    assert await beat(walter, "instance-1") == []
    assert await walter.queue.due(SCOPE, 5) == [Wakeup(new.id, 0)]
    await worked_off(walter, new.id, output='"done"')
    [result] = await alice.queue.results([new.id])
    assert result.output == "done"
    assert (await alice.history.get(new.id)).status is ExecutionStatus.SUCCEEDED
    [row] = await sql(logins.owner, "SELECT submitted_by FROM executions")
    assert row["submitted_by"] == logins.names["alice"]


async def test_a_client_records_what_it_refused_itself(alice: Store) -> None:
    new = call()
    await alice.queue.record(new, Outcome(id=new.id, attempt=0, token="", status=ExecutionStatus.REJECTED, error="no"))
    assert (await alice.history.get(new.id)).status is ExecutionStatus.REJECTED


async def test_a_client_cancels_what_is_its_own_and_nothing_else(alice: Store, mallory: Store, walter: Store) -> None:
    waiting, runs, over = (call() for _ in range(3))
    await alice.queue.submit_many([waiting, runs, over])
    [claim] = await walter.queue.claim([Wakeup(runs.id, 0)], SCOPE)
    await worked_off(walter, over.id)
    for one in (waiting, runs, over):
        with pytest.raises(ExecutionNotFoundError):
            await mallory.transitions.cancel(one.id, actor="mallory", reason="mine!")
    answers = [await alice.transitions.cancel(one.id, actor="a", reason="enough") for one in (waiting, runs, over)]
    assert answers == ["cancelled", "requested", "over"]
    record = await alice.history.get(waiting.id)
    assert record.status is ExecutionStatus.CANCELLED
    assert record.error is not None
    assert record.error.startswith("Cancelled by alice_")
    assert await finish_one(walter, ended(claim, ExecutionStatus.CANCELLED))
    assert [event.kind for event in await alice.history.events(runs.id)] == ["cancel"]


async def test_a_client_sees_nothing_of_others(alice: Store, mallory: Store, walter: Store) -> None:
    done, waiting = call(), call()
    await alice.queue.submit_many([done, waiting])
    await worked_off(walter, done.id, output='"private"')
    await alice.transitions.cancel(waiting.id, actor="a", reason="")
    assert await mallory.history.list() == []
    assert await mallory.history.figures() == []
    assert await mallory.queue.results([done.id]) == []
    assert await statuses(mallory, [done.id, waiting.id]) == {}
    assert await mallory.history.attempts(done.id) == []
    assert await mallory.history.events(waiting.id) == []
    assert await mallory.history.list_attempts() == await mallory.history.list_events() == []
    assert [one.execution_id for one in await alice.history.list_attempts()] == [waiting.id, done.id]
    assert [one.kind for one in await alice.history.list_events(tool="Grep")] == ["cancel"]
    with pytest.raises(ExecutionNotFoundError):
        await mallory.history.get(done.id)


async def uploaded(store: Store, folder: Path, data: bytes = b"report", session: str | None = "s") -> Artifact:
    path = folder / "report.bin"
    path.write_bytes(data)
    return await store.artifacts.upload(path, ttl=3600.0, quota=1 << 30, limit=1 << 30, session_id=session)


async def read(store: Store, artifact: Artifact) -> bytes:
    return b"".join([chunk async for chunk in store.artifacts.read(artifact)])


async def test_a_client_uploads_what_it_and_the_session_at_a_worker_read_and_no_other_client(
    logins: Logins, alice: Store, mallory: Store, walter: Store, tmp_path: Path
) -> None:
    data = random.Random(1).randbytes(PART_BYTES + 17)
    kept = await uploaded(alice, tmp_path, data)
    again = await uploaded(alice, tmp_path, data)

    assert again.id != kept.id
    assert await read(alice, await alice.artifacts.named(kept.handle)) == data
    there = await walter.artifacts.find(kept.id, "s")
    assert there is not None
    assert await read(walter, there) == data
    assert await walter.artifacts.find(kept.id, "other") is None
    with pytest.raises(ArtifactNotFoundError):
        await mallory.artifacts.named(kept.handle)
    assert await mallory.artifacts.find(kept.id, "s") is None
    [row] = await sql(logins.owner, "SELECT uploaded_by FROM artifacts WHERE id = $1", kept.id)
    assert row["uploaded_by"] == logins.names["alice"]


async def test_what_a_worker_keeps_is_one_copy_beside_what_clients_uploaded(
    logins: Logins, alice: Store, walter: Store, tmp_path: Path
) -> None:
    theirs = await uploaded(alice, tmp_path)
    ours = await uploaded(walter, tmp_path)
    assert await uploaded(walter, tmp_path, session="t") == replace(ours, session_id="t", expires_at=ANY)
    assert theirs.id != ours.id
    rows = await sql(logins.owner, "SELECT id, uploaded_by FROM artifacts ORDER BY uploaded_by")
    assert [tuple(row) for row in rows] == [(theirs.id, logins.names["alice"]), (ours.id, None)]
    assert theirs.digest == ours.digest == ours.id


async def test_other_bytes_than_a_client_announced_are_told_apart(
    logins: Logins, mallory: Store, walter: Store, tmp_path: Path
) -> None:
    kept = await uploaded(mallory, tmp_path)
    await sql(logins.owner, "UPDATE artifact_parts SET data = $1", pack(b"change", kept.media_type))
    with pytest.raises(ArtifactDamagedError):
        await read(walter, await walter.artifacts.named(kept.handle))


HOSTILE = [
    # alter
    "UPDATE executions SET tool = 'Bash'",
    "UPDATE execution_queue SET queue = 'mine'",
    "UPDATE execution_queue SET cancel_requested_at = now()",
    "UPDATE execution_attempts SET output = '1'",
    "UPDATE execution_events SET actor = 'root'",
    "DELETE FROM executions",
    "DELETE FROM execution_queue",
    "DELETE FROM execution_attempts",
    "DELETE FROM execution_events",
    "TRUNCATE executions",
    "UPDATE tools SET enabled = false",
    "UPDATE workers SET beat = 0",
    "INSERT INTO leases VALUES ('recovery', 'mallory', now() + interval '1 hour')",
    "UPDATE encryption_keys SET public = 'mine'",
    "INSERT INTO encryption_keys (id, public, created_at) VALUES ('m', 'mine', now())",
    "DELETE FROM session_workspaces",
    "DELETE FROM artifacts",
    "DELETE FROM artifact_parts",
    "DELETE FROM artifact_owners",
    # keep bytes under the name of others', or in what others uploaded
    "INSERT INTO artifacts (id, size, media_type, is_whole, created_at, expires_at)"
    " VALUES (md5('x'), 1, 'text/plain', false, now(), now())",
    "INSERT INTO artifacts (id, size, media_type, is_whole, created_at, expires_at, uploaded_by)"
    " VALUES (repeat('a', 64), 1, 'text/plain', false, now(), now(), '{alice}')",
    "INSERT INTO artifacts (id, size, media_type, is_whole, created_at, expires_at)"
    " VALUES (repeat('a', 64), 1, 'text/plain', true, now(), now())",
    "INSERT INTO artifacts (id, size, media_type, is_whole, created_at, expires_at)"
    " VALUES (repeat('a', 64), 1, 'text/plain', false, now(), now() + interval '1 day')",
    "INSERT INTO artifact_parts (artifact_id, number, start, data) VALUES ('{upload}', 0, 0, 'x')",
    "INSERT INTO artifact_parts (artifact_id, number, start, data) VALUES ('{upload}', 9, 0, 'x')",
    "INSERT INTO artifact_owners (artifact_id, session_key, size, kept_at) VALUES ('{upload}', 'mine', 1, now())",
    "INSERT INTO artifact_owners (artifact_id, session_key, size, kept_at) VALUES ('{own}', 'mine', 1, now() - interval '1 day')",
    "INSERT INTO artifact_owners (artifact_id, session_key, size, kept_at, execution_id)"
    " VALUES ('{own}', 'mine', 1, now(), '{theirs}')",
    "INSERT INTO artifact_parts (artifact_id, number, start, data) VALUES ('{own}', 9, 0, 'added to what is whole')",
    "UPDATE artifacts SET id = '{upload}'",
    "UPDATE artifact_parts SET artifact_id = '{upload}'",
    # read what is for workers
    "SELECT encrypted FROM execution_queue",
    "SELECT token FROM execution_queue",
    "SELECT * FROM execution_queue",
    "SELECT * FROM leases",
    "SELECT * FROM audit_batches",
    "INSERT INTO audit_executions VALUES ('{theirs}', 1, '')",
    # forge
    "INSERT INTO executions (id, submitted_by, tool, tool_key, tool_version, tool_digest, category, parameters, context, options,"
    " queue, lane, timeout, timeout_source, soft_time_limit, time_limit, max_attempts, idempotent, delay, expires_in, queued_at)"
    " SELECT '{fresh}', '{alice}', tool, tool_key, tool_version, tool_digest, category, parameters, context, options, queue, lane,"
    " timeout, timeout_source, soft_time_limit, time_limit, max_attempts, idempotent, delay, expires_in, now() FROM executions",
    "{copy} '{fresh}', now() - interval '1 day' FROM executions",
    "INSERT INTO execution_queue (id, tool_key, queue, lane, status, attempt, max_attempts, idempotent, not_before, expires_at,"
    " expires_in) VALUES ('{theirs}', 'Grep@1', 'default', 'async', 'queued', 0, 1, false, now(), now(), 600)",
    "INSERT INTO execution_queue (id, tool_key, queue, lane, status, attempt, max_attempts, idempotent, not_before, expires_at,"
    " expires_in) VALUES ('{mine}', 'Grep@1', 'default', 'async', 'queued', 0, 1, false, now(), now(), 600)",
    "INSERT INTO execution_attempts (execution_id, attempt, final, status, completed_at, metadata)"
    " VALUES ('{theirs}', 0, true, 'rejected', now(), '{{}}')",
    "INSERT INTO execution_attempts (execution_id, attempt, final, status, completed_at, metadata)"
    " VALUES ('{waits}', 0, true, 'rejected', now(), '{{}}')",
    "INSERT INTO execution_attempts (execution_id, attempt, final, status, completed_at, metadata)"
    " VALUES ('{waits}', 1, true, 'succeeded', now(), '{{}}')",
    "INSERT INTO execution_events (execution_id, at, kind, actor, detail) VALUES ('{theirs}', now(), 'replayed', 'x', '{{}}')",
    "INSERT INTO execution_events (execution_id, at, kind, actor, detail) VALUES ('{mine}', now(), 'cancel', 'root', '{{}}')",
    "INSERT INTO execution_events (execution_id, at, kind, actor, detail)"
    " VALUES ('{mine}', now() - interval '1 day', 'replay', 'x', '{{}}')",
    # become somebody else
    "SET ROLE forge_worker",
    "SET SESSION AUTHORIZATION {alice}",
    "ALTER TABLE executions DISABLE ROW LEVEL SECURITY",
    "DROP POLICY client_reads ON executions",
    "CREATE TABLE public.mine (x int)",
    "CREATE OR REPLACE FUNCTION public.forge_owns(id_ uuid) RETURNS boolean LANGUAGE sql AS 'SELECT true'",
    "SELECT * FROM rollup_figures",
    "INSERT INTO rollup_hours (hour, rolled_at, calls) VALUES (now(), now(), 0)",
    "DELETE FROM rollup_hours",
    "SELECT * FROM pg_authid",
]
COPY = """INSERT INTO executions (tool, tool_key, tool_version, tool_digest, category, parameters, context, options, queue, lane,
 timeout, timeout_source, soft_time_limit, time_limit, max_attempts, idempotent, delay, expires_in, id, queued_at)
 SELECT tool, tool_key, tool_version, tool_digest, category, parameters, context, options, queue, lane, timeout, timeout_source,
 soft_time_limit, time_limit, max_attempts, idempotent, delay, expires_in,"""


@dataclass(frozen=True)
class Scene:
    """A call of Alice's, and two of Mallory's: one over, one waiting; and an upload of each."""

    words: dict[str, str]


@pytest.fixture
async def scene(logins: Logins, alice: Store, mallory: Store, walter: Store, tmp_path: Path) -> Scene:
    theirs, mine, waits = call(), call(), call()
    await submit_one(alice, theirs)
    await mallory.queue.submit_many([mine, waits])
    await worked_off(walter, mine.id)
    ids = {"theirs": theirs.id, "mine": mine.id, "waits": waits.id, "fresh": new_id()}
    uploads = {"upload": (await uploaded(alice, tmp_path)).id, "own": (await uploaded(mallory, tmp_path)).id}
    return Scene(ids | uploads | {"alice": logins.names["alice"], "copy": COPY})


async def snapshot(logins: Logins) -> list[Any]:
    tables = (
        "executions",
        "execution_queue",
        "execution_attempts",
        "execution_events",
        "leases",
        "audit_executions",
        "tools",
        "artifacts",
        "artifact_parts",
        "artifact_owners",
    )
    return [[tuple(row) for row in await sql(logins.owner, f"SELECT * FROM {table} ORDER BY 1")] for table in tables]


async def test_a_hostile_client_gets_nowhere(logins: Logins, scene: Scene) -> None:
    before = await snapshot(logins)
    connection = await asyncpg.connect(logins.urls["mallory"])
    for statement in HOSTILE:
        with pytest.raises((asyncpg.InsufficientPrivilegeError, asyncpg.UniqueViolationError)):
            print(statement, await connection.fetch(statement.format(**scene.words)))
    await connection.close()
    assert await snapshot(logins) == before


async def test_a_client_changes_neither_what_is_whole_nor_what_is_anothers(logins: Logins, scene: Scene) -> None:
    before = await snapshot(logins)
    for statement in ("UPDATE artifacts SET is_whole = false", "UPDATE artifacts SET expires_at = now()",
                      "UPDATE artifact_parts SET data = 'x'"):  # fmt: skip
        await sql(logins.urls["mallory"], statement)
    assert await snapshot(logins) == before


async def test_reading_without_a_filter_brings_only_what_is_ones_own(logins: Logins, scene: Scene) -> None:
    mine = {scene.words["mine"], scene.words["waits"]}
    for statement in ("SELECT id FROM executions", "SELECT id FROM tool_executions", "SELECT id FROM execution_queue",
                      "SELECT execution_id AS id FROM execution_attempts"):  # fmt: skip
        found = {str(row["id"]) for row in await sql(logins.urls["mallory"], statement)}
        assert found
        assert found <= mine


async def test_a_setting_of_the_session_changes_nobody(logins: Logins, scene: Scene) -> None:
    connection = await asyncpg.connect(logins.urls["mallory"])
    await connection.execute("SET row_security = off")
    with pytest.raises(asyncpg.InsufficientPrivilegeError):  # rather than leave rows out in silence
        await connection.fetch("SELECT * FROM executions")
    await connection.execute("SET row_security = on")
    await connection.execute("CREATE TEMP TABLE executions AS SELECT 1 AS x")  # hides it from names, not from functions
    answer = await connection.fetchval("SELECT forge_cancel($1, 'm', '')", scene.words["theirs"])
    assert answer == "unknown"
    await connection.close()


async def test_a_worker_adds_to_history_and_rewrites_none_of_it(logins: Logins, scene: Scene) -> None:
    for statement in ("UPDATE execution_attempts SET output = '1'", "DELETE FROM execution_attempts", "DELETE FROM executions",
                      "UPDATE executions SET tool = 'x'", "UPDATE execution_events SET actor = 'x'", "DELETE FROM audit_batches",
                      "UPDATE audit_executions SET hashes = ''"):  # fmt: skip
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await sql(logins.urls["walter"], statement)


async def test_a_worker_seals_an_auditor_verifies_and_a_keeper_prunes(
    logins: Logins, scene: Scene, walter: Store
) -> None:
    assert await seal_all(walter) == 1
    async with await open_store(logins.urls["ada"]) as ada:
        assert (await verified(ada)).executions == 1
        assert len(await ada.history.list()) == 3
        assert [one.calls for one in await ada.history.figures()] == [3]
        seen = await ada.overviews.read(window=60.0, lease=15.0, patience=60.0)
        assert ([one.waiting for one in seen.queues if one.waiting], seen.stuck) == ([2], ())
        for statement in (
            "DELETE FROM executions",
            "SELECT encrypted FROM execution_queue",
            "UPDATE audit_batches SET root = ''",
        ):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await sql(logins.urls["ada"], statement)
    what: Pruning = everything()
    with pytest.raises(ForgeError):
        await walter.retention.prune(what, PruneRun(new_id(), "walter"))
    async with await open_store(logins.urls["kim"]) as kim:
        assert (await kim.retention.prune(what, PruneRun(new_id(), "kim"))).executions == 1
        assert (await verified(kim)).is_intact


async def test_a_worker_rolls_up_what_no_client_reads_and_a_keeper_takes_back(
    logins: Logins, scene: Scene, alice: Store, mallory: Store, walter: Store
) -> None:
    await worked_off(walter, scene.words["theirs"])
    async with await open_store(logins.owner) as owner:
        for name in ("theirs", "mine"):
            await put_back(owner, scene.words[name], OLD)
    assert OLD in await rolled_hours(walter)
    async with await open_store(logins.urls["ada"]) as ada, await open_store(logins.urls["kim"]) as kim:
        assert [one.calls for one in await ada.history.figures(until=OLD + HOUR)] == [2]
        for client in (alice, mallory):
            assert [one.calls for one in await client.history.figures(until=OLD + HOUR)] == [1]
        assert (await kim.retention.prune(everything(), PruneRun(new_id(), "kim"))).executions == 2
        assert await ada.history.figures(until=OLD + HOUR) == []


async def test_a_worker_keeps_documents_that_no_client_reaches(alice: Store, walter: Store, logins: Logins) -> None:
    scope = DocumentScope("session", "session-1")
    await walter.documents.change(scope, ["/a"], lambda _: {"/a": "text"}, DocumentWriter())

    with pytest.raises(ForgeError, match="permission denied"):
        await alice.documents.read(scope, "/a")
    assert [row["content"] for row in await sql(logins.urls["ada"], "SELECT content FROM documents")] == ["text"]
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await sql(logins.urls["walter"], "UPDATE documents SET content = 'other'")


async def test_doctor_serves_everybody(logins: Logins, tmp_path: Path) -> None:
    for person, url in logins.urls.items():
        found = await check_database(Settings.load(home=tmp_path, database_url=url, broker_url="redis://nowhere/0"))

        said = {one.subject: f"{one.level}: {one.said}" for one in found}
        assert (said["database"][:2], "workers" in said) == ("ok", True), (person, said)
        assert said["writes"].startswith("note: not tried" if person in ("alice", "mallory", "ada") else "ok")
