"""What an agent is told of a host that its call must reach, and where no worker could answer."""

import time
from dataclasses import dataclass, replace

from forge_tools.client.call import Call
from forge_tools.client.catalogue import SERVED_INTERVAL, Catalogue
from forge_tools.client.intake import Accepted
from forge_tools.errors import ForgeError
from forge_tools.model import NewExecution, ShellRecord, ShellStatus, host_of
from forge_tools.schema import shown
from forge_tools.storage import Store


@dataclass(frozen=True, slots=True)
class Silence:
    """A host without a live worker; `seconds` None where it never had one. `sentence` is for the agent."""

    hostname: str
    seconds: float | None
    sentence: str


async def reach(call: Call, accepted: Accepted, catalogue: Catalogue, store: Store, lease: float) -> Accepted | Silence:
    """Refuse what only a dead host could answer: an agent would wait until it expires. One that may be restarting is
    waited for, for a lease; and any by a call that is for later, or asks for that host's queue itself.
    """
    new, handle = accepted.new, accepted.handle
    host = host_of(handle)
    if handle is None or host is None or call.due_in or call.queue == new.queue:
        return accepted
    try:
        await catalogue.refresh_since(time.monotonic() - SERVED_INTERVAL)
        if (new.queue, new.lane) in catalogue.workers:
            return accepted
        silence = await _silence_of(host, handle, new, store, lease)
    except ForgeError:  # storing the call says it better
        return accepted
    if silence is not None:
        return silence
    patience = new.expires_in if call.expires_in is not None else min(new.expires_in, lease)
    return accepted._replace(new=replace(new, expires_in=patience))


async def _silence_of(hostname: str, handle: str, new: NewExecution, store: Store, lease: float) -> Silence | None:
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
