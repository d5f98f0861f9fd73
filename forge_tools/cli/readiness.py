"""When a stack that was started can be used: every worker has registered and its tools are in the catalogue."""

import asyncio
from collections.abc import Callable

from forge_tools.config import Settings
from forge_tools.embedded import ProcessStatus, StackStatus
from forge_tools.errors import ForgeError, StackError
from forge_tools.storage import open_store

START_SECONDS = 45.0
POLL_SECONDS = 0.1


async def until_ready(
    settings: Settings,
    status: Callable[[], StackStatus],
    *,
    timeout: float = START_SECONDS,
    is_given_up: Callable[[], bool],
) -> bool:
    """Wait until every worker process of the stack is alive in the database; False if `is_given_up` says so first.

    Raises:
        StackError: a worker did not come up in time; names its log.
    """
    async with await open_store(settings.database, connect_timeout=settings.connect_timeout) as store:
        deadline = asyncio.get_running_loop().time() + timeout
        while not is_given_up():
            live = {
                worker.pid for worker in await store.workers.list(seen_within=settings.lease) if not worker.stopped_at
            }
            missing = [process for process in workers_of(status()) if process.pid not in live]
            if not missing:
                return True
            if asyncio.get_running_loop().time() > deadline:
                raise StackError(_late(missing, timeout))
            await asyncio.sleep(POLL_SECONDS)
    return False


def workers_of(status: StackStatus) -> list[ProcessStatus]:
    """The processes of a stack that run tools."""
    return [process for process in status.processes if process.name != "valkey"]


def wait_until_ready(
    settings: Settings, status: Callable[[], StackStatus], is_given_up: Callable[[], bool]
) -> str | None:
    """Do what `until_ready` does from a thread; returns what to tell the user, or None where nobody waits any more."""
    try:
        if asyncio.run(until_ready(settings, status, is_given_up=is_given_up)):
            return "Ready."
    except ForgeError as error:
        return str(error)
    return None


def _late(missing: list[ProcessStatus], timeout: float) -> str:
    names = ", ".join(f"{process.name} ({process.state}, its log is {process.log})" for process in missing)
    return f"Not ready after {timeout:.0f} s: {names}. The other workers serve what they can."
