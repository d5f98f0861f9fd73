"""The brokers under fire: each can die and come back, freeze, cut its connections, and lose, reorder or garble what waits."""

import subprocess
from collections.abc import Iterable, Sequence
from typing import Protocol, Self

import redis
from amqp.exceptions import AMQPError, NotFound

from forge_tools.broker.message import queue_name
from forge_tools.model import Lane
from forge_tools.model.places import host_queue
from tests.garbage import into_lists, into_rabbit
from tests.rabbit import RabbitServer
from tests.server_process import ServerProcess
from tests.services import ValkeyServer, client

LANES: tuple[Lane, ...] = ("async", "process")
QUEUES = [queue_name("default", lane) for lane in LANES]


class BrokerUnderFire(Protocol):
    """One broker and what can be done to it. `away` is what orders raise while it is dead or frozen."""

    process: ServerProcess
    away: tuple[type[Exception], ...]

    @property
    def url(self) -> str: ...

    def start(self) -> Self: ...

    def stop(self) -> None: ...

    def kill(self) -> None: ...

    def cut(self) -> None:
        """Close every connection."""
        ...

    def forget(self) -> None:
        """Lose every message that waits."""
        ...

    def reorder(self, count: int) -> None:
        """Put that many of the messages that come next behind all others."""
        ...

    def put(self, queue: str, messages: Sequence[bytes]) -> int:
        """Write raw messages into a queue; returns how many are not one of ours."""
        ...


class ValkeyUnderFire(ValkeyServer):
    """Keeps the messages of a queue in a list of its own."""

    away: tuple[type[Exception], ...] = (redis.RedisError,)

    def cut(self) -> None:
        with client(self.url) as server:
            server.client_kill_filter(_type="normal", skipme=True)

    def forget(self) -> None:
        with client(self.url) as server:
            server.delete(*map(_key, QUEUES))

    def reorder(self, count: int) -> None:
        with client(self.url) as server:
            for key in map(_key, QUEUES):
                for _ in range(count):
                    server.lmove(key, key, "RIGHT", "LEFT")

    def put(self, queue: str, messages: Sequence[bytes]) -> int:
        with client(self.url) as server:
            return into_lists(server, queue, messages)


class RabbitUnderFire(RabbitServer):
    """Keeps the messages of a queue in a replicated log, which nobody can rewrite: they are taken and sent again."""

    away: tuple[type[Exception], ...] = (AMQPError, OSError, subprocess.TimeoutExpired)

    def forget(self) -> None:
        self.purge(QUEUES)

    def reorder(self, count: int) -> None:
        with self.connect() as connection:
            for queue in QUEUES:
                with connection.channel() as channel:
                    for _ in range(count):
                        try:
                            message = channel.basic_get(queue)
                        except NotFound:
                            break
                        if message is None:
                            break
                        channel.basic_publish(message, exchange="", routing_key=queue)
                        channel.basic_ack(message.delivery_tag)

    def put(self, queue: str, messages: Sequence[bytes]) -> int:
        return into_rabbit(self, queue, messages)


def queues(hosts: Iterable[str]) -> list[str]:
    """Every queue that workers on those hosts serve, in either lane."""
    return [queue_name(name, lane) for name in ("default", "background", *map(host_queue, hosts)) for lane in LANES]


def _key(queue: str) -> str:
    """Where Celery's transport keeps the messages of a queue."""
    return f"forge:{queue}"


BROKERS: dict[str, type[ValkeyUnderFire] | type[RabbitUnderFire]] = {
    "valkey": ValkeyUnderFire,
    "rabbitmq": RabbitUnderFire,
}
