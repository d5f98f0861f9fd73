"""Who of several workers seals, and with which key."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import workers.sealing
from forge_tools.config import Settings
from forge_tools.errors import ConfigurationError
from forge_tools.storage import Store
from forge_tools.storage.audit.keys import make_key
from forge_tools.storage.looks import Question
from tests.contract.calls import boot, scope
from tests.contract.sealed import past, sealed_past, verified
from tests.waiting import within
from workers.sealing import LEASE, Sealing, signer_of

BOOTS = frozenset({"boot-1", "boot-2"})


def sealing(store: Store, boot: str, settings: Settings | None = None, among: frozenset[str] = BOOTS) -> Sealing:
    settings = settings or Settings()
    return Sealing(store, boot, settings, None, lambda: among)


async def test_the_oldest_boot_seals_and_the_others_leave_it_to_it(store: Store) -> None:
    await past(store)
    assert await sealing(store, "boot-2").step() == 0
    assert await sealing(store, "boot-1").step() == 3
    assert await sealing(store, "boot-1").step() == 0
    assert (await verified(store)).is_intact


async def test_a_worker_that_knows_of_no_other_seals(store: Store) -> None:
    await past(store)
    assert await sealing(store, "boot-9", among=frozenset()).step() == 3


async def test_of_two_that_both_think_they_are_the_oldest_one_seals(store: Store) -> None:
    await past(store)
    assert await store.workers.take_lease(LEASE, "boot-0", 15.0)
    assert await sealing(store, "boot-1").step() == 0


@pytest.mark.parametrize("patience", [0.05, 600.0])
async def test_calls_come_first_for_a_while_and_then_it_is_sealed_all_the_same(
    store: Store, monkeypatch: pytest.MonkeyPatch, patience: float
) -> None:
    monkeypatch.setattr(workers.sealing, "PATIENCE_SECONDS", patience)
    await past(store)
    looks: list[float] = []

    def is_idle() -> bool:
        looks.append(patience)
        return len(looks) > 40 and patience > 1

    settings = Settings(audit_interval=0.01)
    sealer = Sealing(store, "boot-1", settings, None, lambda: BOOTS, is_idle=is_idle)
    async with looking(store, sealer), asyncio.timeout(60):
        while not await store.audit.count():
            await asyncio.sleep(0.01)
    assert len(looks) > 1 if patience < 1 else len(looks) > 40


async def test_where_nothing_happens_one_question_an_interval_goes_with_the_heartbeat(store: Store) -> None:
    await sealed_past(store)
    sealer = Sealing(store, "boot-1", Settings(audit_interval=0.01), None, lambda: BOOTS)
    async with looking(store, sealer) as questions, asyncio.timeout(60):
        while len(questions) < 3:
            await asyncio.sleep(0.01)
        [first, second, *_] = questions
        assert (first.sealed.end, first.sealed.event) < (second.sealed.end, second.sealed.event), (
            "it goes less far back"
        )
        await past(store)
        while (await verified(store)).executions < 6:
            await asyncio.sleep(0.01)


async def test_who_is_not_the_oldest_does_not_ask(store: Store) -> None:
    sealer = Sealing(store, "boot-2", Settings(audit_interval=0.01), None, lambda: BOOTS)
    async with looking(store, sealer) as questions:
        await asyncio.sleep(0.2)
    assert questions == []


@asynccontextmanager
async def looking(store: Store, sealer: Sealing) -> AsyncIterator[list[Any]]:
    """Seal and look for ever, as an engine does; yields the questions that asked for what is unsealed."""
    questions: list[Any] = []
    await store.workers.register(boot("boot-1"))

    async def look() -> None:
        for _ in within(60, "nobody ends the looks"):
            question = Question(scope(), sealed=sealer.question())
            sealer.hear(question, await store.workers.look(question))
            if question.sealed is not None:
                questions.append(question)
            await asyncio.sleep(0.005)

    tasks = [asyncio.ensure_future(look()), asyncio.ensure_future(sealer.keep())]
    yield questions
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
