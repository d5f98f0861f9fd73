"""Rings reach the queue that their lane serves, and a broker that is away costs a caller nothing."""

import asyncio
import base64
import json
import logging
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakeredis import FakeRedis, FakeServer

from forge_tools.dispatch import (
    BULK,
    TASK,
    Allowance,
    Bells,
    Dispatcher,
    Limits,
    celery_app,
    merge,
    queue_name,
    queue_of,
)
from forge_tools.dispatch import dispatcher as dispatcher_module
from forge_tools.records import Lane, Ring
from tests.services import GivenValkey, ValkeyServer, client
from tests.waiting import reached

SHORT = Limits(soft=10, hard=12)
LONG = Limits(soft=100, hard=102)
NOWHERE = "redis+socket:///nowhere/valkey.sock"
ANYWHERE = "redis://anywhere/0"


def bells(
    count: int = 1, *, queue: str = "default", lane: Lane = "async", limits: Limits = SHORT, first: int = 0
) -> Bells:
    return Bells(queue, lane, tuple(Ring(f"id-{first + n}", 0) for n in range(count)), limits)


def entries(server: Any, queue: str = "forge.default.async") -> list[dict[str, Any]]:
    """What waits in a queue, oldest first."""
    return [json.loads(message) for message in reversed(server.lrange(f"forge:{queue}", 0, -1))]


def messages(url: str, queue: str = "forge.default.async") -> list[dict[str, Any]]:
    with client(url) as server:
        return entries(server, queue)


def rings(message: dict[str, Any]) -> list[list[Any]]:
    arguments, _, _ = json.loads(base64.b64decode(message["body"]))
    return list(arguments[0])


