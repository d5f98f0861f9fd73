"""How shells are told of: what they are called, and how they ended."""

import signal

from forge_tools.records import ShellRecord, ShellStatus

_MAX_LABEL = 60


def label(shell: ShellRecord) -> str:
    """What a person would call it: its description, else the start of its command."""
    text = " ".join((shell.description or shell.command).split())
    return text if len(text) <= _MAX_LABEL else f"{text[: _MAX_LABEL - 3]}..."


def named(shell: ShellRecord) -> str:
    """Its id, and what it is."""
    return f"{shell.id} ({label(shell)})"


def counted(number: int, one: str, many: str) -> str:
    """`1 process`, `2,994 processes`."""
    return f"{number:,} {one if number == 1 else many}"


def exit_of(shell: ShellRecord) -> str | None:
    """How its command ended, where that is known: `exit code 1`, `SIGTERM`."""
    if shell.signal is not None:
        return signal_name(shell.signal)
    return None if shell.exit_code is None else f"exit code {shell.exit_code}"


def state_of(shell: ShellRecord) -> str:
    """`running`, `exited with exit code 1`, ..."""
    how = exit_of(shell)
    if shell.status is ShellStatus.LOST:
        return "lost: what supervised it vanished, so how it ended is unknown"
    if shell.status is ShellStatus.RUNNING:
        return f"the command itself ended with {how}, what it started is running" if how else "running"
    return f"{shell.status} with {how}" if how else str(shell.status)


def signal_name(number: int) -> str:
    """`SIGTERM`; `signal 40` for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
