"""What became of every call: counted, compared with what bodies did, and asserted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

from rich.table import Table

from examples.demo.effects import Effects
from examples.demo.plain_app import VISIBILITY_TIMEOUT
from examples.demo.schedule import COUNT, Work, keys
from examples.demo.stage import Stage
from forge_tools.cli.text import WIDE, Column, number, one_line, table, took
from forge_tools.errors import ErrorCode
from forge_tools.model import ExecutionRecord, ExecutionStatus, ToolResult

SHOWN_REASON = 58


@dataclass(frozen=True, slots=True)
class Accident:
    """What was killed, and the keys whose bodies ran on the host when it was."""

    at: float
    host: str
    killed: set[int]
    hit: set[str]
    child: int
    valkey: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything there is to judge by. `plain_returned` holds the keys whose results came back under plain Celery."""

    works: Sequence[Work]
    results: Mapping[str, ToolResult | None]
    records: Sequence[ExecutionRecord]
    effects: Effects
    accident: Accident
    seconds_after: float
    plain_returned: set[str]
    plain_refused: int
    plain_effects: Effects

    @property
    def lost(self) -> list[ExecutionRecord]:
        return [record for record in self.records if record.status is ExecutionStatus.LOST]

    @property
    def again(self) -> list[ExecutionRecord]:
        return [record for record in self.records if record.attempt > 1]

    @property
    def missing(self) -> int:
        """Calls of plain Celery that were accepted and never came back."""
        return COUNT - self.plain_refused - len(self.plain_returned)


def pronounce(stage: Stage, seen: Evidence) -> None:
    """Show the figures of both sides and assert ours."""
    accident = seen.accident
    hit = f"{len(accident.killed)} processes, {len(accident.hit)} calls ran there; nobody starts it again"
    stage.facts(
        [
            ("kill -9", f"host {accident.host}: {hit}"),
            ("kill -9", f"pid {accident.child} on the other host, in a call that must not run twice"),
            ("kill -9", f"Valkey, pid {accident.valkey}; the same to plain Celery, with acks_late"),
            ("settled", f"{took(seen.seconds_after * 1000)} later: a host is dead when it was silent for 15 s"),
        ]
    )
    stage.show(_figures(seen))
    stage.text(f"Celery repeats what it misses after {VISIBILITY_TIMEOUT} s, whatever took effect.")
    _say_a_loss(stage, seen)
    _claim(stage, seen)


def _claim(stage: Stage, seen: Evidence) -> None:
    unended = [record.id for record in seen.records if not record.is_over]
    unheard = [key for key, result in seen.results.items() if result is None]
    stage.claim(
        not unended and not unheard,
        f"submitted {COUNT}, terminal {COUNT}, and every caller has the result",
        unended or unheard,
    )
    broken = [f"{key}: {result.error}" for key, result in seen.results.items() if result and _is_wrong(key, seen)]
    stage.claim(not broken, "each success took effect, each loss says why and might have had one", broken[:3])
    repeated = {record.id for record in seen.again}
    harmful = [one.id for one in seen.again if not _is_harmless(one, seen) or one.hostname == seen.accident.host]
    stage.claim(
        bool(repeated) and not harmful, f"re-run elsewhere {len(repeated)}, all of them idempotent", harmful or "none"
    )
    wrong = [one.id for one in seen.lost if _is_harmless(one, seen) or not one.error]
    stage.claim(
        bool(seen.lost) and not wrong, f"lost {len(seen.lost)}, none of them idempotent, each with its reason", wrong
    )
    twice = _twice(seen.effects, seen.works)
    stage.claim(not twice, f"run twice though it must not be: {len(twice)}", sorted(twice))


def _figures(seen: Evidence) -> Table:
    ended = sum(record.is_over for record in seen.records)
    rows: list[tuple[str, object, object]] = [
        ("submitted", len(seen.records), COUNT - seen.plain_refused),
        ("terminal, and the caller knows", ended, len(seen.plain_returned)),
        ("  of these lost, with the reason", len(seen.lost), "-"),
        ("missing", len(seen.records) - ended, seen.missing),
        ("run again, idempotent", len(seen.again), len(_again(seen.plain_effects, seen.works))),
        (
            "run twice, not idempotent",
            len(_twice(seen.effects, seen.works)),
            len(_twice(seen.plain_effects, seen.works)),
        ),
    ]
    if seen.plain_refused:
        rows.append(("refused while the broker was away", 0, seen.plain_refused))
    columns = [Column("", itemgetter(0)), number("forge_tools", itemgetter(1)), number("plain Celery", itemgetter(2))]
    return table(columns, [(name, str(ours), str(plain)) for name, ours, plain in rows], WIDE)


def _say_a_loss(stage: Stage, seen: Evidence) -> None:
    for one in seen.lost[:1]:
        why = one_line(one.error)
        stage.facts([(f"lost: {one.tool}", why if len(why) <= SHOWN_REASON else f"{why[:SHOWN_REASON]}…")])


def _is_wrong(key: str, seen: Evidence) -> bool:
    """Whether a result contradicts the effects of its body."""
    result = seen.results[key]
    if result is None:
        return True
    if result.success:
        return key not in seen.effects.ends
    return result.error_code != ErrorCode.LOST or not result.error


def _is_harmless(record: ExecutionRecord, seen: Evidence) -> bool:
    """Whether that execution's tool may run again."""
    return record.tool in {work.tool.name for work in seen.works if work.is_idempotent}


def _again(effects: Effects, works: Sequence[Work]) -> set[str]:
    return {key for key in keys(works, idempotent=True) if len(effects.starts.get(key, [])) > 1}


def _twice(effects: Effects, works: Sequence[Work]) -> set[str]:
    return {key for key in keys(works, idempotent=False) if len(effects.starts.get(key, [])) > 1}
