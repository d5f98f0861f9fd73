"""Adapts Celery's prefork pool: it forks, replaces and limits children; the engine gives them calls, over a socket pair."""

import logging
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from billiard.pool import ApplyResult
from billiard.util import get_pdeathsig  # type: ignore[attr-defined]  # not in celery-types
from celery.concurrency import asynpool, prefork

from forge_tools.errors import ConfigurationError
from forge_tools.sandbox.walls.cgroups import Cgroup, Limits
from forge_tools.signals import keep_ignored_here
from forge_tools.time_limits import CeleryLimits
from workers.capture import ChildOutput
from workers.lanes.base import TimeLimit
from workers.lanes.child import let_go
from workers.lanes.process import PATIENCE, Limit, exit_code

Adopt = Callable[[Any, socket.socket, Limit, ChildOutput, Cgroup], None]
"""Takes a newly forked process, the engine's end of its socket pair, how Celery limits its bodies, its output and its group."""

Serve = Callable[[socket.socket, ChildOutput, Cgroup], None]
"""What a forked process does, with its end of the pair, its output and its group."""

Still = Callable[[], AbstractContextManager[None]]
"""Keeps the engine still: a lock that it held at the fork would stay locked in the forked process for ever."""

FOLLOW_SECONDS = 1.0
OVER_SECONDS = 0.001
ARM_SECONDS = 60.0
"""A limit further away is not armed yet: Celery's timers keep cancelled entries until they are due."""

logger = logging.getLogger(__name__)


class _Child(asynpool.Worker):
    """A process of the pool, with signals of its own: Celery's handlers would raise in its main thread, in which bodies run.

    It ignores the soft time limit, since its loop has cancelled the body by then.
    """

    outq: Any

    def on_loop_start(self, pid: int) -> None:
        super().on_loop_start(pid)  # tells the pool that it is there
        let_go(self.outq._writer.fileno())  # noqa: SLF001  it has no more to say, and the pool would unpickle what a body says
        keep_ignored_here()  # the pool ignores Ctrl-C, which programs that a tool starts are not to inherit
        signal.set_wakeup_fd(-1)  # it would wake its parent
        signal.signal(signal.SIGUSR1, _do_nothing)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_DFL)


def _do_nothing(*_: object) -> None:
    """Do nothing. Unlike SIG_IGN, this is not inherited by the programs that a tool starts."""


class _CeleryLimit:
    """Celery's time limits on one body, as a separate job: the body may have no message, or outlive its message.

    The engine creates it when the body starts, and stops it; everything else happens on the hub's thread.
    """

    def __init__(self, pid: int, limits: CeleryLimits) -> None:
        self._pid = pid
        self._limits = limits
        self._began = time.monotonic()
        self._over = threading.Event()
        self._job: Any = None

    def stop(self) -> None:
        self._over.set()

    def follow(self, pool: Any) -> bool:
        """Arm it in time, and disarm it once stopped; return whether it is over."""
        left = self._began + self._limits.soft - time.monotonic()
        if self._over.is_set():
            if self._job is not None:
                self._job._set(None, (True, None))  # noqa: SLF001  Celery has no public way
            return True
        if self._job is None and left <= ARM_SECONDS:
            self._arm(pool, max(left, FOLLOW_SECONDS))  # never 0, which Celery takes for no limit
        return False

    def _arm(self, pool: Any, soft: float) -> None:
        self._job = ApplyResult(
            pool._cache,  # noqa: SLF001  as above
            None,
            timeout_callback=self._warn,
            soft_timeout=soft,
            timeout=soft + self._limits.hard - self._limits.soft,
            on_timeout_set=pool.on_timeout_set,
            on_timeout_cancel=pool.on_timeout_cancel,
        )
        self._job._event = self._over  # noqa: SLF001  once stopped, it is spared from that moment
        self._job._ack(None, time.monotonic(), self._pid, None)  # noqa: SLF001  as above

    def _warn(self, *, soft: bool, timeout: float) -> None:
        message = (
            "Celery's soft time limit: a body should have been ended"
            if soft
            else "Celery's hard time limit ends a body"
        )
        logger.error(message, extra={"pid": self._pid, "seconds": round(time.monotonic() - self._began)})


