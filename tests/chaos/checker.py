"""The checker: a pure function from what was submitted, done and observed to the broken promises."""

import errno
import os
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Literal, TypeVar

from forge_tools.model import ExecutionStatus, Lane
from forge_tools.model.execution import TERMINAL
from tests.chaos.calls import Planned
from tests.chaos.crew import DRAIN, UNEXPLAINED, Deaths
from tests.chaos.effects import SHORT_FOR, Effect

Key = TypeVar("Key", bound=Hashable)
Row = TypeVar("Row")

SLACK = 0.25
"""Seconds between what a body notes and what the runtime measures around it."""

LATEST_ANSWER = 15.0
"""Seconds within which a submit is answered: its deadline of 5 s, on a machine that is busy."""

LATE = 2.0
"""Seconds by which a body may end later than it should, on a machine that is busy."""

SET = 300.0
"""Seconds by which no duration may be wrong: half of what clocks are set by, and more than anybody is suspended for."""

BEGUN_TOGETHER = 1.0
"""Seconds that their process runs until bodies have begun that were claimed with the one that leaves them no descriptors."""

NO_DESCRIPTORS = os.strerror(errno.EMFILE)

Answer = Literal["accepted", "refused", "unknown"]


@dataclass(frozen=True, slots=True)
class Submitted:
    """A call, and what its submitter was told."""

    call: Planned
    answer: Answer
    id: str | None = None
    is_cancelled: bool = False
    """Whether a cancel was asked for, by then or later."""
    seconds: float = 0.0
    """How long the answer took."""

    @property
    def mark(self) -> str:
        return self.call.mark


@dataclass(frozen=True, slots=True)
class Execution:
    """A row of the view `tool_executions`."""

    id: str
    mark: str
    status: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Ended:
    """A row of `execution_attempts`. `duration` is in seconds; `pid` is the worker's."""

    id: str
    attempt: int
    is_final: bool
    status: str
    pid: int | None
    is_started: bool
    duration: float | None = None
    output: str | None = None
    error_code: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Resolved:
    """What a handle gave its client."""

    id: str
    is_success: bool
    output: object
    error_code: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All there is to know about a run.

    `sightings` are final rows seen on the way, `events` how many there are of each kind, `leftovers` processes that should be gone.
    `silent` are workers that lived at the end and did not beat; `garbage` messages that are none were written, and `dropped` counted.
    """

    submitted: Sequence[Submitted]
    executions: Sequence[Execution]
    queued: Sequence[str] = ()
    attempts: Sequence[Ended]
    sightings: Sequence[Ended] = ()
    effects: Sequence[Effect]
    resolved: Mapping[str, Resolved]
    events: Mapping[str, int] = field(default_factory=dict)
    deaths: Deaths = field(default_factory=Deaths)
    leftovers: Mapping[int, str] = field(default_factory=dict)
    silent: Collection[int] = ()
    garbage: int = 0
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken promise: the rule, the call, and what was found."""

    rule: str
    mark: str
    found: str

    def __str__(self) -> str:
        return f"{self.rule} [{self.mark}]: {self.found}"


@dataclass(frozen=True, slots=True)
class Famine:
    """A process that a body left without descriptors, `until` they were to be had again; in a child they never are.

    The body looked at `looks` whether any came free: what it waits between two is time in which its process ran.
    """

    by: Effect
    lane: Lane
    looks: tuple[float, ...] = ()
    until: float = inf

    def meets(self, start: Effect) -> bool:
        """Whether that other body began in the same process before it was over."""
        is_same = (start.pid, start.parent) == (self.by.pid, self.by.parent)
        return is_same and start.mark != self.by.mark and start.at < self.until


@dataclass(slots=True)
class Case:
    """Everything about one call, and every famine of the run."""

    submitted: Submitted
    executions: list[Execution]
    attempts: list[Ended]
    sightings: list[Ended]
    effects: list[Effect]
    famines: list[Famine]
    resolved: Resolved | None
    is_queued: bool

    @property
    def starts(self) -> list[Effect]:
        return [effect for effect in self.effects if effect.what == "start"]

    @property
    def ends(self) -> list[Effect]:
        return [effect for effect in self.effects if effect.what == "end"]

    @property
    def status(self) -> str:
        return self.executions[0].status

    @property
    def finals(self) -> list[Ended]:
        return [attempt for attempt in self.attempts if attempt.is_final]


