"""Where Celery's prefork pool would end its worker because a child has just died: here children die every day."""

from collections.abc import Callable
from typing import Any

from celery.concurrency.prefork import TaskPool


def forgive_deaths(pool: Any) -> None:
    """Let `pool` replace a dead child also when it looks for the first time, and when its consumer starts anew."""
    if isinstance(pool, TaskPool):
        _forgive(pool)


def _forgive(pool: Any) -> None:
    pool.did_start_ok = lambda: True
    register: Callable[[Any], None] = pool.register_with_event_loop

    def watch_again(hub: Any) -> None:
        for process in pool._pool._pool:  # noqa: SLF001  Celery has no other way in
            if getattr(process, "_sentinel_poll", 0) is None:  # its death was seen, but it is not replaced yet
                del process._sentinel_poll  # noqa: SLF001  as above
        register(hub)

    pool.register_with_event_loop = watch_again
