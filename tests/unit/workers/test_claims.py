"""Which calls a worker claims when a message comes."""

from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from forge_tools.errors import DatabaseUnavailableError
from forge_tools.model import Claim, Wakeup
from forge_tools.storage import Store, open_store
from tests.contract.calls import SCOPE, finished, submitted
from tests.migrated import migrated
from workers.activity import Activity
from workers.claims import Claims, Recorder


@pytest.fixture
async def store(sqlite_url: str) -> AsyncIterator[Store]:
    async with await open_store(migrated(sqlite_url)) as opened:
        yield opened


@pytest.fixture
async def claims(store: Store) -> Claims:
    """Of a worker that has not asked SQL for due calls yet, and does so at the first message."""
    activity = Activity()
    fit: Any = SimpleNamespace(lacks=None, may_claim=lambda: True, may_run=lambda: True)
    scoped: Any = SimpleNamespace(scope=SCOPE)
    lane: Any = SimpleNamespace()
    recorder = Recorder(store, activity, (), retry_seconds=1.0)
    how: dict[str, Any] = {"middleware": (), "send_on": lambda *_: None, "heartbeat": 60.0}
    return Claims(store, lane, scoped, fit, recorder, activity=activity, **how)


async def woken(claims: Claims, *ids: str) -> tuple[list[str], list[str]]:
    """What is run, and what is left."""
    ran: list[Claim] = []
    left = await claims.claim_woken([Wakeup(one, 0) for one in ids], ran.extend)
    return [claim.id for claim in ran], [one.id for one in left]


async def test_a_call_gives_way_to_overdue_ones_that_are_still_there(claims: Claims, store: Store) -> None:
    first, gone, kept = [await submitted(store) for _ in range(3)]
    assert await woken(claims, first) == ([first], [])
    await finished(store, [gone])
    late, last = [await submitted(store) for _ in range(2)]

    assert await woken(claims, late) == ([late], [])
    assert await woken(claims, last) == ([kept], [last])
    assert await woken(claims, last) == ([last], [])


async def test_what_was_claimed_runs_before_the_rest_is_asked_for(
    claims: Claims, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, gone, kept = [await submitted(store) for _ in range(3)]
    await woken(claims, first)
    await finished(store, [gone])
    late = [await submitted(store) for _ in range(2)]

    async def unavailable(*_: Any) -> Any:
        raise DatabaseUnavailableError("The database is away")

    def run(claims: Sequence[Claim]) -> None:
        ran.extend(claim.id for claim in claims)
        monkeypatch.setattr(store.queue, "claim", unavailable)

    ran: list[str] = []
    with pytest.raises(DatabaseUnavailableError):
        await claims.claim_woken([Wakeup(one, 0) for one in late], run)
    assert ran == [kept]