def check(evidence: Evidence) -> list[Violation]:
    """Every broken promise, one by one."""
    every = list(cases(evidence))
    held = {start.pid for case in every for start in case.starts if case.submitted.call.kind.holds_loop}
    stopped = {pid: at for pid, at in evidence.deaths.stopped.items() if pid not in held}
    deaths = replace(evidence.deaths, stopped=stopped)
    violations = [
        Violation(rule.__name__, case.submitted.mark, found)
        for case in every
        for rule in RULES
        for found in rule(case, deaths)
    ]
    return [*violations, *_of_the_whole(evidence)]


def _of_the_whole(evidence: Evidence) -> Iterator[Violation]:
    for pid, command in evidence.leftovers.items():
        yield Violation("nothing_is_left_running", f"pid {pid}", command)
    for pid, how in evidence.deaths.workers.items():
        if how.startswith(UNEXPLAINED):
            yield Violation("workers_live_until_something_ends_them", f"pid {pid}", how)
    asked = {one.mark for one in evidence.submitted}
    for one in evidence.executions:
        if one.mark not in asked:
            yield Violation("nothing_runs_unasked", one.mark, f"execution {one.id}")
    for pid in evidence.silent:
        yield Violation("whoever_lives_beats", f"pid {pid}", "this worker lives, and its heartbeat stands still")
    if bool(evidence.garbage) != bool(evidence.dropped):
        found = f"{evidence.garbage} messages were written that are none, and {evidence.dropped} dropped"
        yield Violation("garbage_is_dropped_and_counted", "the brokers", found)


WHOLE_RUN_RULES = (
    "nothing_is_left_running",
    "workers_live_until_something_ends_them",
    "nothing_runs_unasked",
    "whoever_lives_beats",
    "garbage_is_dropped_and_counted",
)
"""Rules about a run as a whole; the others, in `RULES`, look at one call at a time."""


def cases(evidence: Evidence) -> Iterator[Case]:
    """The evidence, call by call."""
    rows = _grouped((row.mark, row) for row in evidence.executions)
    attempts = _grouped((row.id, row) for row in evidence.attempts)
    sightings = _grouped((row.id, row) for row in evidence.sightings)
    effects = _grouped((effect.mark, effect) for effect in evidence.effects)
    queued, famines = set(evidence.queued), list(_famines(evidence))
    for submitted in evidence.submitted:
        executions = rows[submitted.mark]
        first = executions[0].id if executions else submitted.id or ""
        yield Case(
            submitted=submitted,
            executions=executions,
            attempts=attempts[first],
            sightings=sightings[first],
            effects=effects[submitted.mark],
            famines=famines,
            resolved=evidence.resolved.get(submitted.mark),
            is_queued=first in queued,
        )


def _famines(evidence: Evidence) -> Iterator[Famine]:
    lanes = {one.mark: one.call.kind.lane for one in evidence.submitted}
    over = {(one.mark, one.pid): one.at for one in evidence.effects if one.what == "enough"}
    short = _grouped(((one.mark, one.pid), one) for one in evidence.effects if one.what == "short")
    for body, looks in short.items():
        if body[0] in lanes:
            yield Famine(looks[0], lanes[body[0]], tuple(look.at for look in looks), over.get(body, inf))


def _grouped(pairs: Iterable[tuple[Key, Row]]) -> defaultdict[Key, list[Row]]:
    groups: defaultdict[Key, list[Row]] = defaultdict(list)
    for key, row in pairs:
        groups[key].append(row)
    return groups


# The rules: each yields what it finds wrong with one call.


def accepted_is_stored_once_and_refused_never(case: Case, deaths: Deaths) -> Iterator[str]:
    allowed = {"accepted": {1}, "refused": {0}, "unknown": {0, 1}}[case.submitted.answer]
    if len(case.executions) not in allowed:
        yield f"{case.submitted.answer}, but {len(case.executions)} executions are stored"
    if case.submitted.id and any(row.id != case.submitted.id for row in case.executions):
        yield f"stored as {case.executions[0].id}, but its submitter was given {case.submitted.id}"


