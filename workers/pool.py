"""Celery's prefork pool where it does not fit: here children die every day, and what they start ignores no signal."""

from typing import Any

from celery.concurrency import asynpool, prefork

from forge_tools.signals import keep_ignored_here


class _Child(asynpool.Worker):
    def after_fork(self) -> None:
        super().after_fork()  # which ends with ignoring Ctrl-C
        keep_ignored_here()


class _Children(asynpool.AsynPool):
    Worker = _Child


class ProcessPool(prefork.TaskPool):
    """Replaces a dead child also when it looks for the first time, and when its consumer starts anew: Celery's would end its worker."""

    Pool = _Children
    _pool: Any

    def did_start_ok(self) -> bool:
        return True

    def register_with_event_loop(self, hub: Any) -> None:
        for process in self._pool._pool:  # noqa: SLF001  Celery has no other way in
            if getattr(process, "_sentinel_poll", 0) is None:  # its death was seen, but it is not replaced yet
                del process._sentinel_poll  # noqa: SLF001  as above
        super().register_with_event_loop(hub)
