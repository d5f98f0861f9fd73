"""The store against a model of an execution's life: any order of steps, the right one or not, on every database."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import delete, select, update

from forge_tools.model import ExecutionStatus, ToolCategory, ToolSpec, new_id
from forge_tools.model.execution import TERMINAL, Claim, NewExecution, Scope, Wakeup
from forge_tools.storage import Store, open_store
from forge_tools.storage.functions import from_now
from forge_tools.storage.sqlalchemy_tables import execution_attempts, execution_queue, executions
from tests.contract.calls import beat, call, ended, finish_one, instance, scope, submit_one

LATER = 3600.0
QUEUED, RUNNING = ExecutionStatus.QUEUED, ExecutionStatus.RUNNING
AWAITING, CANCELLED = ExecutionStatus.AWAITING_APPROVAL, ExecutionStatus.CANCELLED
EXPIRED, REJECTED = ExecutionStatus.EXPIRED, ExecutionStatus.REJECTED
SUCCEEDED, FAILED, LOST = ExecutionStatus.SUCCEEDED, ExecutionStatus.FAILED, ExecutionStatus.LOST

SPEC = ToolSpec(name="Grep", description="Search", category=ToolCategory.FILE)
INSTANCES = ("instance-1", "instance-2")
SCOPES = [
    scope(instance=name, lane=lane, queues=queues)
    for name in INSTANCES
    for lane in ("async", "process")
    for queues in (("default",), ("default", "background"))
]
ENDINGS: dict[str, dict[str, Any]] = {
    "succeed": {"status": SUCCEEDED},
    "fail": {"status": FAILED},
    "retry": {"status": FAILED, "retry_in": 0.0},
    "retry later": {"status": FAILED, "retry_in": LATER},
    "lose": {"status": LOST, "retry_in": 0.0},
    "give back": {"status": QUEUED, "give_back": True},
}

STEPS: dict[str, Callable[["Life"], bool]] = {
    "claim_rightly": lambda life: life.can_be_claimed(life.host()),
    "finish_the_last_claim": lambda life: life.status is RUNNING,
    "put_back_what_is_to_be_stopped": lambda life: life.status is RUNNING and life.is_cancel_asked,
    "finish_the_first_claim": lambda life: bool(life.claims),
    "claim_as_anybody": lambda life: life.status is QUEUED,
    "claim_in_vain": lambda life: life.status is QUEUED and (life.is_cancel_asked or life.is_expired),
    "claim_another_attempt": lambda life: not life.is_over,
    "cancel": lambda life: True,
    "cancel_what_runs": lambda life: life.status is RUNNING,
    "sweep": lambda life: True,
    "recover": lambda life: life.status is RUNNING,
    "let_its_time_come": lambda life: not life.is_due,
    "let_its_time_be_over": lambda life: life.status is RUNNING,
    "stop_it_for_approval": lambda life: life.status is RUNNING,
    "approve_it": lambda life: life.status is AWAITING,
    "submit_again": lambda life: True,
    "ask_what_is_due": lambda life: True,
    "ask_what_is_to_be_stopped": lambda life: life.is_cancel_asked,
}
"""What may happen, and to which calls rather than to others: it is tried on those too where there is none."""

OFTEN = ["claim_rightly", "finish_the_last_claim"] * 4
OFTEN += ["recover", "claim_in_vain", *["cancel_what_runs", "put_back_what_is_to_be_stopped"] * 2]

CALLS = st.fixed_dictionaries(
    {
        "delay": st.sampled_from([0.0, 0.0, 0.0, 0.0, LATER]),
        "max_attempts": st.sampled_from([3, 2, 3, 2, 1]),
        "idempotent": st.booleans(),
        "lane": st.sampled_from(["async", "process"]),
        "queue": st.sampled_from(["default", "background"]),
    }
)


@dataclass
class Life:
    """What the model believes of one execution."""

    new: NewExecution
    is_due: bool
    lane: str
    status: ExecutionStatus = QUEUED
    attempt: int = 0
    token: str | None = None
    claims: list[Claim] = field(default_factory=list)
    owner: str | None = None
    is_expired: bool = False
    is_cancel_asked: bool = False
    ends: list[tuple[int, ExecutionStatus, bool]] = field(default_factory=list)
    settled: set[tuple[str, ExecutionStatus]] = field(default_factory=set)
    deaths: list[tuple[str, int]] = field(default_factory=list)
    given_back: set[str] = field(default_factory=set)

    @property
    def is_over(self) -> bool:
        return self.status in TERMINAL

    def can_be_claimed(self, by: Scope) -> bool:
        is_free = self.status is QUEUED and self.is_due and not self.is_expired and not self.is_cancel_asked
        is_mine = self.lane == by.lane and self.new.queue in by.queues
        return is_free and is_mine and self.attempt < self.new.max_attempts

    def host(self, name: str = "instance-1") -> Scope:
        """A worker that may run it."""
        return scope(instance=name, lane=self.lane, queues=(self.new.queue,))

    def start(self, claim: Claim, owner: str) -> None:
        self.status, self.attempt, self.owner = RUNNING, self.attempt + 1, owner
        self.token = claim.token
        self.claims.append(claim)

    def end(self, attempt: int, status: ExecutionStatus) -> None:
        self.ends.append((attempt, status, True))
        self.status, self.token, self.owner = status, None, None

    def wait(self, *, is_due: bool) -> None:
        self.status, self.token, self.owner = QUEUED, None, None
        self.is_due, self.is_expired = is_due, False

    def finish(self, claim: Claim, ending: str) -> bool:
        """What a worker reports; whether it took effect, now or before."""
        changes = ENDINGS[ending]
        status = changes["status"]
        if self.status is not RUNNING or self.token != claim.token:
            return claim.token in self.given_back or (claim.token, status) in self.settled
        if "give_back" in changes:
            self.given_back.add(claim.token)
            self.attempt -= 1
            self.wait(is_due=True)
            return True
        self.settled.add((claim.token, status))
        if "retry_in" in changes and self.attempt < self.new.max_attempts and not self.is_cancel_asked:
            self.ends.append((self.attempt, status, False))
            self.wait(is_due=changes["retry_in"] == 0.0)
        else:
            self.end(self.attempt, status)
        return True

    def cancel(self) -> str:
        if self.is_over:
            return "over"
        if self.status is RUNNING:
            self.is_cancel_asked = True
            return "requested"
        self.end(self.attempt + 1, CANCELLED)
        return "cancelled"

    def lose_owner(self, beats: Counter[str]) -> str:
        """Run again where it was, unless it was present at two deaths: a worker that beat again was not dead."""
        self.deaths.append((str(self.owner), beats[str(self.owner)]))
        is_suspect = sum(beats[name] == then for name, then in self.deaths) > 1
        if not self.new.idempotent or self.attempt >= self.new.max_attempts:
            self.end(self.attempt, LOST)
            return "lost"
        self.ends.append((self.attempt, LOST, False))
        self.wait(is_due=True)
        self.lane = (
            "process" if is_suspect and self.new.queue == "default" else self.lane
        )  # served there by the third instance
        return "requeued"

    def sweep(self) -> bool:
        """Whether it is over by a sweep."""
        if self.status not in {QUEUED, AWAITING} or not (self.is_expired or self.is_cancel_asked):
            return False
        late = REJECTED if self.status is AWAITING else EXPIRED
        self.end(self.attempt + 1, CANCELLED if self.is_cancel_asked else late)
        return True


class Lives(RuleBasedStateMachine):
    """Takes every step on the store and on the model, and compares what both answer.

    Steps are one rule, not one each: a run leaves some rules out, and without claims, say, little else can happen.
    """

    def __init__(self, runner: asyncio.Runner, store: Store) -> None:
        super().__init__()
        self.run, self.store = runner.run, store
        self.lives: dict[str, Life] = {}
        self.places: list[str] = []
        self.beats: Counter[str] = Counter()

    @initialize(facts=st.lists(CALLS, min_size=3, max_size=3))
    def submit(self, facts: Sequence[dict[str, Any]]) -> None:
        """Few calls at a time, so that many steps meet in each."""
        news = [call(**one, tool_digest=SPEC.digest, expires_in=one["delay"] + 600) for one in facts]
        assert self.run(self.store.queue.submit_many(news)) == [None] * len(news)
        self.lives |= {new.id: Life(new, is_due=not new.delay, lane=new.lane) for new in news}
        self.places += [new.id for new in news]

    @rule(step=st.sampled_from(OFTEN + list(STEPS)), which=st.integers(0, 2), how=st.integers(0, 7), facts=CALLS)
    def something_happens(self, step: str, which: int, how: int, facts: dict[str, Any]) -> None:
        likely = [id_ for id_ in self.places if STEPS[step](self.lives[id_])] or self.places
        id_ = likely[which % len(likely)]
        getattr(self, step)(id_, how)
        if self.lives[id_].is_over and how % 2:  # some steps find a call that is over, but not most
            self.places.remove(id_)
            self.submit([facts])

    def submit_again(self, id_: str, how: int) -> None:
        self.run(submit_one(self.store, self.lives[id_].new))

    def claim_rightly(self, id_: str, how: int) -> None:
        self.claim(id_, self.lives[id_].attempt, self.lives[id_].host(INSTANCES[how % 2]))

    claim_in_vain = claim_rightly

    def claim_as_anybody(self, id_: str, how: int) -> None:
        self.claim(id_, self.lives[id_].attempt, SCOPES[how])

    def claim_another_attempt(self, id_: str, how: int) -> None:
        life = self.lives[id_]
        wakeups = [Wakeup(id_, attempt) for attempt in range(4) if attempt != life.attempt]
        assert self.run(self.store.queue.claim(wakeups, life.host())) == []

    def claim(self, id_: str, attempt: int, by: Scope) -> None:
        won = self.run(self.store.queue.claim([Wakeup(id_, attempt)] * 2, by))
        assert len(won) == self.lives[id_].can_be_claimed(by)
        for claim in won:
            self.lives[id_].start(claim, by.instance)
            assert claim.attempt == self.lives[id_].attempt

    def finish_the_last_claim(self, id_: str, how: int) -> None:
        self.finish(id_, self.lives[id_].claims[-1:], how)

    def put_back_what_is_to_be_stopped(self, id_: str, how: int) -> None:
        self.finish(id_, self.lives[id_].claims[-1:], list(ENDINGS).index("retry" if how % 2 else "give back"))

    def finish_the_first_claim(self, id_: str, how: int) -> None:
        self.finish(id_, self.lives[id_].claims[:1], how)

    def finish(self, id_: str, claims: Sequence[Claim], how: int) -> None:
        ending = list(ENDINGS)[how % len(ENDINGS)]
        for claim in claims:
            assert not self.run(finish_one(self.store, ended(claim, **ENDINGS[ending], token=new_id())))
            took_effect = self.run(finish_one(self.store, ended(claim, **ENDINGS[ending])))
            assert took_effect == self.lives[id_].finish(claim, ending)

    def cancel(self, id_: str, how: int) -> None:
        assert self.run(self.store.transitions.cancel(id_, actor="ann")) == self.lives[id_].cancel()

    cancel_what_runs = cancel

    def recover(self, id_: str, how: int) -> None:
        dead = self.lives[id_].owner or INSTANCES[how % 2]
        owned = [id_ for id_, life in self.lives.items() if life.owner == dead]
        self.run(beat(self.store, "instance-3"))  # so the host is there, and the dead one alone is not
        requeued, lost = self.run(self.store.transitions.recover(dead, "dead"))
        verdicts = {id_: self.lives[id_].lose_owner(self.beats) for id_ in owned}
        assert verdicts == dict.fromkeys(requeued, "requeued") | dict.fromkeys(lost, "lost")

    def sweep(self, id_: str, how: int) -> None:
        assert set(self.run(self.store.transitions.sweep())) == {
            id_ for id_, life in self.lives.items() if life.sweep()
        }

    def let_its_time_come(self, id_: str, how: int) -> None:
        self.move(id_, not_before=from_now(-1.0))
        self.lives[id_].is_due = True

    def let_its_time_be_over(self, id_: str, how: int) -> None:
        self.move(id_, expires_at=from_now(-1.0))
        self.lives[id_].is_expired = True

    def stop_it_for_approval(self, id_: str, how: int) -> None:
        life = self.lives[id_]
        if life.status is RUNNING:
            life.status, life.attempt, life.token, life.owner = AWAITING, life.attempt - 1, None, None
            self.move(id_, status=AWAITING.value, attempt=life.attempt, token=None, owner=None, started_at=None)

    def approve_it(self, id_: str, how: int) -> None:
        life = self.lives[id_]
        if life.status is AWAITING:
            life.status = QUEUED
            self.move(id_, status=QUEUED.value)

    def ask_what_is_due(self, id_: str, how: int) -> None:
        by = SCOPES[how]
        expected = [Wakeup(id_, life.attempt) for id_, life in sorted(self.lives.items()) if life.can_be_claimed(by)]
        assert self.run(self.store.queue.due(by, 1000)) == expected

    def ask_what_is_to_be_stopped(self, id_: str, how: int) -> None:
        name = self.lives[id_].owner or INSTANCES[how % 2]
        asked = [(i, life) for i, life in sorted(self.lives.items()) if life.owner == name and life.is_cancel_asked]
        self.beats[name] += 1
        assert self.run(beat(self.store, name)) == [Wakeup(id_, life.attempt) for id_, life in asked]

    @invariant()
    def the_database_holds_what_the_model_believes(self) -> None:
        live, ends, asked = self.run(self.read())
        starts = {id_: sum(is_started for *_, is_started in mine) for id_, mine in ends.items()}
        assert sorted(asked) == sorted(self.lives)
        assert live == {
            id_: (life.status, life.attempt, life.lane, life.token, life.owner)
            for id_, life in self.lives.items()
            if not life.is_over
        }
        for id_, life in self.lives.items():
            assert [end[:3] for end in ends.get(id_, ())] == life.ends
            assert sum(is_final for _, _, is_final in life.ends) == life.is_over
            assert starts.get(id_, 0) + (life.status is RUNNING) <= life.new.max_attempts

    def teardown(self) -> None:
        for table in (execution_queue, execution_attempts, executions):
            self.write(delete(table))

    def move(self, id_: str, **values: Any) -> None:
        self.write(update(execution_queue).where(execution_queue.c.id == id_).values(values))

    def write(self, statement: Any) -> None:
        self.run(self.store.database.write(lambda connection: connection.execute(statement)))

    async def read(self) -> tuple[dict[str, Any], dict[str, Any], Sequence[str]]:
        live, last = execution_queue.c, execution_attempts.c
        ends: dict[str, list[Any]] = {}
        columns = (last.execution_id, last.attempt, last.status, last.final, last.started_at.is_not(None))
        async with self.store.database.reading() as connection:
            rows = await connection.execute(
                select(live.id, live.status, live.attempt, live.lane, live.token, live.owner)
            )
            moving = {id_: tuple(values) for id_, *values in rows}
            for id_, *end in await connection.execute(select(*columns).order_by(last.attempt)):
                ends.setdefault(id_, []).append(tuple(end))
            return moving, ends, (await connection.scalars(select(executions.c.id))).all()


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


def test_whatever_happens_in_whatever_order_an_execution_lives_as_the_model_says(
    runner: asyncio.Runner, migrated_url: str
) -> None:
    store = runner.run(open_store(migrated_url))
    runner.run(register_instances(store))
    try:
        run_state_machine_as_test(
            lambda: Lives(runner, store),
            settings=settings(
                max_examples=15,
                stateful_step_count=30,
                print_blob=True,
                suppress_health_check=[HealthCheck.too_slow],
            ),
        )
    finally:
        runner.run(store.close())


async def register_instances(store: Store) -> None:
    """Besides the two a third one, to which recovery may move what ran in the async lane."""
    for name in INSTANCES:
        await store.workers.register(instance(name))
    await store.workers.register(instance("instance-3", lane="process"))
    await store.catalogue.publish([SPEC], "instance-3")
