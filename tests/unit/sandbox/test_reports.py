"""What a body reports is bounded, coalesced and exactly counted, from any thread and in any amount."""

import copy
import pickle
import threading
import time
from typing import Any

import pytest

from forge_tools.model import ExecutionContext, Output, Progress
from forge_tools.model.scope import SCOPE, CallScope, Report, Told
from forge_tools.sandbox.reports import (
    MESSAGE_CHARS,
    MOST_BYTES,
    PART_BYTES,
    ROWS_PER_STEP,
    SWITCH_BYTES,
    DirectReporter,
    ReportBuffer,
)
from tests.waiting import within


def nobody() -> None: ...


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def size(told: list[Told]) -> int:
    """Bytes of output that those account for: told and left out."""
    return sum(len((one.text or "").encode()) + one.left_out for one in told if one.done is None)


def text(told: list[Told]) -> str:
    return "".join(one.text or "" for one in told if one.done is None)


def test_of_progress_the_newest_is_told_and_older_is_not(clock: Clock) -> None:
    buffer = ReportBuffer(nobody, clock=clock)
    for number in range(10):
        buffer.progress(number, 10, f"step {number}")

    assert buffer.take() == [Told(1, 9.0, 10.0, "step 9")]
    assert buffer.take() == []


def test_output_waits_for_its_interval_and_progress_does_not(clock: Clock) -> None:
    buffer = ReportBuffer(nobody, interval=1.0, clock=clock)
    buffer.emit("one\n")
    assert text(buffer.take()) == "one\n"

    buffer.emit("two\n")
    buffer.progress(1, None, None)
    clock.now += 0.9
    assert [one.done for one in buffer.take()] == [1.0]
    assert buffer.is_waiting
    clock.now += 0.2
    assert text(buffer.take()) == "two\n"
    assert not buffer.is_waiting


def test_news_is_told_once_until_it_is_taken(clock: Clock) -> None:
    news: list[int] = []
    buffer = ReportBuffer(lambda: news.append(1), clock=clock)
    for _ in range(5):
        buffer.emit("x")
        buffer.progress(1, None, None)
    assert len(news) == 1

    buffer.take()
    buffer.emit("y")
    assert len(news) == 2


def test_news_is_not_told_again_while_output_is_not_due(clock: Clock) -> None:
    news: list[int] = []
    buffer = ReportBuffer(lambda: news.append(1), clock=clock)
    buffer.emit("x")
    buffer.take()
    buffer.emit("y")
    buffer.take()
    buffer.emit("z")

    assert (len(news), buffer.is_waiting) == (2, True)


def test_what_is_too_much_for_one_take_is_cut_in_the_middle_and_counted(clock: Clock) -> None:
    buffer = ReportBuffer(nobody, clock=clock)
    lines = [f"{number:07}\n" for number in range(20_000)]
    for line in lines:
        buffer.emit(line)

    head, tail = buffer.take()

    assert head.text == "".join(lines)[:PART_BYTES]
    assert tail.text == "".join(lines)[-PART_BYTES:]
    assert tail.left_out == 160_000 - 2 * PART_BYTES


@pytest.mark.parametrize("unit", ["x", "é", "€", "😀", "a😀€é\n"])
def test_every_byte_is_told_or_counted_and_no_character_is_torn(clock: Clock, unit: str) -> None:
    buffer, told, written = ReportBuffer(nobody, clock=clock), [], 0
    for number in range(900):
        part = unit * (1 + number * 37 % 500)
        buffer.emit(part)
        written += len(part.encode())
        if number % 11 == 0:
            clock.now += 3
            told += buffer.take()
    told += buffer.close()

    assert size(told) == written
    assert set(text(told)) <= set(unit)


@pytest.mark.parametrize("length", [PART_BYTES, 4 * PART_BYTES + 1, 1_000_000, 20_000_000])
@pytest.mark.parametrize("unit", ["x", "é"])
def test_one_long_text_is_bounded_and_counted(clock: Clock, unit: str, length: int) -> None:
    buffer = ReportBuffer(nobody, clock=clock)
    buffer.emit("before\n")
    buffer.emit(unit * length)
    buffer.emit("\nafter")

    told = buffer.take()

    assert size(told) == length * len(unit.encode()) + 13
    assert len(text(told)) <= 2 * PART_BYTES
    assert text(told).startswith("before\n" + unit)
    assert text(told).endswith(unit + "\nafter")


def test_an_attempt_is_bounded_and_keeps_its_end(clock: Clock) -> None:
    buffer, told, written = ReportBuffer(nobody, clock=clock), [], 0
    for number in range(300):
        line = f"{number}\n" * 4000
        buffer.emit(line)
        written += len(line)
        clock.now += 1
        told += buffer.take()
    buffer.emit("the very end\n")
    told += buffer.close()

    assert len(text(told)) <= MOST_BYTES
    assert text(told).endswith("299\nthe very end\n")
    assert size(told) == written + 13


