"""Outcomes are stored through outages, and a slow broker delays none of them."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from forge_tools.broker.message import REPLY_MARK
from forge_tools.errors import DatabaseUnavailableError
from forge_tools.model import ExecutionStatus, ToolResult
from forge_tools.model.execution import Claim, Kept, Outcome
from forge_tools.secrets.encryption import decrypted_reply, new_reply_key
from forge_tools.storage import result_of
from tests.waiting import reached
from workers.claims import Recorder
from workers.middleware.notifications import MOST_WITH_RESULTS, Notifications
from workers.middleware.retries import Retries
from workers.outcomes import handed_back

CLAIM = Claim(
    id="id",
    attempt=1,
    token="token",
    tool="Echo",
    tool_version="1.0.0",
    parameters="{}",
    context="{}",
    timeout=5.0,
    max_attempts=1,
    idempotent=False,
    reply_to="client",
)
RETRY = '{"retry":{"delay_seconds":0.25}}'


class Store:
    """The finishing part of a store: fails as often as it is told to."""

    def __init__(self) -> None:
        self.failures = 0
        self.flushes: list[list[str]] = []
        self.retries: list[float] = []
        self.fenced: set[str] = set()
        self.replaced: set[str] = set()

    @property
    def queue(self) -> "Store":
        return self

    async def finish_many(self, outcomes: Sequence[Outcome]) -> list[Kept]:
        await asyncio.sleep(0)
        if self.failures:
            self.failures -= 1
            raise DatabaseUnavailableError("The database is away")
        self.flushes.append([outcome.id for outcome in outcomes])
        self.retries += [outcome.retry_in for outcome in outcomes if outcome.retry_in is not None]
        return [
            Kept.LATE if one.id in self.fenced else Kept.REPLACED if one.id in self.replaced else Kept.WHOLE
            for one in outcomes
        ]

    @property
    def stored(self) -> list[str]:
        return [one for flush in self.flushes for one in flush]


class Notified(list[tuple[str, str]]):
    """The broker's part in this: whom it was to notify of what."""

    def notify(self, channel: str, notification: bytes) -> None:
        self.append((channel, notification.decode("latin-1")))


class Bench:
    """A recorder with the middleware that ends go through, and what became of them."""

    def __init__(self, **options: bool) -> None:
        self.store, self.notified = Store(), Notified()
        self.flushes, self.due_in = 0, list[float]()
        broker: Any = self.notified
        store: Any = self.store
        activity: Any = SimpleNamespace(due_in=self.due_in.append, announce=self._flushed)
        self.notifications = Notifications(broker, **options)
        self.recorder = Recorder(store, activity, [Retries(), self.notifications], retry_seconds=0.01)

    def _flushed(self) -> None:
        self.flushes += 1

    until = staticmethod(reached)


def done(claim: Claim) -> Outcome:
    return Outcome(id=claim.id, attempt=claim.attempt, token=claim.token, status=ExecutionStatus.SUCCEEDED)


@asynccontextmanager
async def recording(**options: bool) -> AsyncIterator[Bench]:
    bench = Bench(**options)
    service = asyncio.ensure_future(bench.recorder.run())
    try:
        yield bench
    finally:
        service.cancel()
        await asyncio.gather(service, return_exceptions=True)


async def test_an_outcome_is_stored_and_its_submitter_notified() -> None:
    async with recording() as bench:
        bench.recorder.claimed([CLAIM])
        bench.recorder.add(done(CLAIM))
        await bench.until(lambda: bench.notified)

        assert (bench.store.stored, bench.notified) == (["id"], [("client", "id")])
        assert bench.recorder.is_idle

        bench.recorder.add(done(CLAIM))  # as of a claim that it never heard of
        await bench.until(lambda: len(bench.store.stored) == 2)
        assert bench.notified == [("client", "id")]


async def test_an_outcome_that_a_middleware_cannot_read_is_stored_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    async with recording() as bench:
        claim = replace(CLAIM, options=RETRY, max_attempts=3)
        bench.recorder.claimed([claim])
        bench.recorder.add(replace(done(claim), status=ExecutionStatus.FAILED, error="no", metadata="[]"))
        await bench.until(lambda: bench.store.stored)

    assert (bench.store.stored, bench.store.retries) == (["id"], [])
    assert "A middleware failed" in caplog.text


async def test_outcomes_of_one_moment_share_a_flush_and_a_notification() -> None:
    async with recording() as bench:
        claims = [replace(CLAIM, id=str(n), token=str(n)) for n in range(100)]
        bench.recorder.claimed(claims)
        for claim in claims:
            bench.recorder.add(done(claim))
        await bench.until(lambda: bench.notified)

        assert len(bench.store.flushes) == 1
        assert [len(ids.split()) for _, ids in bench.notified] == [100]


async def test_two_attempts_of_one_execution_each_notify() -> None:
    async with recording() as bench:
        second = replace(CLAIM, attempt=2, token="second")
        bench.recorder.claimed([CLAIM, second])
        bench.recorder.add(done(CLAIM))
        await bench.until(lambda: len(bench.notified) == 1)
        bench.recorder.add(done(second))

        await bench.until(lambda: len(bench.notified) == 2)


