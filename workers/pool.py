"""Celery's prefork pool where it does not fit: each child shares a socket pair with the engine, and children die every day."""

import socket
from collections.abc import Callable
from functools import partial
from typing import Any

from celery.concurrency import asynpool, prefork

from forge_tools.errors import ConfigurationError
from forge_tools.signals import keep_ignored_here

Adopt = Callable[[Any, socket.socket], None]
"""Takes a process that was just forked, and the engine's end of the pair that it was given."""


class Pairs:
    """Makes the pairs: no address exists that anybody but the child could connect to, and no child says who it is."""

    def __init__(self, adopt: Adopt) -> None:
        self._adopt = adopt
        self.made = 0
        self.childs_end: socket.socket
        """Of the process that is being forked, in which it stays."""

    def fork(self, fork: Callable[[], Any]) -> Any:
        """Make a pair around the fork of a process."""
        ours, self.childs_end = socket.socketpair()
        with self.childs_end:
            process = fork()
        self.made += 1
        self._adopt(process, ours)
        return process


class _Child(asynpool.Worker):
    """What it starts ignores no signal that it does not."""

    def after_fork(self) -> None:
        super().after_fork()  # which ends with ignoring Ctrl-C
        keep_ignored_here()


def pool_with(pairs: Pairs) -> type[prefork.TaskPool]:
    """The pool of a worker whose engine adopts what `pairs` makes."""

    class PairedPool(asynpool.AsynPool):
        Worker = _Child

        def _create_worker_process(self, i: int) -> Any:
            fork: Callable[[int], Any] = super()._create_worker_process  # type: ignore[misc]  # not in celery-types
            return pairs.fork(partial(fork, i))

    class ProcessPool(prefork.TaskPool):
        Pool = PairedPool
        _pool: Any

        def on_start(self) -> None:
            super().on_start()
            if pairs.made != (children := len(self._pool._pool)):  # noqa: SLF001  Celery has no other way in
                raise ConfigurationError(
                    f"Celery's pool forked {children} children, and {pairs.made} of them can speak with the engine. "
                    "This release of celery or billiard is not one that forge-tools works with; see its requirements."
                )

        def did_start_ok(self) -> bool:
            """Also where a child died at once, for which Celery's would end its worker: it is replaced."""
            return True

        def register_with_event_loop(self, loop: Any) -> None:
            """Watch again, when the consumer starts anew, what died and is not replaced yet."""
            for process in self._pool._pool:  # noqa: SLF001  as above
                if getattr(process, "_sentinel_poll", 0) is None:
                    del process._sentinel_poll  # noqa: SLF001  as above
            super().register_with_event_loop(loop)

    return ProcessPool
