"""The last scene of the demo: its calls, its counts, and that each of its claims can fail."""

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from examples.demo.effects import Effects, note
from examples.demo.outage import victims_of
from examples.demo.schedule import COUNT, Work, at_its_time, due, schedule
from examples.demo.stage import BrokenPromiseError, Stage
from examples.demo.verdict import Accident, Evidence, pronounce
from forge_tools.cli.face import Face, Output
from forge_tools.errors import ErrorCode
from forge_tools.model import ExecutionStatus, ToolResult

LOST, AGAIN = "notify", "fetch"


@dataclass
class Record:
    """The part of an execution's record that the verdict reads."""

    id: str
    tool: str
    status: ExecutionStatus = ExecutionStatus.SUCCEEDED
    attempt: int = 1
    error: str | None = None
    hostname: str = "alpha"
    is_over: bool = field(default=True)


def first(works: list[Work], tool: str) -> int:
    return next(work.number for work in works if work.tool.name == tool)


def evidence(**changes: Any) -> Evidence:
    """A run as it should be: one call was lost, one ran again."""
    works = schedule()
    lost, again = first(works, LOST), first(works, AGAIN)
    records = [Record(work.key, work.tool.name) for work in works]
    records[lost] = Record(works[lost].key, LOST, ExecutionStatus.LOST, error="its host died")
    records[again].attempt = 2
    results = {work.key: ToolResult.ok(work.key) for work in works}
    results[works[lost].key] = ToolResult.fail("its host died", error_code=ErrorCode.LOST)
    starts = {work.key: [1] for work in works} | {works[again].key: [1, 2]}
    ends = {work.key: [1] for work in works if work.number != lost}
    values: dict[str, Any] = {
        "works": works,
        "results": results,
        "records": records,
        "effects": Effects(starts, ends),
        "accident": Accident(at=0.0, host="beta", killed={1}, hit={works[lost].key}, child=2, valkey=3),
        "seconds_after": 17.0,
        "plain_returned": {work.key for work in works[4:]},
        "plain_refused": 1,
        "plain_effects": Effects(starts, ends),
    }
    return Evidence(**(values | changes))


def judged(seen: Evidence) -> list[str]:
    stage = Stage(Face(output=Output.JSON))
    stage.section("Outage")
    pronounce(stage, seen)
    claims: list[str] = stage.sections[0]["claims"]
    return claims


def test_a_run_as_it_should_be_is_claimed_and_counted() -> None:
    seen = evidence()
    claims = judged(seen)
    assert claims[0].startswith(f"submitted {COUNT}, terminal {COUNT}")
    assert claims[2:] == [
        "re-run elsewhere 1, all of them idempotent",
        "lost 1, none of them idempotent, each with its reason",
        "run twice though it must not be: 0",
    ]
    assert seen.missing == 3


def test_a_call_that_is_not_over_breaks_the_promise() -> None:
    seen = evidence()
    seen.records[5].is_over = False
    with pytest.raises(BrokenPromiseError, match="terminal 200"):
        judged(seen)


def test_a_caller_without_a_result_breaks_the_promise() -> None:
    seen = evidence()
    with pytest.raises(BrokenPromiseError, match="every caller has the result"):
        judged(replace(seen, results={**seen.results, seen.works[5].key: None}))


def test_a_success_without_an_effect_breaks_the_promise() -> None:
    seen = evidence()
    with pytest.raises(BrokenPromiseError, match="each success took effect"):
        judged(replace(seen, effects=Effects(seen.effects.starts, {})))


def test_a_body_that_ran_twice_and_must_not_breaks_the_promise() -> None:
    seen = evidence()
    seen.effects.starts[seen.works[first(schedule(), "charge")].key].append(9)
    with pytest.raises(BrokenPromiseError, match="run twice though it must not be: 1"):
        judged(seen)


@pytest.mark.parametrize(("tool", "status"), [(AGAIN, ExecutionStatus.LOST), (LOST, ExecutionStatus.LOST)])
def test_a_loss_that_need_not_be_or_says_nothing_breaks_the_promise(tool: str, status: ExecutionStatus) -> None:
    seen = evidence()
    records = [*seen.records, Record("x", tool, status, error="why" if tool == AGAIN else "")]
    with pytest.raises(BrokenPromiseError, match="each with its reason"):
        judged(replace(seen, records=records))


def test_a_run_that_lost_and_repeated_nothing_proves_nothing() -> None:
    seen = evidence()
    seen.records[first(schedule(), AGAIN)].attempt = 1
    with pytest.raises(BrokenPromiseError, match="re-run elsewhere 0"):
        judged(seen)


def test_effects_are_counted_by_start_and_end(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert Effects.read(log) == Effects({}, {})
    for key, mark in (("a", "start"), ("b", "start"), ("a", "end"), ("b", "end"), ("b", "start")):
        note(str(log), key, mark)
    effects = Effects.read(log)
    assert effects.starts == {"a": [os.getpid()], "b": [os.getpid()] * 2}
    assert effects.running() == {"b": os.getpid()}


def test_the_schedule_mixes_four_kinds_and_never_changes() -> None:
    works = schedule()
    assert [work.number for work in works] == list(range(COUNT))
    assert {work.tool.name for work in works[:20]} == {"fetch", "notify", "render", "charge"}
    assert sum(work.is_idempotent for work in works) == COUNT // 2
    assert [work.key for work in works] == [work.key for work in schedule()]


def test_calls_are_made_in_order_until_it_is_over() -> None:
    works, is_over = schedule(), iter([False, False, False, True])
    assert list(at_its_time(works, due(-COUNT, 0), lambda: next(is_over))) == works[:3]


def test_the_moment_needs_both_kinds_on_the_doomed_host_and_a_child_elsewhere() -> None:
    running = {"fetch-1": [1], "notify-2": [1], "charge-3": [2]}
    precious = {"notify-2", "charge-3"}
    found = victims_of(Effects(running, {}), {1}, precious, {"charge-3"})
    assert found is not None
    assert (found.hit, found.child) == ({"fetch-1", "notify-2"}, 2)
    for gone in running:
        assert victims_of(Effects(running, {gone: [1]}), {1}, precious, {"charge-3"}) is None