def a_submit_is_answered_in_time(case: Case, deaths: Deaths) -> Iterator[str]:
    if case.submitted.seconds > LATEST_ANSWER:
        yield f"{case.submitted.answer} after {case.submitted.seconds:.1f}s"


def every_call_ends(case: Case, deaths: Deaths) -> Iterator[str]:
    for row in case.executions:
        if row.status not in TERMINAL:
            yield f"{row.id} is {row.status} after {row.attempt} attempts"
        elif case.is_queued:
            yield f"{row.id} is {row.status} and still has a row in the queue"


def it_ends_once(case: Case, deaths: Deaths) -> Iterator[str]:
    if case.executions and case.status in TERMINAL and len(case.finals) != 1:
        yield f"{len(case.finals)} final attempts: {[(one.attempt, one.status) for one in case.finals]}"
    if case.finals and any(one.attempt > case.finals[-1].attempt for one in case.attempts):
        yield "attempts were recorded after the final one"


def the_end_never_changes(case: Case, deaths: Deaths) -> Iterator[str]:
    for seen in case.sightings:
        if seen not in case.finals:
            yield f"attempt {seen.attempt} was over as {seen.status}, now {[(f.attempt, f.status) for f in case.finals]}"


def a_body_starts_only_as_often_as_allowed(case: Case, deaths: Deaths) -> Iterator[str]:
    starts, allowed = len(case.starts), case.submitted.call.max_starts
    if starts > allowed:
        yield f"{starts} bodies of {case.submitted.call.tool} started, at most {allowed} may"
    elif case.executions and starts > case.executions[0].attempt:
        yield f"{starts} bodies started, but {case.executions[0].attempt} attempts were counted"
    if starts and not case.executions:
        yield "a body started of a call that is not stored"


def success_has_its_effect(case: Case, deaths: Deaths) -> Iterator[str]:
    for final in case.finals:
        if final.status == ExecutionStatus.SUCCEEDED and not case.ends:
            yield "succeeded, but no body came to its end"
        if final.status == ExecutionStatus.SUCCEEDED and final.output != case.submitted.mark:
            yield f"succeeded with {final.output!r}, the output of another call"


def it_ends_as_such_a_call_may(case: Case, deaths: Deaths) -> Iterator[str]:
    allowed = {*case.submitted.call.kind.endings, ExecutionStatus.LOST}
    if case.submitted.is_cancelled:
        allowed.add(ExecutionStatus.CANCELLED)
    for attempt in case.attempts:
        if attempt.status not in allowed and not _fell_short(attempt, case):
            yield f"attempt {attempt.attempt} of {case.submitted.call.tool} ended as {attempt.status} ({attempt.error_code})"


def _fell_short(attempt: Ended, case: Case) -> bool:
    """Whether a neighbour in the async lane left it no descriptor, and it may not be tried again."""
    call = case.submitted.call
    may_run_again = call.idempotent and attempt.attempt < call.max_starts
    if attempt.status != ExecutionStatus.FAILED or NO_DESCRIPTORS not in (attempt.error or ""):
        return False
    if attempt.is_final and may_run_again:
        return False
    met = [famine for famine in case.famines for start in case.starts if famine.meets(start)]
    return any(famine.lane == "async" and famine.by.pid == attempt.pid for famine in met)


def no_body_begins_where_descriptors_are_short(case: Case, deaths: Deaths) -> Iterator[str]:
    for start in case.starts:
        for famine in case.famines:
            looks = sum(look < start.at for look in famine.looks)
            is_late = looks * SHORT_FOR > BEGUN_TOGETHER or famine.lane == "process"
            if famine.meets(start) and start.at > famine.by.at and is_late:
                yield f"began in process {start.pid} {start.at - famine.by.at:.2f}s after {famine.by.mark} left it none, which looked {looks} times"


def nobody_gets_what_is_anothers(case: Case, deaths: Deaths) -> Iterator[str]:
    for effect in case.effects:
        if effect.what == "got":
            yield f"an impostor in process {effect.pid} got {effect.found[:200]}"


