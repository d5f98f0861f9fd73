"""Which messages a worker lets in. What all of Celery makes of them is in tests/contract/test_broker_bytes.py."""

import pytest

from forge_tools.broker.message import body, read_body
from forge_tools.errors import ConfigurationError
from forge_tools.model import Wakeup, new_id
from workers.reception import ReceivingConnection, Reception


@pytest.mark.parametrize(
    "url",
    ["redis://h/0", "rediss://h/0", "redis+socket:///tmp/x.sock", "amqp://h//", "amqps://h//", "pyamqp://h//"],
)
def test_every_broker_that_is_supported_is_read_through_the_reception(url: str) -> None:
    assert ReceivingConnection(url).get_transport_cls().__module__ == "workers.reception"


def test_a_broker_that_workers_do_not_read_from_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"Redis, Valkey and RabbitMQ, not by kombu\.transport\.memory"):
        ReceivingConnection("memory://").get_transport_cls()


def test_what_is_dropped_is_counted_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    reception, wakeup = Reception(), Wakeup(new_id(), 0)

    taken = [
        reception.read(read_body, text, "forge.default.async") for text in (b"a", body([wakeup]).encode(), b"b", b"c")
    ]

    assert taken == [None, [wakeup], None, None]
    assert reception.dropped == 3
    assert len(caplog.records) == 1
