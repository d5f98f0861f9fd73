"""Which messages a worker lets in. What all of Celery makes of them is in tests/contract/test_broker_bytes.py."""

import json
from typing import Any

import pytest
from kombu import Queue
from kombu.asynchronous import Hub

from forge_tools.broker.celery_app import celery_app
from forge_tools.broker.message import BULK, KEY_PREFIX, body, envelope, list_name, queue_name, read_body, read_envelope
from forge_tools.errors import ConfigurationError
from forge_tools.model import new_id
from forge_tools.model.execution import Wakeup
from tests.services import GivenValkey, ValkeyServer, client
from tests.waiting import wait_until
from workers.reception import ReceivingConnection, Reception


@pytest.mark.parametrize(
    "url",
    ["redis://h/0", "rediss://h/0", "redis+socket:///tmp/x.sock", "amqp://h//", "amqps://h//", "pyamqp://h//"],
)
def test_every_broker_that_is_supported_is_read_through_the_reception(url: str) -> None:
    assert ReceivingConnection(url).get_transport_cls().__module__ == "workers.reception"


def test_a_broker_that_workers_do_not_read_from_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"Redis, Valkey and RabbitMQ, not kombu\.transport\.memory"):
        ReceivingConnection("memory://").get_transport_cls()


def test_what_is_dropped_is_counted_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    reception, wakeup = Reception(), Wakeup(new_id(), 0)

    taken = [
        reception.read(read_body, text, "forge.default.async") for text in (b"a", body([wakeup]).encode(), b"b", b"c")
    ]

    assert taken == [None, [wakeup], None, None]
    assert reception.dropped == 3
    assert len(caplog.records) == 1


@pytest.mark.parametrize("priority", [0, BULK])
def test_a_message_keeps_the_priority_of_its_list_and_returns_there_if_nobody_acknowledges_it(
    valkey: ValkeyServer | GivenValkey, priority: int
) -> None:
    queue, wakeup, received = queue_name("default", "async"), Wakeup(new_id(), 0), list[Any]()
    app = celery_app(valkey.url)
    app.amqp.Connection = ReceivingConnection
    app.conf.broker_transport_options["reception"] = Reception()
    name = f"{KEY_PREFIX}{list_name(queue, priority)}"
    with client(valkey.url) as server:
        server.lpush(name, json.dumps(envelope([wakeup], queue, priority)))

        with app.connection_for_read() as connection, connection.Consumer([Queue(queue)], on_message=received.append):
            connection.drain_events(timeout=10)
            left = server.llen(name)

        (message,) = received
        assert (message.delivery_info["priority"], message.body, left) == (priority, [wakeup], 0)
        assert [read_envelope(text) for text in server.lrange(name, 0, -1)] == [[wakeup]]
    app.close()


def test_a_channel_that_closes_waits_for_no_message_and_takes_none(valkey: ValkeyServer | GivenValkey) -> None:
    queue, received = queue_name("default", "async"), list[Any]()
    app = celery_app(valkey.url)
    app.amqp.Connection = ReceivingConnection
    app.conf.broker_transport_options |= {"reception": Reception(), "polling_interval": 1000, "socket_timeout": None}
    with client(valkey.url) as server:
        with app.connection_for_read() as connection, connection.Consumer([Queue(queue)], on_message=received.append):
            hub = Hub()
            connection.register_with_event_loop(hub)
            for begin in hub.on_tick:
                begin()
            wait_until(lambda: server.info("clients")["blocked_clients"] == 1, 10, "it does not wait for a message")

        server.lpush(f"{KEY_PREFIX}{queue}", json.dumps(envelope([Wakeup(new_id(), 0)], queue, 0)))

        assert server.info("clients")["blocked_clients"] == 0
        assert (received, server.llen(f"{KEY_PREFIX}{queue}")) == ([], 1)
    app.close()