def lost_only_where_something_died(case: Case, deaths: Deaths) -> Iterator[str]:
    for attempt in case.attempts:
        if attempt.status == ExecutionStatus.LOST and not _has_excuse(attempt, case, deaths):
            yield f"attempt {attempt.attempt} on worker {attempt.pid} is lost, but nothing of it died"


def _has_excuse(attempt: Ended, case: Case, deaths: Deaths) -> bool:
    if case.submitted.call.kind.ends_process or attempt.pid in deaths.workers:
        return True
    if (
        not attempt.is_started
    ):  # the end of an execution whose attempts are used up; each of them must have its own excuse
        return any(one.is_started for one in case.attempts)
    if any(deaths.children.get(start.pid) == attempt.pid for start in case.starts):
        return True
    return not case.starts and attempt.pid in deaths.children.values()


def a_polite_stop_cuts_nothing_that_ends_in_time(case: Case, deaths: Deaths) -> Iterator[str]:
    """Unless the call or something else ended the process."""
    for attempt in case.attempts:
        asked_at = deaths.stopped.get(attempt.pid or 0)
        if attempt.status != ExecutionStatus.LOST or asked_at is None or case.submitted.call.kind.ends_process:
            continue
        starts = [start for start in case.starts if attempt.pid in (start.pid, start.parent)]
        begun = max((start.at for start in starts), default=asked_at)
        left = begun + case.submitted.call.takes - asked_at
        if left < DRAIN - LATE and not any(start.pid in deaths.children for start in starts):
            yield f"attempt {attempt.attempt} on worker {attempt.pid} had {left:.1f}s to go and was cut"


def who_returned_in_time_is_not_timed_out(case: Case, deaths: Deaths) -> Iterator[str]:
    timeout = case.submitted.call.kind.timeout
    for attempt in case.attempts:
        if attempt.status != ExecutionStatus.TIMED_OUT:
            continue
        if attempt.duration is not None and attempt.duration < timeout - SLACK:
            yield f"timed out after {attempt.duration:.2f}s of {timeout:g}s"
        took = [end.at - start.at for start, end in zip(case.starts, case.ends, strict=False) if start.pid == end.pid]
        if attempt.is_final and len(case.starts) == len(took) and took[-1:] and took[-1] < timeout - SLACK:
            yield f"its body returned after {took[-1]:.2f}s of {timeout:g}s, and it is timed out"


def a_duration_is_that_of_the_body(case: Case, deaths: Deaths) -> Iterator[str]:
    if len(case.starts) != 1 or len(case.ends) != 1:
        return
    took = case.ends[0].at - case.starts[0].at
    for final in case.finals:
        if final.duration is not None and not took - SLACK <= final.duration <= took + SET:
            yield f"its body took {took:.2f}s, on record are {final.duration:.2f}s"


def handles_tell_what_is_stored(case: Case, deaths: Deaths) -> Iterator[str]:
    if case.submitted.answer == "accepted" and case.finals and case.resolved is None:
        yield f"{case.submitted.id} is {case.status}, but its handle never resolved"
    if case.resolved is not None:
        told = (case.resolved.is_success, case.resolved.output, case.resolved.error_code)
        for final in case.finals:
            stored = (final.status == ExecutionStatus.SUCCEEDED, final.output, final.error_code)
            if told != stored:
                yield f"the handle said {told}, stored is {stored}"


RULES = (
    accepted_is_stored_once_and_refused_never,
    a_submit_is_answered_in_time,
    every_call_ends,
    it_ends_once,
    the_end_never_changes,
    a_body_starts_only_as_often_as_allowed,
    success_has_its_effect,
    it_ends_as_such_a_call_may,
    no_body_begins_where_descriptors_are_short,
    nobody_gets_what_is_anothers,
    lost_only_where_something_died,
    a_polite_stop_cuts_nothing_that_ends_in_time,
    who_returned_in_time_is_not_timed_out,
    a_duration_is_that_of_the_body,
    handles_tell_what_is_stored,
)


def by_rule(violations: Iterable[Violation]) -> Counter[str]:
    return Counter(violation.rule for violation in violations)