class _Pool(asynpool.AsynPool):
    """Limits the time of bodies, which are no jobs of its own: it is given none."""

    _pool: list[Any]
    _process_cleanup_queues: Callable[[Any], None]

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.limits: set[_CeleryLimit] = set()
        super().__init__(*arguments, **options)

    def _create_worker_process(self, i: int) -> Any:
        """Return the child; None if it cannot be forked now: Celery counts its children every five seconds."""
        try:
            return super()._create_worker_process(i)  # type: ignore[misc]  # not in celery-types
        except OSError as error:  # no process, descriptor or memory available; that may pass
            logger.error("A child cannot be forked; it is tried again", extra={"error": str(error)})
            # Listed before its fork, it would end the worker: whoever looks at the children next finds no pid.
            if self._pool and self._pool[-1]._popen is None:  # noqa: SLF001  billiard has no public way
                self._process_cleanup_queues(self._pool.pop())
            return None

    def limit(self, pid: int, limits: CeleryLimits) -> TimeLimit:
        """Make Celery end the body that starts in that child now, unless stopped before; on the engine's thread."""
        self.limits.add(limit := _CeleryLimit(pid, limits))
        return limit

    def follow_limits(self) -> None:
        for limit in list(self.limits):
            if limit.follow(self):
                self.limits.discard(limit)

    @property
    def timers(self) -> dict[Callable[[], None], float]:
        return {**super().timers, self.follow_limits: FOLLOW_SECONDS}

    def _event_process_exit(self, hub: Any, proc: Any) -> None:
        """Wait until it has ended, shortly after its files close; else Celery would check again five seconds later."""
        deadline = time.monotonic() + PATIENCE
        while exit_code(proc.pid, proc) is None and time.monotonic() < deadline:
            time.sleep(OVER_SECONDS)
        super()._event_process_exit(hub, proc)  # type: ignore[misc]  # not in celery-types


def pool_with(adopt: Adopt, serve: Serve, still: Still) -> type[prefork.TaskPool]:
    """Return a pool class whose engine adopts each process with one end of a socket pair; `serve` gets the other.

    So there is no address that others could connect to, and no child has to identify itself. It forks inside `still`.
    """
    pair: tuple[socket.socket, ChildOutput, Cgroup]  # of the process that is being forked, in which it stays

    class PairedChild(_Child):
        def on_loop_start(self, pid: int) -> None:
            super().on_loop_start(pid)
            serve(*pair)

    class PairedPool(_Pool):
        Worker = PairedChild
        adopted = 0

        def _create_worker_process(self, i: int) -> Any:
            nonlocal pair
            ours, theirs = socket.socketpair()
            group = Limits.given().group(f"child-{self.adopted}")
            pair = theirs, (output := ChildOutput()), group
            with theirs, still():
                process = super()._create_worker_process(i)
            output.born()
            if process is None:
                ours.close()
                output.close()
            else:
                self.adopted += 1
                adopt(process, ours, partial(self.limit, process.pid), output, group)
            return process

    class ProcessPool(prefork.TaskPool):
        Pool = PairedPool
        _pool: Any

        def on_start(self) -> None:
            get_pdeathsig()  # loads a parser of C, which each child would do for itself: 20 ms
            super().on_start()
            adopted, children = self._pool.adopted, len(self._pool._pool)  # noqa: SLF001  Celery has no public way
            if adopted != children:
                raise ConfigurationError(
                    f"Celery's pool forked {children} children, and {adopted} of them can speak with the engine. "
                    "forge-tools does not work with this release of celery or billiard; see its requirements."
                )

        def did_start_ok(self) -> bool:
            """Succeed even if a child died at once, which would make Celery end its worker: the child is replaced."""
            return True

        def register_with_event_loop(self, loop: Any) -> None:
            """When the consumer starts again, watch again what died and is not replaced yet."""
            for process in self._pool._pool:  # noqa: SLF001  as above
                if getattr(process, "_sentinel_poll", 0) is None:
                    del process._sentinel_poll  # noqa: SLF001  as above
            super().register_with_event_loop(loop)

    return ProcessPool
