"""What people are told of calls that do not move, and the way out of each."""

from forge_tools.cli.face import one_line
from forge_tools.cli.moments import age
from forge_tools.records import StuckCalls, StuckReason

BEATS = 10
"""Heartbeats that a due call may wait for a worker with free slots: a busy one looks into SQL every fifth."""


def sentence(stuck: StuckCalls) -> str:
    """What does not move, where, for how long, and why."""
    many = f"{stuck.count} calls" if stuck.count > 1 else "1 call"
    place = f"queue {stuck.queue}, {stuck.lane} lane"
    where = f"{one_line(stuck.hostname)} pid {stuck.pid}"
    why = {
        StuckReason.OWNER_GONE: f"runs on {where}, which is silent or stopped",
        StuckReason.OVERDUE: f"runs on {where} beyond its time limit",
        StuckReason.NOT_TAKEN: "is due, and workers with free slots do not take it",
        StuckReason.NOT_HOSTED: "is due, and no worker of its queue hosts the tool",
        StuckReason.OTHER_VERSION: f"is due and needs {one_line(stuck.wanted)}; workers of its queue host "
        f"{one_line(', '.join(stuck.hosted))}",
        StuckReason.DISABLED: "is due, and the tool is disabled",
    }
    return f"{many} of {one_line(stuck.tool)} ({place}) {why[stuck.reason]}, for {age(stuck.seconds)}: {stuck.example}"


def way_out(stuck: StuckCalls) -> str:
    """What to do about it."""
    ways = {
        StuckReason.OWNER_GONE: "Any live worker of the same database settles it within two leases; start one if none is "
        "alive: forge-tools up.",
        StuckReason.OVERDUE: f"Its engine should have ended it: look at the log of that worker, or end it with kill "
        f"{stuck.pid}; what it ran is settled by another.",
        StuckReason.NOT_TAKEN: "Look at the logs of its workers for claims that fail, and restart them.",
        StuckReason.NOT_HOSTED: f"Start a worker that offers it: --tools or --categories, --lane {stuck.lane}, "
        f"--queues {stuck.queue}.",
        StuckReason.OTHER_VERSION: "Start a worker that hosts what they need; or, where the tool is pinned, let what there is "
        f"run them: forge-tools tools unpin {stuck.tool}",
        StuckReason.DISABLED: f"Enable it, forge-tools tools enable {stuck.tool}, or let its calls expire.",
    }
    return ways[stuck.reason]