@pytest.fixture
def silent_broker() -> Iterator[str]:
    """A port that accepts connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"redis://127.0.0.1:{server.getsockname()[1]}/0"


@pytest.mark.parametrize(
    ("timeout", "limits"),
    [(5, Limits(soft=10, hard=12)), (0.2, Limits(soft=6, hard=8)), (119.5, Limits(soft=125, hard=127))],
)
def test_a_timeout_becomes_whole_seconds_with_room_for_claim_and_grace(timeout: float, limits: Limits) -> None:
    assert Limits.of(timeout, claim_patience=5, kill_grace=2) == limits


@pytest.mark.parametrize("queue", ["default", "background", "host.box-1.example", "a_b"])
@pytest.mark.parametrize("lane", ["async", "process"])
def test_a_broker_queue_names_its_queue_and_lane(queue: str, lane: Lane) -> None:
    name = queue_name(queue, lane)

    assert name == f"forge.{queue}.{lane}"
    assert queue_of(name) == queue


def test_rings_for_one_queue_share_a_message() -> None:
    merged = merge([bells(first=0), bells(first=1), bells(first=2)])

    assert [[ring.id for ring in one.rings] for one in merged] == [["id-0", "id-1", "id-2"]]


def test_queues_and_lanes_are_never_mixed() -> None:
    merged = merge([bells(), bells(queue="background"), bells(lane="process"), bells()])

    assert {(one.queue, one.lane): len(one.rings) for one in merged} == {
        ("default", "async"): 2,
        ("background", "async"): 1,
        ("default", "process"): 1,
    }


@pytest.mark.parametrize(("count", "sizes"), [(1, [1]), (128, [128]), (300, [128, 128, 44])])
def test_a_message_of_the_async_lane_carries_up_to_128_rings(count: int, sizes: list[int]) -> None:
    merged = merge([bells(count)])

    assert [len(one.rings) for one in merged] == sizes
    assert [ring.id for one in merged for ring in one.rings] == [f"id-{n}" for n in range(count)]


@pytest.mark.parametrize(
    ("count", "workers", "sizes"),
    [
        (200, 1, [128, 72]),
        (40, 2, [10, 10, 10, 10]),
        (200, 2, [50, 50, 50, 50]),
        (8, 2, [8]),
        (16, 2, [8, 8]),
        (1000, 2, [128] * 7 + [104]),
        (48, 3, [8] * 6),
    ],
)
def test_a_burst_is_cut_so_that_each_worker_gets_its_part(count: int, workers: int, sizes: list[int]) -> None:
    merged = merge([bells(count)], {("default", "async"): workers, ("other", "async"): 9})

    assert [len(one.rings) for one in merged] == sizes
    assert [ring.id for one in merged for ring in one.rings] == [f"id-{n}" for n in range(count)]


@pytest.mark.parametrize(
    ("count", "workers", "sizes"),
    [
        (1, 1, [1]),
        (40, 1, [16, 16, 8]),
        (4, 2, [1] * 4),
        (16, 2, [1] * 16),
        (40, 2, [3] * 13 + [1]),
        (400, 2, [16] * 25),
    ],
)
def test_a_message_of_the_process_lane_keeps_few_calls_from_other_workers(
    count: int, workers: int, sizes: list[int]
) -> None:
    merged = merge([bells(count, lane="process")], {("default", "process"): workers})

    assert [len(one.rings) for one in merged] == sizes


def test_bulk_never_shares_a_message_with_what_goes_first() -> None:
    merged = merge([bells(3), replace(bells(5), is_bulk=True), bells(1, first=9)])

    assert [(one.is_bulk, len(one.rings)) for one in merged] == [(False, 4), (True, 5)]


def test_a_client_is_allowed_so_much_at_once_and_as_much_again_a_second_later() -> None:
    clock = iter([0.0, 0.0, 0.0, 0.5, 0.5, 99.0]).__next__
    allowance = Allowance(10, clock=clock)

    assert [allowance.take(7), allowance.take(7), allowance.take(7), allowance.take(1)] == [7, 3, 5, 0]
    assert allowance.take(500) == 10


def test_a_message_carries_the_longest_limits_of_its_rings() -> None:
    merged = merge([bells(limits=SHORT), bells(limits=LONG), bells(limits=SHORT)])

    assert [one.limits for one in merged] == [LONG]


def test_limits_of_one_message_do_not_leak_into_the_next() -> None:
    merged = merge([bells(128, limits=LONG), bells(1, limits=SHORT, first=128)])

    assert [one.limits for one in merged] == [LONG, SHORT]


@pytest.mark.parametrize("url", ["redis://127.0.0.1/0", "redis+socket:///tmp/x.sock", "amqp://127.0.0.1//"])
def test_messages_are_json_and_results_stay_out_of_the_broker(url: str) -> None:
    app = celery_app(url)

    assert app.conf.accept_content == ["json"]
    assert app.conf.task_serializer == "json"
    assert app.conf.result_backend is None
    assert app.conf.task_ignore_result


def test_what_loses_or_repeats_messages_is_settled() -> None:
    conf = celery_app("redis://127.0.0.1/0").conf

    assert (conf.task_acks_late, conf.task_reject_on_worker_lost) == (True, False)
    assert conf.worker_prefetch_multiplier == 1
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

    assert current_app.main != app.main


async def test_a_ring_becomes_a_message_with_ids_and_limits(fake_broker: FakeServer) -> None:
    dispatcher = Dispatcher(ANYWHERE)

    dispatcher.ring(bells(2))
    await dispatcher.close()

    [message] = entries(FakeRedis(server=fake_broker))
    assert message["headers"]["task"] == TASK
    assert message["headers"]["timelimit"] == [SHORT.hard, SHORT.soft]
    assert rings(message) == [["id-0", 0], ["id-1", 0]]
    assert not dispatcher.is_down


async def test_bulk_waits_in_the_list_that_kombu_reads_last(valkey: ValkeyServer | GivenValkey) -> None:
    dispatcher = Dispatcher(valkey.url)
    app = celery_app(valkey.url)

    dispatcher.ring(replace(bells(2), is_bulk=True))
    await dispatcher.close()

    with app.connection_for_read() as connection:
        channel: Any = connection.default_channel
        [message] = messages(valkey.url, channel._q_for_pri("forge.default.async", BULK))
        assert channel.priority_steps == [0, BULK]
    assert (rings(message), message["properties"]["priority"]) == ([["id-0", 0], ["id-1", 0]], BULK)
    app.close()


async def test_concurrent_rings_leave_together(fake_broker: FakeServer) -> None:
    dispatcher = Dispatcher(ANYWHERE)

    for number in range(100):
        dispatcher.ring(bells(first=number))
    await dispatcher.close()

    [message] = entries(FakeRedis(server=fake_broker))
    assert rings(message) == [[f"id-{number}", 0] for number in range(100)]


async def test_rings_gather_while_a_publish_is_under_way(fake_broker: FakeServer) -> None:
    dispatcher = Dispatcher(ANYWHERE)

    dispatcher.ring(bells(first=0))
    await asyncio.sleep(0)  # the first publish begins
    for number in range(1, 50):
        dispatcher.ring(bells(first=number))
    await dispatcher.close()

    assert [len(rings(message)) for message in entries(FakeRedis(server=fake_broker))] == [1, 49]


async def test_a_broker_that_is_away_neither_fails_nor_delays_a_ring(caplog: pytest.LogCaptureFixture) -> None:
    dispatcher = Dispatcher(NOWHERE)

    dispatcher.ring(bells())

    assert not dispatcher.is_down  # it came back before the attempt was over
    await reached(lambda: dispatcher.is_down, 60, "the failure is noticed")
    await dispatcher.close()
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == [
        "Broker unavailable; workers will find calls in SQL"
    ]


async def test_an_outage_is_said_once_and_rings_in_it_are_dropped(caplog: pytest.LogCaptureFixture) -> None:
    dispatcher = Dispatcher(NOWHERE)
    dispatcher.ring(bells())
    await reached(lambda: dispatcher.is_down, 60, "the failure is noticed")

    for _ in range(20):
        dispatcher.ring(bells())
        await asyncio.sleep(0.005)
    await dispatcher.close()

    assert sum("Broker unavailable" in record.message for record in caplog.records) == 1


async def test_rings_go_out_again_once_the_broker_is_back(
    services: Any, monkeypatch: pytest.MonkeyPatch, valkey: ValkeyServer | GivenValkey
) -> None:
    monkeypatch.setattr(dispatcher_module, "PAUSE_AFTER_FAILURE", 0.05)
    server = ValkeyServer(services.folder("dispatch-valkey"))
    dispatcher = Dispatcher(server.url)
    dispatcher.ring(bells())
    await reached(lambda: dispatcher.is_down, 60, "the failure is noticed")

    with server:
        async with asyncio.timeout(60):
            while not messages(server.url):
                dispatcher.ring(bells(first=7))
                await asyncio.sleep(0.02)
        await dispatcher.close()

        assert not dispatcher.is_down
        assert rings(messages(server.url)[0])[0] == ["id-7", 0]


async def test_closing_waits_for_a_silent_broker_only_so_long(
    silent_broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher_module, "PUBLISH_DEADLINE", 0.3)
    dispatcher = Dispatcher(silent_broker)
    dispatcher.ring(bells())
    await asyncio.sleep(0)
    started = time.monotonic()

    await dispatcher.close()

    assert time.monotonic() - started < 30


async def test_a_dispatcher_that_never_rang_closes_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher_module, "PUBLISH_DEADLINE", 60.0)
    dispatcher = Dispatcher(f"redis+socket://{tmp_path}/none.sock")

    async with asyncio.timeout(30):
        await dispatcher.close()
