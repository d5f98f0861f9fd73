"""Celery's settings: no call data passes the broker, and no default loses, repeats or blocks messages."""

import pytest

from forge_tools.broker.celery_app import celery_app


@pytest.mark.parametrize("url", ["redis://127.0.0.1/0", "redis+socket:///tmp/x.sock", "amqp://127.0.0.1//"])
def test_messages_are_json_and_results_stay_out_of_the_broker(url: str) -> None:
    app = celery_app(url)

    assert app.conf.accept_content == ["json"]
    assert app.conf.task_serializer == "json"
    assert app.conf.result_backend is None
    assert app.conf.task_ignore_result


def test_what_loses_or_repeats_messages_is_settled() -> None:
    conf = celery_app("redis://127.0.0.1/0").conf

    assert not conf.worker_enable_prefetch_count_reduction
    assert conf.broker_connection_max_retries is None
    assert conf.broker_transport_options["ack_emulation"] is False


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("amqp://127.0.0.1//", "quorum"),
        ("amqps://127.0.0.1//", "quorum"),
        ("pyamqp://127.0.0.1//", "quorum"),
        ("redis://127.0.0.1/0", "classic"),
        ("redis+socket:///tmp/x.sock", "classic"),
    ],
)
def test_queues_are_quorum_queues_where_the_broker_has_them(url: str, kind: str) -> None:
    app = celery_app(url)

    declared = app.amqp.queues["forge.default.async"].queue_arguments or {}
    assert declared.get("x-queue-type", "classic") == kind


@pytest.mark.parametrize("url", ["amqp://127.0.0.1//", "redis://127.0.0.1/0"])
def test_no_broker_is_waited_for_without_a_limit(url: str) -> None:
    options = celery_app(url).conf.broker_transport_options

    assert 0 < (options.get("socket_timeout") or options["read_timeout"]) <= 5


def test_celery_has_no_app_of_ours_as_its_current_one() -> None:
    from celery import current_app

    app = celery_app("redis://127.0.0.1/0")

    assert current_app._get_current_object() is not app  # noqa: SLF001  Celery's way to see what a proxy stands for
