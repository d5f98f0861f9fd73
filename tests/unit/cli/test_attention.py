"""What people read about calls that do not move."""

from dataclasses import replace

import pytest

from forge_tools.cli.attention import sentence, way_out
from forge_tools.model.overview import StuckCalls, StuckReason

ONE = StuckCalls(
    reason=StuckReason.OWNER_GONE,
    queue="default",
    lane="async",
    tool="Grep",
    count=1,
    seconds=75.0,
    example="01a20085-ebef",
    hostname="host-1",
    pid=11,
    wanted="2.0.0 (ab)",
    hosted=("1.0.0 (cd)",),
)


@pytest.mark.parametrize(
    ("reason", "said", "out"),
    [
        (StuckReason.OWNER_GONE, "runs on host-1 pid 11, which is silent or stopped, for 1m", "forge-tools up"),
        (StuckReason.OVERDUE, "runs on host-1 pid 11 beyond its time limit, for 1m", "kill 11"),
        (StuckReason.NOT_TAKEN, "workers with free slots do not take it, for 1m", "logs of its workers"),
        (StuckReason.NOT_HOSTED, "no worker of its queue hosts the tool, for 1m", "--lane async, --queues default"),
        (
            StuckReason.OTHER_VERSION,
            "needs 2.0.0 (ab); workers of its queue host 1.0.0 (cd), for 1m",
            "tools unpin Grep",
        ),
        (StuckReason.DISABLED, "but the tool is disabled, for 1m", "forge-tools tools enable"),
    ],
)
def test_each_reason_is_a_sentence_with_a_way_out(reason: StuckReason, said: str, out: str) -> None:
    stuck = replace(ONE, reason=reason)
    assert sentence(stuck).startswith("1 call of Grep (queue default, async lane) ")
    assert said in sentence(stuck)
    assert sentence(stuck).endswith(": 01a20085-ebef")
    assert out in way_out(stuck)


def test_many_calls_are_counted() -> None:
    assert sentence(replace(ONE, count=3)).startswith("3 calls of Grep")
