"""Who of several workers seals, and with which key."""

import asyncio
from pathlib import Path

import pytest

import workers.sealing
from forge_tools.config import Settings
from forge_tools.errors import ConfigurationError
from forge_tools.storage import Store
from forge_tools.storage.audit.keys import make_key
from tests.contract.sealed import past, verified
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
    keeping = asyncio.ensure_future(Sealing(store, "boot-1", settings, None, lambda: BOOTS, is_idle=is_idle).keep())
    async with asyncio.timeout(20):
        while not (await verified(store)).executions:
            await asyncio.sleep(0.01)
    keeping.cancel()
    assert len(looks) > 1 if patience < 1 else len(looks) > 40


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
