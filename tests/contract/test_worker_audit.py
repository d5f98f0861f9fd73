"""When a worker appends to the audit chain, and with which key."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import workers.services.upkeep
from forge_tools.config import Settings
from forge_tools.errors import ConfigurationError
from forge_tools.storage import Store
from forge_tools.storage.audit import HeadFile
from forge_tools.storage.audit.proof import make_key
from forge_tools.storage.heartbeat import Answers, Heartbeat
from tests.contract.calls import instance, scope
from tests.contract.sealed import forge, past, sealed_past, verified
from tests.waiting import within
from workers.services.service import Leadership, keep
from workers.services.upkeep import AUDIT_LEASE, AuditChain, signer_of

OLDEST, YOUNGER = "instance-1", "instance-2"


def chain(store: Store, worker_id: str = OLDEST, heads: Path | None = None, **options: Any) -> AuditChain:
    return AuditChain(store, worker_id, Settings(audit_interval=0.01, audit_heads=heads), None, **options)


async def test_what_was_appended_once_is_not_appended_again(store: Store) -> None:
    await past(store)
    assert await chain(store).append() == 3
    assert await chain(store).append() == 0
    assert (await verified(store)).is_intact


async def test_of_two_that_both_think_they_lead_one_appends(store: Store) -> None:
    await past(store)
    assert await store.workers.take_lease(AUDIT_LEASE, "instance-0", 15.0)
    assert await chain(store).append() == 0


@pytest.mark.parametrize("patience", [0.05, 600.0])
async def test_calls_come_first_for_a_while_and_then_it_is_sealed_all_the_same(
    store: Store, monkeypatch: pytest.MonkeyPatch, patience: float
) -> None:
    monkeypatch.setattr(workers.services.upkeep, "PATIENCE_SECONDS", patience)
    await past(store)
    looks: list[float] = []

    def is_idle() -> bool:
        looks.append(patience)
        return len(looks) > 40 and patience > 1

    async with beating(store, chain(store, is_idle=is_idle)), asyncio.timeout(60):
        while not await store.audit.count():
            await asyncio.sleep(0.01)
    assert len(looks) > 1 if patience < 1 else len(looks) > 40


async def test_where_nothing_happens_one_question_an_interval_goes_with_the_heartbeat(store: Store) -> None:
    await sealed_past(store)
    async with beating(store, chain(store)) as asked, asyncio.timeout(60):
        while len(asked) < 3:
            await asyncio.sleep(0.01)
        [first, second, *_] = asked
        assert (first["chained_end"], first["chained_event"]) < (second["chained_end"], second["chained_event"]), (
            "it goes less far back"
        )
        await past(store)
        while await store.audit.count() < 6:
            await asyncio.sleep(0.01)


async def test_a_worker_that_knows_of_no_other_leads(store: Store) -> None:
    await past(store)
    async with beating(store, chain(store, "instance-9"), Leadership("instance-9")), asyncio.timeout(60):
        while not await store.audit.count():
            await asyncio.sleep(0.01)


async def test_who_does_not_lead_does_not_ask(store: Store) -> None:
    younger = Leadership(YOUNGER)
    younger.living = frozenset({OLDEST, YOUNGER})
    async with beating(store, chain(store, YOUNGER), younger) as asked:
        await asyncio.sleep(0.2)
    assert asked == []


async def test_each_leader_keeps_the_heads_that_it_sealed_and_both_files_prove_the_chain(
    store: Store, tmp_path: Path
) -> None:
    files = [HeadFile(tmp_path / "one" / "heads"), HeadFile(tmp_path / "other" / "heads")]
    for file in [*files, *files]:
        await past(store)
        assert await chain(store, heads=file.path).append() == 3
    assert [[sequence for sequence, _ in file.read()] for file in files] == [[1, 3], [2, 4]]
    for file in files:
        assert (await verified(store, heads=file.read())).is_intact


async def test_a_leader_that_was_killed_before_it_kept_a_head_alarms_nobody(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = HeadFile(tmp_path / "heads")
    await past(store)
    await chain(store, heads=file.path).append()
    await sealed_past(store)  # and was not kept
    assert (await verified(store, heads=file.read())).is_intact
    await past(store)
    await chain(store, heads=file.path).append()
    assert [sequence for sequence, _ in file.read()] == [1, 3]
    assert (await verified(store, heads=file.read())).is_intact
    assert not caplog.records


async def test_a_lost_file_is_begun_again_and_said(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = HeadFile(tmp_path / "heads")
    await sealed_past(store)
    await past(store)
    await chain(store, heads=file.path).append()
    assert [one.getMessage() for one in caplog.records] == [
        "No head of the audit chain was kept here before, or the file of them is lost"
    ]
    assert (await verified(store, heads=file.read())).is_intact


async def test_a_chain_that_was_cut_is_an_error_in_the_log_and_the_file_stays_as_evidence(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, leader = HeadFile(tmp_path / "heads"), chain(store, heads=tmp_path / "heads")
    await past(store)
    await leader.append()
    kept = file.read()
    await forge(store, *(f"DELETE FROM {table}" for table in ("audit_batches", "audit_executions", "audit_events")))
    assert await leader.append() == 3  # history goes on to be sealed
    await past(store)
    assert await chain(store, heads=file.path).append() == 3
    assert file.read() == kept
    assert not (await verified(store, heads=kept)).is_intact
    assert [one.levelname for one in caplog.records] == ["ERROR", "ERROR"]
    assert "the database was restored, or the chain was truncated" in caplog.text
    file.path.unlink()
    await past(store)
    await leader.append()
    assert (await verified(store, heads=file.read())).is_intact


@pytest.mark.parametrize("content", [b"garbage", None])
async def test_a_file_that_cannot_be_used_is_named_once_and_sealing_goes_on(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes | None
) -> None:
    path = tmp_path / "heads"
    path.mkdir() if content is None else path.write_bytes(content)
    leader = chain(store, heads=path)
    for _ in range(2):
        await past(store)
        assert await leader.append() == 3
    [record] = caplog.records
    assert str(path) in record.error
    assert content is None or path.read_bytes() == content


@asynccontextmanager
async def beating(
    store: Store, audit: AuditChain, leadership: Leadership | None = None
) -> AsyncIterator[list[Mapping[str, Any]]]:
    """Append and beat for ever, as a worker does; yields what was asked of what is behind the chain."""
    asked: list[Mapping[str, Any]] = []
    await store.workers.register(instance("instance-1"))

    async def beat() -> None:
        for _ in within(60, "nobody ends the heartbeats"):
            questions = audit.ask()
            answers: Answers = await store.workers.beat(Heartbeat(scope(), tuple(questions)))
            audit.hear(answers)
            asked.extend(one.parameters for one in questions if one.parameters)
            await asyncio.sleep(0.005)

    tasks = [asyncio.ensure_future(beat()), asyncio.ensure_future(keep(audit, leadership or Leadership(OLDEST)))]
    yield asked
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def test_a_worker_signs_with_the_key_of_the_settings(tmp_path: Path) -> None:
    signer = make_key(tmp_path / "key")
    given = Settings(database_url="sqlite:///x.db", audit_key=tmp_path / "key")
    found = signer_of(given)
    assert found is not None
    assert found.key_id == signer.key_id
    with pytest.raises(ConfigurationError, match="cannot be read"):
        signer_of(Settings(database_url="sqlite:///x.db", audit_key=tmp_path / "none"))


def test_the_embedded_stack_makes_a_key_of_its_own_and_no_other_worker_does(tmp_path: Path) -> None:
    embedded = signer_of(Settings(home=tmp_path))
    assert embedded is not None
    assert (tmp_path / "audit.key").stat().st_mode & 0o777 == 0o600
    assert signer_of(Settings(home=tmp_path, database_url="sqlite:///x.db")) is None
