"""The result of a run: for people, and as the figures that the guarantees quote."""

from collections import Counter
from typing import Any

from tests.chaos.checker import by_rule
from tests.chaos.harness import Run

MOST_SHOWN = 40


def figures(done: Run) -> dict[str, Any]:
    """The run in numbers."""
    evidence = done.evidence
    starts = Counter(effect.mark for effect in evidence.effects if effect.what == "start")
    return {
        "seed": done.plan.seed,
        "database": done.plan.database,
        "broker": done.plan.broker,
        "seconds": done.plan.seconds,
        "calls": len(evidence.submitted),
        "answers": dict(done.answers()),
        "statuses": dict(done.statuses()),
        "started_again": sum(count > 1 for count in starts.values()),
        "events": dict(evidence.events),
        "faults": dict(sorted(done.faults.items())),
        "worker_deaths": dict(Counter(evidence.deaths.workers.values())),
        "settled_after": None if done.settled_after is None else round(done.settled_after, 1),
        "violations": dict(by_rule(done.violations)),
    }


def summary(done: Run) -> str:
    """The figures, the violations, and, where there are any, the schedule that replays them."""
    lines = [f"{name}: {_shown(value)}" for name, value in figures(done).items()]
    lines += [f"VIOLATION {violation}" for violation in done.violations[:MOST_SHOWN]]
    if len(done.violations) > MOST_SHOWN:
        lines.append(f"... and {len(done.violations) - MOST_SHOWN} more")
    if done.violations:
        lines += [f"Replay: {done.plan.replay}", str(done.plan)]
    return "\n".join(lines)


def _shown(value: Any) -> str:
    if not isinstance(value, dict):
        return "never" if value is None else str(value)
    return ", ".join(f"{name} {count}" for name, count in value.items()) or "none"
