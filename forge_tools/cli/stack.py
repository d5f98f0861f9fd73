"""The stack of this folder, as commands find it that another process must serve: coming, starting, running or not there."""

import time
from datetime import UTC, datetime

from forge_tools.cli.face import Face
from forge_tools.config import Settings
from forge_tools.embedded import Holder, stack_holder
from forge_tools.errors import StackError

STARTING_SECONDS = 60.0
"""How long commands wait for a stack to be ready, from its start; later they go on, and use what it serves."""

COMING_SECONDS = 3.0
"""How long a stack may be invisible that a script started just before a command: it loads its code first."""

POLL_SECONDS = 0.1


def await_stack(face: Face, settings: Settings, *, patience: float = 0.0) -> bool:
    """Wait while the stack of this folder starts; return whether one runs, always true with servers of one's own.

    `patience` is how many seconds to look for one that does not hold the folder yet.
    """
    if not settings.is_embedded:
        return True
    home = settings.home.absolute()
    deadline = time.monotonic() + patience
    while (holder := stack_holder(home)) is None and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    if holder is None:
        return False
    deadline = time.monotonic() + _left(holder)
    if time.monotonic() < deadline and face.err.is_terminal:
        face.note("The stack of this folder is starting ...")
    while holder is not None and not holder.is_ready and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
        holder = stack_holder(home)
    return holder is not None


def require_stack(face: Face, settings: Settings, *, is_left: bool) -> None:
    """Wait until the stack of this folder serves calls; for one that `is_left` to a later stack, only say that none runs.

    Raises:
        StackError: none runs, and the call would be waited for.
    """
    if await_stack(face, settings, patience=0.0 if is_left else COMING_SECONDS):
        return
    if not is_left:
        raise StackError(
            "No stack runs in this folder, so the call was not sent. Start one: forge-tools up. "
            "With --background, calls wait for it."
        )
    face.note("No stack runs in this folder: the call waits for the next one, forge-tools up, or expires.", "yellow")


def _left(holder: Holder) -> float:
    """Return for how many seconds a stack still counts as starting."""
    age = datetime.now(UTC) - datetime.fromisoformat(holder.since)
    return 0.0 if holder.is_ready else STARTING_SECONDS - abs(age.total_seconds())