@pytest.mark.parametrize("unit", ["a", "é", "日"])
def test_the_end_is_kept_whichever_take_used_up_the_room(clock: Clock, unit: str) -> None:
    flood, about = unit * PART_BYTES + "\n", MOST_BYTES // (PART_BYTES * (1 if unit == "a" else 2))
    for takes in range(about - 8, about + 8):
        buffer, told, emitted = ReportBuffer(nobody, clock=clock), list[Told](), 0
        for _ in range(takes):
            buffer.emit(flood)
            buffer.emit("the end")
            told += buffer.take(is_urgent=True)
            emitted += len((flood + "the end").encode())
        buffer.emit("\n")
        told += buffer.close()

        assert text(told).endswith(f"{unit}\nthe end\n")
        assert "\ufffd" not in text(told)
        assert size(told) == emitted + 1
        assert len(text(told).encode()) <= MOST_BYTES


def test_rows_become_rarer_the_longer_a_call_talks(clock: Clock) -> None:
    buffer, rows = ReportBuffer(nobody, interval=0.25, clock=clock), 0
    for _ in range(24 * 3600 * 4):  # a day
        buffer.emit(".")
        clock.now += 0.25
        rows += len(buffer.take())

    assert 4 * ROWS_PER_STEP < rows < 12 * ROWS_PER_STEP


def test_what_is_told_after_the_close_is_nobodys(clock: Clock) -> None:
    buffer = ReportBuffer(nobody, clock=clock)
    buffer.emit("in time")
    assert text(buffer.close()) == "in time"

    buffer.emit("too late")
    buffer.progress(1, 2, None)
    buffer.pass_on(Told(1, text="x", left_out=3))
    assert (buffer.close(), buffer.is_waiting) == ([], False)


def test_bytes_texts_and_other_things_are_told_as_text(clock: Clock) -> None:
    buffer = ReportBuffer(nobody, clock=clock)
    things: list[Any] = [
        b"caf\xc3",
        b"\xa9\n",
        "half \ud800\n",
        b"\xff\n",
        "\x1b[31mred\x1b[0m\n",
        12,
        bytearray(b"!"),
        "",
    ]
    for thing in things:
        buffer.emit(thing)

    assert text(buffer.take()) == "café\nhalf \\ud800\n\ufffd\nred\n12!"


def test_a_character_whose_bytes_come_apart_is_told_when_it_is_whole(clock: Clock) -> None:
    buffer = ReportBuffer(nobody, clock=clock)
    buffer.emit("é".encode()[:1])
    first = buffer.take()
    clock.now += 1
    buffer.emit("é".encode()[1:])
    assert (text(first), text(buffer.take())) == ("", "é")

    buffer.emit(b"\xe2\x82")
    assert text(buffer.close()) == "\ufffd"


@pytest.mark.parametrize("number", [float("nan"), float("inf"), "three", None, 10**400, object()])
def test_an_invalid_number_fails_no_tool(clock: Clock, number: Any) -> None:
    buffer = ReportBuffer(nobody, clock=clock)
    buffer.progress(2, 4, None)
    buffer.progress(number, number, "still here")

    assert buffer.take() == [Told(1, 2.0, None, "still here")]


def test_a_message_is_short(clock: Clock) -> None:
    buffer = ReportBuffer(nobody, clock=clock)
    buffer.progress(1, -3, "x" * 1_000_000)

    assert buffer.take() == [Told(1, 1.0, None, "x" * MESSAGE_CHARS)]


def test_threads_lose_nothing(clock: Clock) -> None:
    buffer, told = ReportBuffer(nobody, interval=0.0, clock=clock), []
    line = "a line of some length\n"

    def tell() -> None:
        for number in range(2000):
            buffer.emit(line)
            buffer.progress(number, 2000, None)

    threads = [threading.Thread(target=tell) for _ in range(4)]
    for thread in threads:
        thread.start()
    time_left = within(60, "the threads do not end")
    while any(thread.is_alive() for thread in threads) and next(time_left):
        told += buffer.take()
    told += buffer.close()

    assert size(told) == 8000 * len(line)
    assert [one.number for one in told] == list(range(1, len(told) + 1))


