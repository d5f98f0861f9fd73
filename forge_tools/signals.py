"""Signals: their names and handlers, and those ignored since the start, which the programs that we start must not inherit."""

import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What ends a command in order: Ctrl-C, a supervisor, and a terminal that is closed."""


def not_ignored(*numbers: signal.Signals) -> list[signal.Signals]:
    """Return the signals that this process was not started to ignore; scripts (for `command &`) and nohup do that."""
    return [number for number in numbers if signal.getsignal(number) not in (signal.SIG_IGN, ignore)]


@contextmanager
def handled(numbers: Iterable[signal.Signals], handler: Callable[[int, Any], object]) -> Iterator[None]:
    """Handle these signals with `handler`, and restore the previous handlers afterwards."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def keep_ignored_here() -> None:
    """Replace ignored Ctrl-C and SIGQUIT by a handler that does nothing, so that programs we start have the default."""
    for number in (signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, ignore)


def ignore(*_: object) -> None:
    """Do nothing."""


def signal_name(number: int) -> str:
    """Return `SIGTERM`; `signal 40` for one without a name, as most real-time signals are."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
