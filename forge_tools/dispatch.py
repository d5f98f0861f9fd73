"""Rings out: publishes (execution id, attempt) pairs to workers by Celery task name. The row in SQL is the call."""

import asyncio
import logging
import math
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from forge_tools.records import Lane, Ring

if TYPE_CHECKING:
    from celery import Celery

TASK = "forge.run"
RINGS_PER_MESSAGE: Mapping[Lane, int] = {"async": 128, "process": 1}
MESSAGES_PER_WORKER = 2
"""Into how many messages a burst is cut for each worker that shares it, so that competing consumers get equal parts."""
LEAST_SHARED = 8
"""Rings that stay together all the same: messages cost more than who runs a handful of calls is worth."""
PUBLISH_DEADLINE = 5.0
PAUSE_AFTER_FAILURE = 1.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Limits:
    """What a timeout becomes as Celery time limits, in whole seconds rounded up.

    A child may wait `claim_patience` for its claim before the body starts, so the soft limit allows for it, and the hard
    one adds the grace in which a cancelled body may clean up. They tell whoever looks at the broker. Our workers enforce the
    row's own timeout, to the millisecond and from the start of the body; a message can be forged, and may have waited.
    """

    soft: int
    hard: int

    @classmethod
    def of(cls, timeout: float, *, claim_patience: float, kill_grace: float) -> "Limits":
        soft = timeout + claim_patience
        return cls(soft=math.ceil(soft), hard=math.ceil(soft + kill_grace))


@dataclass(frozen=True, slots=True)
class Bells:
    """Rings that go to one queue, with the limits their messages carry."""

    queue: str
    lane: Lane
    rings: tuple[Ring, ...]
    limits: Limits


def queue_name(queue: str, lane: Lane) -> str:
    """The broker queue that serves `queue` in that lane."""
    return f"forge.{queue}.{lane}"


def queue_of(name: str) -> str:
    """The queue whose broker queue has that name."""
    return name.removeprefix("forge.").rpartition(".")[0]


def celery_app(broker_url: str) -> "Celery":
    """Build the Celery app that clients publish with and workers consume with; JSON only, no result backend.

    Each setting that differs from Celery's default is there because its default loses, repeats or blocks: see
    docs/celery.md.
    """
    from celery import Celery  # the one place where clients load Celery: at their first publish

    app = Celery("forge_tools", broker=broker_url, set_as_current=False)
    app.conf.update(
        task_serializer="json",
        accept_content=["json"],
        task_ignore_result=True,
        task_acks_late=True,
        task_acks_on_failure=True,
        task_acks_on_timeout=True,
        task_reject_on_worker_lost=False,
        worker_prefetch_multiplier=1,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        worker_proc_alive_timeout=15,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_channel_error_retry=True,
        broker_connection_timeout=3,
        broker_pool_acquire_timeout=3,
        task_publish_retry=False,
        worker_enable_remote_control=False,
        worker_send_task_events=False,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        **(_settings_of_rabbit() if _is_rabbit(broker_url) else {}),
        broker_transport_options=_transport_options(broker_url),
    )
    return app


def _is_rabbit(broker_url: str) -> bool:
    return broker_url.startswith(("amqp", "pyamqp"))


def _settings_of_rabbit() -> dict[str, Any]:
    return {
        "task_default_queue_type": "quorum",
        "task_create_missing_queue_type": "quorum",
        "worker_detect_quorum_queues": True,
        "broker_native_delayed_delivery_queue_type": "classic",
        "broker_heartbeat": 20,
    }


def _transport_options(broker_url: str) -> dict[str, Any]:
    reconnecting = {"max_retries": 1, "interval_start": 0, "interval_step": 0.2, "interval_max": 0.5}
    if _is_rabbit(broker_url):
        return {"confirm_publish": True, "read_timeout": 3, "write_timeout": 3, **reconnecting}
    if not broker_url.startswith(("redis", "valkey")):
        return {"max_retries": 1}
    return {
        "socket_timeout": 5,
        "socket_connect_timeout": 3,
        "health_check_interval": 15,
        **reconnecting,
        "visibility_timeout": 2 * 3600,
        "global_keyprefix": "forge:",
    }


