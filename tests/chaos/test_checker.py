"""The checker itself: it accepts correct runs, and each of its rules can fail."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from forge_tools.model import ExecutionStatus, Lane
from tests.chaos import checker
from tests.chaos.calls import SUCCEEDED, TIMED_OUT, Planned, kind
from tests.chaos.checker import Ended, Evidence, Execution, Resolved, Submitted, check
from tests.chaos.crew import DRAIN, Deaths
from tests.chaos.effects import SHORT_FOR, Effect

WORK = kind("Work", "process", [SUCCEEDED, TIMED_OUT], timeout=5.0)
CALL = Planned(0.0, "m", WORK, idempotent=False, seconds=1.0)
HANGING = replace(CALL, kind=kind("Hang", "process", [TIMED_OUT], timeout=5.0))
SUBMITTED = Submitted(CALL, "accepted", "id")
BLOCKER = Submitted(Planned(0.0, "b", kind("Block", "async", [TIMED_OUT]), idempotent=False, seconds=0.0), "unknown")
EXECUTION = Execution("id", "m", "succeeded", 1)
FINAL = Ended("id", 1, is_final=True, status="succeeded", pid=10, is_started=True, duration=1.0, output="m")
START, END = Effect("m", "start", pid=11, parent=10, at=100.0), Effect("m", "end", pid=11, parent=10, at=101.0)
LOST = replace(FINAL, status="lost", output=None, error_code="LOST")
SOUND = Evidence(
    submitted=[SUBMITTED],
    executions=[EXECUTION],
    attempts=[FINAL],
    sightings=[FINAL],
    effects=[START, END],
    resolved={"m": Resolved("id", is_success=True, output="m", error_code=None)},
)


def lost(**more: Any) -> Evidence:
    """A call that is lost, and everybody says so."""
    told = {"m": Resolved("id", is_success=False, output=None, error_code="LOST")}
    execution = replace(EXECUTION, status="lost")
    evidence = replace(SOUND, executions=[execution], attempts=[LOST], sightings=[LOST], resolved=told, effects=[START])
    return replace(evidence, **more)


def cut(asked_at: float = 100.5, seconds: float = 1.0, **more: Any) -> Evidence:
    """A call that is lost on a worker that was asked to stop; its body began at 100."""
    submitted = [replace(SUBMITTED, call=replace(CALL, seconds=seconds))]
    deaths = Deaths(workers={10: "stopped"}, stopped={10: asked_at})
    return lost(**{"submitted": submitted, "deaths": deaths, **more})


def timed_out(**more: Any) -> Evidence:
    """A call that ran out of its time, and everybody says so."""
    final = replace(FINAL, status="timed_out", output=None, error_code="TIMEOUT", duration=5.1)
    told = {"m": Resolved("id", is_success=False, output=None, error_code="TIMEOUT")}
    execution = replace(EXECUTION, status="timed_out")
    evidence = replace(SOUND, executions=[execution], attempts=[final], sightings=[], resolved=told, effects=[START])
    return replace(evidence, **more)


SHORT = Effect("eater", "short", pid=10, parent=1, at=100.0)
STARVING = [replace(SHORT, at=100.0 + look * SHORT_FOR) for look in range(20)]
ENOUGH = replace(SHORT, what="enough", at=110.0)
EMFILE = "Unexpected error: OSError: [Errno 24] Too many open files"


def starting(at: float) -> Effect:
    """A body that begins in the async lane of worker 10."""
    return replace(START, pid=10, parent=1, at=at)


def starved(*, effects: Sequence[Effect], lane: Lane = "async", idempotent: bool = False, **attempt: Any) -> Evidence:
    """A call that failed for want of descriptors, which another one took."""
    call = replace(CALL, kind=replace(WORK, lane=lane), idempotent=idempotent)
    eater = replace(CALL, kind=kind("Starve", lane, []), mark="eater")
    final = replace(FINAL, **{"status": "failed", "output": None, "error": EMFILE, "error_code": "E", **attempt})
    if final.status == "succeeded":
        final = FINAL
    told = Resolved("id", is_success=final is FINAL, output=final.output, error_code=final.error_code)
    return replace(
        SOUND,
        submitted=[replace(SUBMITTED, call=call), Submitted(eater, "unknown")],
        executions=[replace(EXECUTION, status=final.status)],
        attempts=[final],
        sightings=[],
        effects=effects,
        resolved={"m": told},
    )


@pytest.mark.parametrize(
    "evidence",
    [
        SOUND,
        timed_out(),
        lost(deaths=Deaths(workers={10: "killed"})),
        lost(deaths=Deaths(children={11: 10})),
        lost(deaths=Deaths(children={12: 10}), effects=[]),
        cut(seconds=DRAIN + 1),
        cut(deaths=Deaths(workers={10: "stopped"})),
        cut(deaths=Deaths(children={11: 10}, workers={10: "stopped"}, stopped={10: 100.5})),
        starved(effects=[*STARVING, starting(100.9)]),
        starved(effects=[*STARVING[:9], starting(122.9)]),
        starved(effects=[SHORT, replace(ENOUGH, at=99.5), starting(100.9), END], error=None, status="succeeded"),
        starved(effects=[replace(SHORT, pid=99), starting(105), END], error=None, status="succeeded"),
        replace(SOUND, garbage=5, dropped=3),
        replace(SOUND, submitted=[Submitted(CALL, "unknown", "id")], resolved={}),
        Evidence(submitted=[Submitted(CALL, "refused")], executions=[], attempts=[], effects=[], resolved={}),
    ],
)
def test_what_is_right_is_accepted(evidence: Evidence) -> None:
    assert check(evidence) == []


@pytest.mark.parametrize(
    ("rule", "evidence"),
    [
        ("accepted_is_stored_once_and_refused_never", replace(SOUND, executions=[EXECUTION, EXECUTION])),
        ("accepted_is_stored_once_and_refused_never", replace(SOUND, executions=[])),
        ("accepted_is_stored_once_and_refused_never", replace(SOUND, submitted=[Submitted(CALL, "refused")])),
        ("accepted_is_stored_once_and_refused_never", replace(SOUND, submitted=[replace(SUBMITTED, id="other")])),
        ("a_submit_is_answered_in_time", replace(SOUND, submitted=[replace(SUBMITTED, seconds=16.0)])),
        ("every_call_ends", replace(SOUND, executions=[replace(EXECUTION, status="running")])),
        ("every_call_ends", replace(SOUND, queued=["id"])),
        ("it_ends_once", replace(SOUND, attempts=[FINAL, replace(FINAL, attempt=2)])),
        ("it_ends_once", replace(SOUND, attempts=[])),
        ("it_ends_once", replace(SOUND, attempts=[FINAL, replace(FINAL, attempt=2, is_final=False)])),
        ("the_end_never_changes", replace(SOUND, sightings=[LOST])),
        ("the_end_never_changes", replace(SOUND, sightings=[replace(FINAL, output="other")])),
        ("a_body_starts_only_as_often_as_allowed", replace(SOUND, effects=[START, END, START])),
        ("a_body_starts_only_as_often_as_allowed", replace(SOUND, executions=[replace(EXECUTION, attempt=0)])),
        ("success_has_its_effect", replace(SOUND, effects=[START])),
        ("success_has_its_effect", replace(SOUND, attempts=[replace(FINAL, output="another's")])),
        ("it_ends_as_such_a_call_may", replace(SOUND, attempts=[replace(FINAL, status="failed")])),
        ("it_ends_as_such_a_call_may", replace(SOUND, attempts=[replace(FINAL, status="cancelled")])),
        ("it_ends_as_such_a_call_may", replace(SOUND, attempts=[replace(FINAL, status="expired")])),
        ("it_ends_as_such_a_call_may", starved(effects=[starting(100.0)])),
        ("it_ends_as_such_a_call_may", starved(effects=[SHORT, starting(100.5)], error="no")),
        ("it_ends_as_such_a_call_may", starved(effects=[SHORT, starting(100.5)], idempotent=True)),
        ("it_ends_as_such_a_call_may", starved(effects=[SHORT, starting(99.5)], lane="process")),
        ("it_ends_as_such_a_call_may", starved(effects=[SHORT, ENOUGH, starting(110.5)])),
        ("no_body_begins_where_descriptors_are_short", starved(effects=[*STARVING, starting(101.5)])),
        ("no_body_begins_where_descriptors_are_short", starved(effects=[SHORT, starting(100.1)], lane="process")),
        ("nobody_gets_what_is_anothers", replace(SOUND, effects=[START, replace(START, what="got"), END])),
        ("lost_only_where_something_died", lost()),
        ("lost_only_where_something_died", lost(deaths=Deaths(workers={99: "killed"}, children={98: 10}))),
        ("lost_only_where_something_died", lost(deaths=Deaths(children={11: 99}))),
        ("a_polite_stop_cuts_nothing_that_ends_in_time", cut()),
        ("a_polite_stop_cuts_nothing_that_ends_in_time", cut(effects=[])),
        ("a_polite_stop_cuts_nothing_that_ends_in_time", cut(submitted=[replace(SUBMITTED, call=HANGING)])),
        ("who_returned_in_time_is_not_timed_out", timed_out(effects=[START, END])),
        (
            "who_returned_in_time_is_not_timed_out",
            replace(SOUND, attempts=[replace(FINAL, status="timed_out", duration=1.0)]),
        ),
        ("a_duration_is_that_of_the_body", replace(SOUND, attempts=[replace(FINAL, duration=601.0)])),
        ("a_duration_is_that_of_the_body", replace(SOUND, attempts=[replace(FINAL, duration=0.5)])),
        ("handles_tell_what_is_stored", replace(SOUND, resolved={})),
        (
            "handles_tell_what_is_stored",
            replace(SOUND, resolved={"m": Resolved("id", is_success=False, output=None, error_code="LOST")}),
        ),
        ("nothing_is_left_running", replace(SOUND, leftovers={12: "sleep 3600"})),
        ("workers_live_until_something_ends_them", replace(SOUND, deaths=Deaths(workers={9: "unexplained, status 1"}))),
        ("whoever_lives_beats", replace(SOUND, silent={10})),
        ("garbage_is_dropped_and_counted", replace(SOUND, garbage=5)),
        ("garbage_is_dropped_and_counted", replace(SOUND, dropped=5)),
        ("nothing_runs_unasked", replace(SOUND, executions=[EXECUTION, Execution("b", "stranger", "succeeded", 1)])),
    ],
)
def test_what_is_wrong_is_found_by_the_rule_that_is_there_for_it(rule: str, evidence: Evidence) -> None:
    assert rule in {violation.rule for violation in check(evidence)}


def test_a_worker_whose_loop_was_held_is_excused_for_what_it_cut() -> None:
    held = Effect("b", "start", pid=10, parent=1, at=99.0)

    rules = {one.rule for one in check(cut(submitted=[SUBMITTED, BLOCKER], effects=[START, held]))}

    assert "a_polite_stop_cuts_nothing_that_ends_in_time" not in rules


def test_every_rule_is_seen_to_fail() -> None:
    marks = test_what_is_wrong_is_found_by_the_rule_that_is_there_for_it.pytestmark
    failing = {rule for rule, _ in marks[0].args[1]}

    assert {rule.__name__ for rule in checker.RULES} | set(checker.WHOLE_RUN_RULES) == failing


def test_an_idempotent_call_may_start_three_times_and_not_four() -> None:
    again = replace(SOUND, submitted=[replace(SUBMITTED, call=replace(CALL, idempotent=True))])
    third = replace(again, executions=[replace(EXECUTION, attempt=4)], effects=[START, START, START, END])

    assert check(third) == []
    assert [v.rule for v in check(replace(third, effects=[*third.effects, START]))] == [
        "a_body_starts_only_as_often_as_allowed"
    ]


def test_a_call_that_was_asked_to_be_cancelled_may_end_so() -> None:
    status = ExecutionStatus.CANCELLED.value
    told = {"m": Resolved("id", is_success=False, output=None, error_code="CANCELLED")}
    final = replace(FINAL, status=status, output=None, error_code="CANCELLED")
    evidence = replace(
        SOUND, executions=[replace(EXECUTION, status=status)], attempts=[final], sightings=[], resolved=told
    )

    assert check(replace(evidence, submitted=[replace(SUBMITTED, is_cancelled=True)])) == []
    assert [v.rule for v in check(evidence)] == ["it_ends_as_such_a_call_may"]
