"""Signals that whoever started this process has it ignore: they stay ignored, and only here."""

import signal


def heeded(*numbers: signal.Signals) -> list[signal.Signals]:
    """Those that our starter does not have us ignore, as shells do with Ctrl-C for what a script starts by `&`, and nohup with SIGHUP."""
    return [number for number in numbers if signal.getsignal(number) not in (signal.SIG_IGN, ignore)]


def keep_ignored_here() -> None:
    """Ignore Ctrl-C and SIGQUIT, where they are, by a handler: the programs that we start then begin with the default."""
    for number in (signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, ignore)


def ignore(*_: object) -> None:
    """Do nothing."""
