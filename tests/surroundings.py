"""Inherited state that a run must not depend on: signals, mask, umask, limits, language, terminal, streams, FORGE_ settings."""

import contextlib
import os
import resource
import signal
import time

ORDINARY = {"LC_ALL": "C.UTF-8", "TERM": "xterm-256color", "TZ": "UTC", "XDG_STATE_HOME": "/dev/null/state"}
"""No test leaves a home in the user's own folder for state: one that makes a home says where."""

UNWANTED = ("COLUMNS", "LANG", "LANGUAGE", "LINES", "NO_COLOR", "PAGER", "PYTHONUNBUFFERED", "PYTHONWARNINGS")
UNWANTED_BEGINNINGS = ("CLICOLOR", "FORCE_COLOR", "FORGE_", "LC_", "XDG_")
OURS = "FORGE_TEST"
"""Variables that name the servers of tests and the folder of their run."""

DESCRIPTORS = 4096
STACK = 8 << 20


def settle() -> None:
    """Make them what a login shell in the foreground gives, here and for all that starts from here."""
    for number in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}:  # Python itself ignores these two
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.umask(0o022)
    _lift_limits()
    for name in list(os.environ):
        if name in UNWANTED or (name.startswith(UNWANTED_BEGINNINGS) and not name.startswith(OURS)):
            del os.environ[name]
    os.environ.update(ORDINARY)
    time.tzset()


def settle_streams() -> None:
    """Read nothing, and write nowhere where a standard stream was closed; before anything else is opened."""
    for stream in (0, 1, 2):
        with contextlib.suppress(OSError):
            os.fstat(stream)
            if stream:
                continue
        nothing = os.open(os.devnull, os.O_RDWR)
        if nothing != stream:
            os.dup2(nothing, stream)
            os.close(nothing)


def _lift_limits() -> None:
    wanted = dict.fromkeys(("RLIMIT_AS", "RLIMIT_CPU", "RLIMIT_DATA", "RLIMIT_FSIZE", "RLIMIT_NPROC"))
    for name, most in {**wanted, "RLIMIT_CORE": 0, "RLIMIT_NOFILE": DESCRIPTORS, "RLIMIT_STACK": STACK}.items():
        limit = getattr(resource, name, None)
        if limit is not None:
            _, hard = resource.getrlimit(limit)
            is_higher = most is not None and (hard == resource.RLIM_INFINITY or most < hard)
            resource.setrlimit(limit, (most if is_higher else hard, hard))