def test_one_buffer_passes_on_what_another_gave(clock: Clock) -> None:
    first, second = ReportBuffer(nobody, clock=clock), ReportBuffer(nobody, clock=clock)
    first.emit("a" * 100_000 + "b")
    first.progress(3, 4, "x")

    for told in first.close():
        second.pass_on(told)
    second.emit("c")
    told = second.close()

    assert size(told) == 100_002
    assert text(told).startswith("aaa")
    assert text(told).endswith("abc")
    assert told[-1] == Told(3, 3.0, 4.0, "x")


def test_streams_are_told_in_order_and_a_character_in_parts_of_each_is_put_together(clock: Clock) -> None:
    buffer = ReportBuffer(nobody, clock=clock)
    euro = "€".encode()
    buffer.emit(euro[:1], "stdout")
    buffer.emit("a\n", "log", 30)
    buffer.emit("b\n", "log", 40)
    buffer.emit(b"\xff", "stderr")
    buffer.emit(euro[1:], "stdout")

    told = [(one.stream, one.level, one.text) for one in buffer.close()]
    assert told == [("log", 30, "a\n"), ("log", 40, "b\n"), ("stderr", None, "\ufffd"), ("stdout", None, "€")]


def test_streams_that_take_turns_are_bounded_by_rows_too_and_every_byte_is_counted(clock: Clock) -> None:
    buffer = ReportBuffer(nobody, clock=clock)
    for _ in range(20_000):
        buffer.emit("x\n", "stdout")
        buffer.emit("y\n", "stderr")

    told = buffer.close()
    assert len(told) <= 2 * PART_BYTES // SWITCH_BYTES
    assert size(told) == 80_000
    assert (told[0].text, told[-1].text) == ("x\n", "y\n")


def test_two_gaps_in_one_take_are_one(clock: Clock) -> None:
    buffer = ReportBuffer(nobody, clock=clock)
    for told in (Told(1, text="one"), Told(2, text="two", left_out=10), Told(3, text="three", left_out=20)):
        buffer.pass_on(told)

    assert buffer.take() == [Told(1, text="one"), Told(2, text="three", left_out=33)]


def test_no_count_is_more_than_a_column_holds(clock: Clock) -> None:
    buffer = ReportBuffer(nobody, clock=clock)
    buffer.pass_on(Told(1, text="x", left_out=10**30))

    assert buffer.take()[0].left_out < 2**63


def test_a_context_tells_its_reporter_from_any_thread() -> None:
    heard: list[Report] = []
    context = ExecutionContext(working_dir=".").within(CallScope(DirectReporter(heard.append)))

    thread = threading.Thread(target=lambda: context.progress(1, 2, "from a thread"))
    thread.start()
    thread.join()
    context.model_copy(update={"timeout": 3.0}).emit("from a copy")

    assert heard == [Progress(done=1.0, total=2.0, message="from a thread"), Output(text="from a copy")]


def test_a_context_that_a_tool_makes_itself_tells_the_call_that_runs() -> None:
    heard: list[Report] = []
    token = SCOPE.set(CallScope(DirectReporter(heard.append)))
    try:
        ExecutionContext(working_dir=".").emit("here")
    finally:
        SCOPE.reset(token)

    assert heard == [Output(text="here")]


def test_without_anybody_to_tell_nothing_happens() -> None:
    context = ExecutionContext(working_dir=".")
    context.progress(1, 2, "x")
    context.emit("y")


def test_a_context_travels_without_its_reporter() -> None:
    plain = ExecutionContext(working_dir=".")
    context = plain.within(CallScope(ReportBuffer(nobody)))

    for copied in (pickle.loads(pickle.dumps(context)), copy.deepcopy(context)):
        assert copied == plain
        copied.emit("nobody hears it")
    assert context.model_dump() == plain.model_dump()


def test_what_a_listener_raises_is_its_own_affair() -> None:
    def fail(_: Report) -> None:
        raise RuntimeError("not my tool's fault")

    DirectReporter(fail).emit("x")
    DirectReporter(fail).progress(1, None, None)


def test_a_forked_copy_stays_silent_even_if_the_lock_was_held() -> None:
    held = threading.Event()
    let_go = threading.Event()

    def clock() -> float:
        held.set()
        let_go.wait(10)
        return 0.0

    buffer = ReportBuffer(nobody, clock=clock)
    thread = threading.Thread(target=buffer.take)
    thread.start()
    held.wait(10)
    buffer.silence()
    buffer.emit("would wait for ever")
    buffer.progress(1, None, None)
    assert thread.is_alive()
    let_go.set()
    thread.join()
    assert not buffer.is_waiting


def test_telling_costs_microseconds() -> None:
    buffer = ReportBuffer(nobody)
    began = time.thread_time()
    for number in range(20_000):
        buffer.emit("a line of text as tools write them\n")
        buffer.progress(number, 20_000, "a step")

    assert (time.thread_time() - began) / 40_000 < 50e-6
