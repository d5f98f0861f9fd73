"""Marks each process that a body's code in the async lane starts, on the loop or on a thread, as its attempt's."""

import _posixsubprocess
import asyncio
import errno
import multiprocessing
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from functools import partial, wraps
from typing import Any

from forge_tools.sandbox.processes.endings import ProcessHandle, end, reap_adopted
from forge_tools.sandbox.processes.environment import Marking, attempt_mark, listed_with_marks, mapped_with_marks
from forge_tools.sandbox.processes.trees import adopt_orphans, child_pids, start_ticks
from forge_tools.sandbox.walls.privileges import open_up
from workers.capture import inherit_calls
from workers.lanes.base import SWEEP_PATIENCE, Body, swept
from workers.lanes.tool_loop import OWNER

Start = Callable[..., Any]

START_POLL = 0.002

_OF_ALL = "--multiprocessing-fork"  # not in the arguments of the resource tracker, which serves every body
_spawn: Start = multiprocessing.context.SpawnProcess._Popen  # noqa: SLF001  it has no public name
_started: set[int] = set()
"""Children of this process whose status somebody here waits for."""

_installing = threading.Lock()
_is_installed = False


def own_processes() -> None:
    """Assign every process that Python starts here to the body that starts it, and adopt orphaned ones.

    No hook of Python may change an environment, so its few ways to start a process are wrapped; a process started in
    another way (`os.system`, a C extension) belongs only to the worker.
    """
    global _is_installed  # noqa: PLW0603  the process itself is changed, once
    with _installing:
        if _is_installed:
            return
        _is_installed = True
        _started.update(child_pids(os.getpid()))
        adopt_orphans()
        _wrap(subprocess, "_fork_exec", partial(_with_environment, position=5, marked=listed_with_marks))
        _wrap(
            _posixsubprocess,
            "fork_exec",
            partial(_with_environment, position=5, marked=listed_with_marks, of_all=_OF_ALL),
        )
        _wrap(os, "posix_spawn", partial(_with_environment, position=2, marked=mapped_with_marks))
        _wrap(os, "posix_spawnp", partial(_with_environment, position=2, marked=mapped_with_marks))
        _wrap(os, "fork", _forking)
        _wrap(os, "forkpty", _forking)
        inherit_calls()
        _wrap(multiprocessing.context.ForkServerProcess, "_Popen", _without_server, staticmethod)


async def end_processes(body: Body) -> None:
    """End what is left of the processes of a body that `is_ending`."""
    await swept(body.claim, lambda: asyncio.to_thread(_end_processes, body))
    bury_orphans()


def _end_processes(body: Body) -> None:
    deadline = time.monotonic() + SWEEP_PATIENCE
    while body.starts and time.monotonic() < deadline:
        time.sleep(START_POLL)
    with closing(ProcessHandle(os.getpid())) as worker:
        end(attempt_mark(*body.key), within=worker, started=body.processes)


def bury_orphans() -> None:
    """Reap adopted processes that have ended, except those whose status somebody waits for."""
    for pid in list(_started):
        try:
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            _started.discard(pid)
    reap_adopted(spare=_started)


def orphans() -> dict[int, int]:
    """Return what this process adopted, by `start_ticks`: nobody can tell any more whose each was."""
    adopted = set(child_pids(os.getpid(), thread=os.getpid())) - _started
    return {pid: start_ticks(pid) for pid in adopted} if _is_installed else {}


def _wrap(
    owner: Any, name: str, wrapper: Callable[[Start], Start], kind: Callable[[Start], Any] = lambda it: it
) -> None:
    original = getattr(owner, name)
    setattr(owner, name, kind(wraps(original)(wrapper(original))))


def _with_environment(
    start: Start, *, position: int, marked: Callable[[Any, str, int], Any], of_all: str = ""
) -> Start:
    """Wrap a start so that it passes the body's mark. Programs without the argument `of_all`, if any, serve all."""

    def started(*arguments: Any, **options: Any) -> int:
        body = OWNER.get()
        if body is None or (of_all and of_all not in arguments[0]):
            return _noted(start(*arguments, **options))
        environment = marked(arguments[position], *body.key)
        with _starting(body):
            return _noted(start(*arguments[:position], environment, *arguments[position + 1 :], **options), body)

    return started


def _forking(fork: Start) -> Start:
    def forked() -> Any:
        body = OWNER.get()
        with nullcontext() if body is None else _starting(body):
            answer = fork()
            pid = answer[0] if isinstance(answer, tuple) else answer
            if pid:
                _noted(pid, body)
            elif body is not None:
                signal.set_wakeup_fd(-1)  # it would wake the worker
                open_up()
                Marking().put(*body.key)
            return answer

    return forked


def _without_server(popen: Start) -> Start:
    """Make a body spawn its own processes: children of a fork server would belong to the server."""

    def started(process: Any) -> Any:
        return (popen if OWNER.get() is None else _spawn)(process)

    return started


@contextmanager
def _starting(body: Body) -> Iterator[None]:
    """Announce a start before asking whether the body is ending: whoever ends it asks in the other order."""
    thread = threading.get_ident()
    try:
        body.starts.add(thread)
        if body.is_ending:
            raise OSError(errno.ECANCELED, "This call was stopped, so it starts no more processes")
        yield
    finally:
        body.starts.discard(thread)


def _noted(pid: int, body: Body | None = None) -> int:
    _started.add(pid)
    if body is not None:
        body.processes[pid] = start_ticks(pid)
    return pid
