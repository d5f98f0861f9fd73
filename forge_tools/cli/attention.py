"""What needs an operator's attention, the most urgent first, and why calls do not move; each with what to do."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from forge_tools.cli.text import age, counted, limit, one_line
from forge_tools.model.execution import ExecutionStatus
from forge_tools.model.overview import FailedCalls, Overview, QueueLoad, StuckCalls, StuckReason, WorkerRecord
from forge_tools.model.places import serving_command

BEATS = 10
"""Heartbeats that a due call may wait for a worker with free slots: a busy worker reads SQL only every fifth."""

SILENT_BEATS = 5
"""Heartbeats that a worker may miss before it is reported."""

WAIT_SECONDS = 10.0
"""How long calls may wait for a slot before that is reported."""

GONE = "Look at that host and its log. If it is gone, any live worker of the same database settles its calls."
START = "forge-tools up, or forge-tools worker --lane async --queues default"
FEWEST_FAILURES = 3
FAILING, BROKEN = 0.2, 0.5
"""Shares of failed calls among those that ended: from the first on a tool is reported, from the second on urgently."""


@dataclass(frozen=True, slots=True)
class Concern:
    level: Literal["now", "soon"]
    subject: str
    said: str
    way_out: str


def concerns(seen: Overview, *, heartbeat: float, lease: float) -> list[Concern]:
    found = [
        *_unserved(seen),
        *(Concern("now", "stuck", sentence(one), way_out(one)) for one in seen.stuck),
        *_lost(seen.failures),
        *_silent([one.worker for one in seen.workers], SILENT_BEATS * heartbeat, lease),
        *_unfit([one.worker for one in seen.workers]),
        *_failing(seen),
        *_full(seen.queues),
        *_servers(one.worker for one in seen.workers),
        *_demoted(seen),
    ]
    return sorted(found, key=lambda one: one.level != "now")  # stable: within a level the order above holds


def _unserved(seen: Overview) -> Iterator[Concern]:
    for one in seen.queues:
        if one.waiting and not one.workers:
            where = f"in queue {one_line(one.queue)}, {one.lane} lane, which no live worker serves"
            said = f"{_calls(one.waiting)} {where}, for {age(one.oldest_seconds or 0)}"
            yield Concern("now", "queue", said, serving_command(one.queue, one.lane))
    if not seen.workers:
        yield Concern("now", "workers", "No worker is alive", START)


def _lost(failures: Sequence[FailedCalls]) -> Iterator[Concern]:
    for one in failures:
        if one.status is ExecutionStatus.LOST:
            said = f"{counted(one.calls, 'call')} of {one_line(one.tool)} lost with a worker: whether they took effect is unknown"
            yield Concern("now", "calls", said, f"forge-tools show {one.example}")


def _silent(workers: Sequence[WorkerRecord], patience: float, lease: float) -> Iterator[Concern]:
    hosts: dict[str, list[float]] = defaultdict(list)
    for worker in workers:
        if worker.silent_seconds > patience:
            hosts[worker.hostname].append(worker.silent_seconds)
    for host, silences in sorted(hosts.items()):
        longest = max(silences)
        said = f"{counted(len(silences), 'worker')} on {one_line(host)} silent for {age(longest)}"
        if longest > lease:
            yield Concern("now", "worker", said, GONE)
        else:
            out = f"It counts as dead after {limit(lease)}: wait, or look at that host and its log."
            yield Concern("soon", "worker", said, out)


def _unfit(workers: Sequence[WorkerRecord]) -> Iterator[Concern]:
    for one in workers:
        if one.unfit:
            said = f"{one_line(one.hostname)} pid {one.pid} is unfit and claims nothing: {one_line(one.unfit)}"
            yield Concern("now", "worker", said, "It ends by itself, and its supervisor starts a new one")


def _failing(seen: Overview) -> Iterator[Concern]:
    for one in seen.tools:
        ended = one.failed + one.succeeded
        if one.failed >= FEWEST_FAILURES and one.failed / ended >= FAILING:
            said = f"{one_line(one.key)} fails: {one.failed:,} of {ended:,} calls in {limit(seen.window)}"
            worst = next((it for it in seen.failures if it.tool == one.key), None)  # the most frequent comes first
            why = f", {worst.calls:,} with {one_line(worst.error_code or worst.status.value)}" if worst else ""
            why += f": {one_line(worst.why)}" if worst and worst.why else ""
            way_out = f"forge-tools show {worst.example}" if worst else "forge-tools history --status failed"
            yield Concern("now" if one.failed / ended >= BROKEN else "soon", "tool", f"{said}{why}", way_out)


def _full(queues: Sequence[QueueLoad]) -> Iterator[Concern]:
    for one in queues:
        waited = one.oldest_seconds or 0.0
        if one.workers and not one.free and waited > WAIT_SECONDS:
            where = f"in queue {one_line(one.queue)}, {one.lane} lane"
            said = f"{_calls(one.waiting)} {where}, for up to {age(waited)}: all {one.slots} slots are taken"
            yield Concern("soon", "queue", said, f"Start more workers: {serving_command(one.queue, one.lane)}")


def _servers(workers: Iterable[WorkerRecord]) -> Iterator[Concern]:
    for one in (server for worker in workers for server in worker.servers if server.status == "failing"):
        way_out = "Fix what it reports, or its entry in FORGE_MCP_CONFIG."
        yield Concern("now", "mcp server", one_line(one.sentence), way_out)


def _demoted(seen: Overview) -> Iterator[Concern]:
    for one in seen.demoted:
        said = f"{one_line(one.tool)} {one_line(one.version)} blocked the async lane {age((seen.at - one.at).total_seconds())} ago"
        way_out = f"Make it await, or declare lane process: {one_line(one.reason)}"
        yield Concern("soon", "tool", f"{said} and has run in the process lane since", way_out)


def _calls(count: int) -> str:
    return "1 call waits" if count == 1 else f"{count:,} calls wait"


def sentence(stuck: StuckCalls) -> str:
    place = f"queue {stuck.queue}, {stuck.lane} lane"
    why = _STUCK[stuck.reason][0].format_map(_words(stuck))
    return f"{counted(stuck.count, 'call')} of {one_line(stuck.tool)} ({place}) {why}, for {age(stuck.seconds)}: {stuck.example}"


def way_out(stuck: StuckCalls) -> str:
    return _STUCK[stuck.reason][1].format_map(_words(stuck))


def _words(stuck: StuckCalls) -> dict[str, object]:
    hosted = one_line(", ".join(stuck.hosted))
    return asdict(stuck) | {"hostname": one_line(stuck.hostname), "wanted": one_line(stuck.wanted), "hosted": hosted}


_STUCK = {
    StuckReason.OWNER_GONE: (
        "runs on {hostname} pid {pid}, which is silent or stopped",
        "Any live worker of the same database settles it within two leases; if none is alive, start one: forge-tools up.",
    ),
    StuckReason.OVERDUE: (
        "runs on {hostname} pid {pid} beyond its time limit",
        "Its engine should have ended it: look at the log of that worker, or end it with kill {pid}; another worker then "
        "settles its calls.",
    ),
    StuckReason.NOT_TAKEN: (
        "is due, but workers with free slots do not take it",
        "Look in the logs of its workers for failing claims, and restart them.",
    ),
    StuckReason.NOT_HOSTED: (
        "is due, but no worker of its queue hosts the tool",
        "Start a worker that offers it: --tools or --categories, --lane {lane}, --queues {queue}.",
    ),
    StuckReason.OTHER_VERSION: (
        "is due and needs {wanted}; workers of its queue host {hosted}",
        "Start a worker that hosts what they need; or, if the tool is pinned, let the present workers run them: "
        "forge-tools tools unpin {tool}",
    ),
    StuckReason.DISABLED: (
        "is due, but the tool is disabled",
        "Enable it, forge-tools tools enable {tool}, or let its calls expire.",
    ),
}
"""Why calls do not move, and what to do about it."""
