"""Messages written to a broker can be read again, and nothing else can; a burst is split fairly."""

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_tools.broker.message import (
    MAX_BYTES,
    Allowance,
    MalformedMessageError,
    Message,
    body,
    envelope,
    queue_name,
    queue_of,
    read_body,
    read_envelope,
)
from forge_tools.model import Lane, new_id
from forge_tools.model.execution import Wakeup
from forge_tools.time_limits import CeleryLimits

ID = new_id()
Json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["body", "headers"]), inner),
    max_leaves=20,
)


@pytest.mark.parametrize("count", [1, 16, 128])
def test_what_is_written_is_read_again(count: int) -> None:
    wakeups = [Wakeup(new_id(), attempt) for attempt in range(count)]

    assert read_body(body(wakeups).encode()) == wakeups
    assert read_envelope(json.dumps(envelope(wakeups, "forge.default.async", 0)).encode()) == wakeups


def as_body(wakeups: Any) -> bytes:
    return json.dumps([[wakeups], {}, {}]).encode()


@pytest.mark.parametrize(
    "wakeups",
    [
        *([], None, "text", {"a": 0}, 7, [[ID]], [[ID, "0"]], [[ID, True]], [[ID, 1.0]], [[ID, -1]], [[ID, 2**31]]),
        *([["not-an-id", 0]], [[ID.upper(), 0]], [[f"{ID}\n", 0]], [[1, 2]], [{"a": 0}], [None], ["ab"]),
        [[ID, 0], [ID, 0, 0]],
        [[ID, 0]] * 129,
    ],
)
def test_only_a_bounded_list_of_ids_with_attempts_is_a_message(wakeups: Any) -> None:
    with pytest.raises(MalformedMessageError):
        read_body(as_body(wakeups))


@given(st.binary(max_size=300) | st.binary(max_size=40).map(base64.b64encode) | Json.map(json.dumps).map(str.encode))
def test_whatever_bytes_there_are_nothing_else_is_raised(text: bytes) -> None:
    for read in (read_body, read_envelope):
        with pytest.raises(MalformedMessageError):
            read(text)


@pytest.mark.parametrize("text", [b"[" * MAX_BYTES, b"1" * MAX_BYTES, b" " * MAX_BYTES + as_body([[ID, 0]])])
def test_what_is_long_or_deep_is_dropped(text: bytes) -> None:
    with pytest.raises(MalformedMessageError):
        read_body(text)


def message(count: int, lane: Lane = "async", *, is_bulk: bool = False) -> Message:
    return Message("default", lane, tuple(Wakeup(f"id-{n}", 0) for n in range(count)), CeleryLimits(10, 12), is_bulk)


@pytest.mark.parametrize(
    ("count", "workers", "sizes"),
    [
        (1, 1, [1]),
        (128, 1, [128]),
        (300, 1, [128, 128, 44]),
        (40, 2, [10, 10, 10, 10]),
        (200, 2, [50, 50, 50, 50]),
        (8, 2, [8]),
        (16, 2, [8, 8]),
        (1000, 2, [128] * 7 + [104]),
        (48, 3, [8] * 6),
    ],
)
def test_a_burst_is_cut_so_that_each_worker_gets_its_part(count: int, workers: int, sizes: list[int]) -> None:
    parts = list(message(count).parts({("default", "async"): workers, ("other", "async"): 9}))

    assert [len(one.wakeups) for one in parts] == sizes
    assert [wakeup.id for one in parts for wakeup in one.wakeups] == [f"id-{n}" for n in range(count)]


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
    parts = message(count, "process").parts({("default", "process"): workers})

    assert [len(one.wakeups) for one in parts] == sizes


def test_parts_of_bulk_are_bulk_with_the_same_limits() -> None:
    assert {(one.is_bulk, one.limits) for one in message(300, is_bulk=True).parts()} == {(True, CeleryLimits(10, 12))}


@pytest.mark.parametrize("queue", ["default", "background", "host.box-1.example", "a_b"])
@pytest.mark.parametrize("lane", ["async", "process"])
def test_a_broker_queue_names_its_queue_and_lane(queue: str, lane: Lane) -> None:
    name = queue_name(queue, lane)

    assert name == f"forge.{queue}.{lane}"
    assert queue_of(name) == queue


def test_a_client_is_allowed_so_much_at_once_and_as_much_again_a_second_later() -> None:
    clock = iter([0.0, 0.0, 0.0, 0.5, 0.5, 99.0]).__next__
    allowance = Allowance(10, clock=clock)

    assert [allowance.take(7), allowance.take(7), allowance.take(7), allowance.take(1)] == [7, 3, 5, 0]
    assert allowance.take(500) == 10
