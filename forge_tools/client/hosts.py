"""What an agent is told of a host that its call must reach, and where no worker could answer."""

from dataclasses import dataclass

from forge_tools.records import NewExecution, ShellRecord, ShellStatus
from forge_tools.storage import Store
from forge_tools.validation import shown


@dataclass(frozen=True, slots=True)
class Silence:
    """A host without a live worker; `seconds` None where it never had one. `sentence` is for the agent."""

    hostname: str
    seconds: float | None
    sentence: str


async def silence_of(hostname: str, handle: str, new: NewExecution, store: Store, lease: float) -> Silence | None:
    """Find out why `new`, which names that host by a shell's id, would wait; None where its worker may only be restarting."""
    seconds = await store.workers.silence_of(hostname, new.lane)
    if seconds is None:
        what = (
            f"Host '{hostname}' is not known: it never had a worker. Compare the id with those that ListShells shows."
        )
        return Silence(hostname, None, what)
    if seconds < lease:
        return None
    shell = await store.shells.find(handle)
    known = _known(shell) if shell is not None and shell.session_id == new.session_id else ""
    what = f"Host '{hostname}' cannot be reached: its workers have been silent for {seconds:.0f} s.{known}"
    return Silence(hostname, seconds, f"{what} Try again in a minute, or do without it; ListShells says what is known.")


def _known(shell: ShellRecord) -> str:
    name = f"{shell.id} ({shown(shell.command)})"
    match shell.status:
        case ShellStatus.RUNNING:
            return f" {name} ran when it was last heard of, and may go on there unseen."
        case ShellStatus.LOST:
            return f" {name} is lost: nobody knows whether it goes on."
        case _:
            end = f"code {shell.exit_code}" if shell.exit_code is not None else f"signal {shell.signal}"
            return f" {name} is over ({shell.status}, {end}); its output is on that host."