def backlog(app: "Celery", queues: Sequence[str]) -> int:
    """How many messages wait in those broker queues; a queue that is not there holds none. Blocks; raises what kombu does."""
    waiting = 0
    with app.connection_for_write() as connection:
        # On Redis a declaration makes nothing, and kombu's passive one forgets the key prefix and finds no queue.
        is_passive = connection.transport.driver_type != "redis"
        for queue in queues:
            with suppress(*connection.channel_errors), connection.channel() as opened:
                channel: Any = opened  # celery-types knows less of it than every transport has
                waiting += channel.queue_declare(queue, passive=is_passive).message_count
    return waiting


class Dispatcher:
    """Publishes rings from an event loop without ever making a caller wait for the broker.

    Rings gather while one publish is under way and leave together. When the broker fails, rings are dropped for a moment
    and said so once: idle workers find due rows in SQL by themselves.
    """

    def __init__(self, broker_url: str) -> None:
        self.workers: Mapping[tuple[str, str], int] = {}
        """How many workers share each (queue, lane), as far as the owner of this dispatcher knows."""
        self._broker_url = broker_url
        self._app: Celery | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="forge-dispatch")
        self._pending: list[Bells] = []
        self._publishing: asyncio.Task[None] | None = None
        self._paused_until = 0.0
        self._is_down = False
        self._is_closed = False

    @property
    def is_down(self) -> bool:
        """Whether the last publish failed."""
        return self._is_down

    def ring(self, bells: Bells) -> None:
        """Queue rings for publishing and return at once; after the close they are dropped."""
        if self._is_closed:
            return
        self._pending.append(bells)
        if self._publishing is None:
            self._publishing = asyncio.ensure_future(self._publish_all())

    async def close(self) -> None:
        """Send what is pending, within a bounded time."""
        self._is_closed = True
        if self._publishing is not None:
            await asyncio.wait([self._publishing], timeout=PUBLISH_DEADLINE)
        self._thread.shutdown(wait=False, cancel_futures=True)
        if self._app is not None:
            self._app.close()

    async def _publish_all(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._pending:
                bells, self._pending = self._pending, []
                if time.monotonic() >= self._paused_until:
                    await loop.run_in_executor(self._thread, self._publish, merge(bells, self.workers))
        finally:
            self._publishing = None

    def _publish(self, bells: Sequence[Bells]) -> None:
        try:
            for one in bells:
                self._send(one)
        except Exception as error:  # noqa: BLE001 every transport has its own errors; a lost ring costs time, never a call
            self._paused_until = time.monotonic() + PAUSE_AFTER_FAILURE
            if not self._is_down:
                logger.warning("Broker unavailable; workers will find calls in SQL", extra={"error": str(error)})
            self._is_down = True
        else:
            self._is_down = False

    def _send(self, bells: Bells) -> None:
        if self._app is None:
            self._app = celery_app(self._broker_url)
        self._app.send_task(
            TASK,
            args=[[[ring.id, ring.attempt] for ring in bells.rings]],
            queue=queue_name(bells.queue, bells.lane),
            soft_time_limit=bells.limits.soft,
            time_limit=bells.limits.hard,
            retry=False,
        )


def merge(bells: Sequence[Bells], workers: Mapping[tuple[str, str], int] = MappingProxyType({})) -> list[Bells]:
    """Put rings for one queue into as few messages as its lane and the number of its workers allow.

    A message carries its longest limits.
    """
    groups: dict[tuple[str, Lane], list[Bells]] = {}
    for one in bells:
        groups.setdefault((one.queue, one.lane), []).append(one)
    return [
        message
        for (queue, lane), group in groups.items()
        for message in _messages(queue, lane, group, workers.get((queue, lane), 1))
    ]


def _messages(queue: str, lane: Lane, group: Sequence[Bells], workers: int) -> list[Bells]:
    rings = [(ring, one.limits) for one in group for ring in one.rings]
    size = _size(lane, len(rings), workers)
    messages = []
    for start in range(0, len(rings), size):
        part = rings[start : start + size]
        longest = max((limits for _, limits in part), key=lambda limits: limits.hard)
        messages.append(Bells(queue, lane, tuple(ring for ring, _ in part), longest))
    return messages


def _size(lane: Lane, count: int, workers: int) -> int:
    """How many rings go into one message: one worker takes a whole message, so several workers need several."""
    most = RINGS_PER_MESSAGE[lane]
    if workers < 2:
        return most
    return min(most, max(LEAST_SHARED, math.ceil(count / (MESSAGES_PER_WORKER * workers))))