async def test_outcomes_are_kept_while_the_database_is_away(caplog: pytest.LogCaptureFixture) -> None:
    async with recording() as bench:
        bench.store.failures = 3
        bench.recorder.add(done(CLAIM))
        await bench.until(lambda: bench.store.failures == 0)
        bench.recorder.add(done(replace(CLAIM, id="later", token="later")))
        await bench.until(lambda: bench.recorder.is_idle)

        assert bench.store.stored == ["id", "later"]
        assert "they are kept" in caplog.text


async def test_a_worker_that_ends_while_the_database_is_away_names_the_calls(caplog: pytest.LogCaptureFixture) -> None:
    async with recording() as bench:
        bench.recorder.add(done(CLAIM))
        await bench.until(lambda: bench.recorder.is_idle)
        bench.recorder.give_up()
        assert not caplog.records
        bench.store.failures = 1_000_000
        bench.recorder.add(done(replace(CLAIM, id="later", token="later")))
        bench.recorder.give_up()
        assert caplog.records[-1].__dict__["executions"] == ["later"]


@pytest.mark.parametrize("outcome", [handed_back(CLAIM), replace(done(CLAIM), retry_in=1.0)])
async def test_what_goes_back_to_its_queue_notifies_nobody(outcome: Outcome) -> None:
    async with recording() as bench:
        bench.recorder.claimed([CLAIM])
        bench.recorder.add(outcome)
        await bench.until(lambda: bench.flushes)

        assert bench.notified == []


async def test_a_failure_that_a_policy_repeats_goes_back_and_says_when_it_is_due() -> None:
    async with recording() as bench:
        bench.recorder.claimed([replace(CLAIM, max_attempts=2, idempotent=True, options=RETRY)])
        bench.recorder.add(replace(done(CLAIM), status=ExecutionStatus.FAILED))
        await bench.until(lambda: bench.due_in)

        assert (bench.due_in, bench.store.retries, bench.notified) == ([0.25], [0.25], [])


async def test_who_submitted_what_ended_elsewhere_is_told() -> None:
    async with recording() as bench:
        bench.notifications.tell([("client", "one"), ("other", "two"), ("client", "three")])
        await bench.until(lambda: bench.notified)

        assert bench.notified == [("client", "one three"), ("other", "two")]


async def test_a_fenced_off_outcome_notifies_nobody() -> None:
    async with recording() as bench:
        bench.store.fenced.add("id")
        bench.recorder.claimed([CLAIM])
        bench.recorder.add(done(CLAIM))
        await bench.until(lambda: bench.flushes)

        assert bench.notified == []


KEY = new_reply_key()
KEYED = replace(CLAIM, reply_key=KEY)


def read(notified: tuple[str, str]) -> ToolResult | None:
    """The result in a notification, as its client reads it."""
    ids, _, reply = notified[1].encode("latin-1").partition(REPLY_MARK)
    text = decrypted_reply(KEY, ids.decode(), reply)
    return None if text is None else result_of(ids.decode(), text)


async def test_a_small_result_that_comes_with_few_others_rides_in_its_notification() -> None:
    async with recording() as bench:
        bench.recorder.claimed([KEYED])
        bench.recorder.add(replace(done(KEYED), output='{"a": 1}', duration_ms=2.5))
        await bench.until(lambda: bench.notified)

        result = read(bench.notified[0])
        assert result is not None
        assert (result.output, result.duration_ms) == ({"a": 1}, 2.5)
        assert result.metadata == {"execution_id": "id", "attempt": KEYED.attempt}


@pytest.mark.parametrize(
    ("claim", "changes", "settings"),
    [
        (CLAIM, {}, {}),
        (replace(KEYED, reply_key="no key"), {}, {}),
        (KEYED, {"output": '"' + "x" * 40_000 + '"'}, {}),
        (KEYED, {}, {"with_results": False}),
    ],
    ids=["no key", "bad key", "large", "off"],
)
async def test_where_the_result_cannot_ride_the_id_does(
    claim: Claim, changes: dict[str, Any], settings: dict[str, bool]
) -> None:
    async with recording(**settings) as bench:
        bench.recorder.claimed([claim])
        bench.recorder.add(replace(done(claim), **changes))
        await bench.until(lambda: bench.notified)

        assert bench.notified == [("client", "id")]


async def test_of_what_the_database_replaced_only_the_id_is_told() -> None:
    async with recording() as bench:
        bench.store.replaced.add("id")
        bench.recorder.claimed([KEYED])
        bench.recorder.add(done(KEYED))
        await bench.until(lambda: bench.notified)

        assert bench.notified == [("client", "id")]


async def test_of_many_ends_the_ids_are_told_together() -> None:
    async with recording() as bench:
        claims = [replace(KEYED, id=str(n), token=str(n)) for n in range(MOST_WITH_RESULTS + 1)]
        bench.recorder.claimed(claims)
        for claim in claims:
            bench.recorder.add(done(claim))
        await bench.until(lambda: bench.notified)

        assert [len(ids.split()) for _, ids in bench.notified] == [MOST_WITH_RESULTS + 1]
