"""Signals that this process was started to ignore: they stay ignored here, but not in programs that it starts."""

import signal


def heeded(*numbers: signal.Signals) -> list[signal.Signals]:
    """Those signals that we were not started to ignore: scripts do so with Ctrl-C for `command &`, and nohup with SIGHUP."""
    return [number for number in numbers if signal.getsignal(number) not in (signal.SIG_IGN, ignore)]


def keep_ignored_here() -> None:
    """Replace ignored Ctrl-C and SIGQUIT by a handler that does nothing: programs that we start then have the default."""
    for number in (signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, ignore)


def ignore(*_: object) -> None:
    """Do nothing."""
