"""What calls on real workers print and log, and why they fail, as their record has it."""

import asyncio
import json
from collections.abc import AsyncIterator
from itertools import groupby
from pathlib import Path

import pytest

from forge_tools.client import ExecutorClient, Handle
from forge_tools.model import Diagnosis, ExecutionContext, Output
from forge_tools.sandbox.reports import MOST_BYTES
from forge_tools.tool.failures import MOST_BYTES as MOST_OF_A_DIAGNOSIS
from tests import printing_tools
from tests.fleet import Fleet

DATABASES = ("postgres",)

FLEET_TOOLS = "tests.printing_tools:TOOLS"
LIMIT = 60


@pytest.fixture
async def client(fleet: Fleet) -> AsyncIterator[ExecutorClient]:
    async with ExecutorClient(fleet.settings) as client:
        yield client


async def outputs(handle: Handle) -> list[Output]:
    async with asyncio.timeout(LIMIT):
        return [event async for event in handle.events() if isinstance(event, Output)]


def lines(heard: list[Output]) -> list[tuple[str, str]]:
    """Each line with where it came from, parts of one put together."""
    parts = [(source, "".join(one.text for one in group)) for source, group in groupby(heard, lambda one: one.source)]
    return [(source, line) for source, text in parts for line in text.splitlines()]


BOTH = [
    ("stdout", "from print"),
    ("stderr", "from stderr"),
    ("stdout", "from � bytes"),
    ("error", "library: from logging"),
    ("stdout", "from a thread"),
    ("warning", "library: from a thread that logs"),
    ("stdout", "from a pool"),
    ("stdout", "from \\x00 \\udcff "),
    ("warning", "library: from without"),
]
WITHIN = ("warning", "library: from within")
LAST = [("info", "from its logger"), ("output", "from emit")]
OUTER = [
    ("stdout", "from a descriptor"),
    ("stdout", "from a child"),
    ("stderr", "from a grandchild"),
    ("stdout", "from an �migr�"),
    ("stdout", "from a fork"),
]


@pytest.mark.parametrize(("tool", "outer"), [("noise", OUTER), ("noise_async", [])])
async def test_what_a_body_prints_and_logs_is_its_calls_in_order(
    client: ExecutorClient, context: ExecutionContext, tool: str, outer: list[tuple[str, str]]
) -> None:
    for _ in range(2):  # a warning is told each time
        handle = await client.submit(tool, {}, context=context)
        told = lines(await outputs(handle))
        warned = [one for one in told if "UserWarning: from a warning" in one[1]]

        assert [source for source, _ in warned] == ["warning"]
        assert WITHIN in told, "as often as a handler puts it into words"
        rest = [one for one in told if one[1] not in ("from to_thread", "nobody's", WITHIN[1]) and one not in warned]
        heard = [one for one in rest if "warnings.warn" not in one[1]]
        for stream in {source for source, _ in heard}:  # of processes, what comes by two descriptors may change places
            assert [one for one in heard if one[0] == stream] == [
                one for one in [*BOTH, *outer, *LAST] if one[0] == stream
            ]
        assert [one for one in heard if one not in outer] == [*BOTH, *LAST]
        assert (await handle.result()).output == f"{handle.id} 1 1"


async def test_a_secret_is_in_nothing_that_is_printed_and_in_no_diagnosis(
    client: ExecutorClient, context: ExecutionContext, fleet: Fleet
) -> None:
    handle = await client.submit("tell", {"secret": "hunter22-hunter33"}, context=context)
    told = lines(await outputs(handle))

    assert told == [
        ("stdout", "[redacted]"),
        ("stdout", "[redacted]"),
        ("warning", "library: with [redacted]"),
        ("stdout", "[redacted]"),
    ]
    found = await handle.diagnosis()
    assert found is not None
    assert found.said == "ValueError: [redacted] is wrong"
    assert Path(found.frames[-1].file).samefile(printing_tools.__file__)
    assert found.notes == ("noted: [redacted]",)
    assert found.causes[0].said == "KeyError: '[redacted]'"
    assert "hunter22" not in json.dumps(found.as_dict()) + "".join(worker.log.read_text() for worker in fleet.workers)


@pytest.mark.parametrize("how", ["print", "both", "child", "log"])
async def test_a_flood_is_bounded_and_counted_and_its_ends_are_there(
    client: ExecutorClient, context: ExecutionContext, how: str
) -> None:
    handle = await client.submit("flood", {"megabytes": 10 if how != "log" else 2, "how": how}, context=context)
    heard = await outputs(handle)
    told = lines(heard)

    assert (told[0][1], told[-1][1]) == ("the beginning", "the end")
    kept = sum(len(output.text.encode()) for output in heard)
    assert kept <= MOST_BYTES
    lines_of = (await handle.result()).output
    each = 84 if how != "log" else 84 + len("library: ")
    whole = lines_of * each + len("the beginning\nthe end\n")
    assert kept + sum(output.left_out for output in heard) == whole


@pytest.mark.parametrize("left", ["leave_a_writer", "leave_a_thread"])
async def test_what_outlives_its_call_writes_into_no_other(
    client: ExecutorClient, context: ExecutionContext, left: str
) -> None:
    await client.execute(left, context, seconds=2.0)
    handles = [await client.submit("noise", {}, context=context) for _ in range(4)]

    for handle in handles:
        assert not any("left behind" in line for _, line in lines(await outputs(handle)))


@pytest.mark.parametrize("tool", ["log_for_ever", "log_for_ever_async"])
async def test_a_body_that_logs_in_a_loop_is_stopped_in_time_bounded_and_disturbs_no_other(
    client: ExecutorClient, context: ExecutionContext, tool: str
) -> None:
    handle = await client.submit(tool, {}, context=context.model_copy(update={"timeout": 1.5}))
    heard = asyncio.create_task(outputs(handle))

    beside = await client.execute("say", context, word="beside", pause=0.01)

    told, result = await heard, await handle.result()
    assert beside.success
    assert result.error_code == "TIMEOUT"
    assert lines(told)[:2] == [("warning", "library: again")] * 2
    assert sum(len(output.text.encode()) for output in told) <= MOST_BYTES


async def test_a_traceback_of_ten_thousand_frames_is_told_in_a_few(
    client: ExecutorClient, context: ExecutionContext
) -> None:
    result = await client.execute("recurse", context, depth=10_000)

    assert result.error == "Unexpected error: the bottom"
    found = result.diagnosis
    assert found is not None
    assert found.place.endswith("in go_down")
    assert max(frame.repeated for frame in found.frames) > 9_000
    assert len(json.dumps(found.as_dict())) <= MOST_OF_A_DIAGNOSIS


async def test_calls_that_share_a_loop_hear_each_their_own(client: ExecutorClient, context: ExecutionContext) -> None:
    words = [f"word {number}" for number in range(20)]
    handles = [await client.submit("say", {"word": word}, context=context) for word in words]

    for word, handle in zip(words, handles, strict=True):
        assert lines(await outputs(handle)) == [("stdout", word)] * 5


async def test_why_a_call_failed_on_a_worker_is_in_its_result_and_its_record(
    client: ExecutorClient, context: ExecutionContext
) -> None:
    handle = await client.submit("fail", {}, context=context)
    result = await handle.result()

    found = await handle.diagnosis()
    assert result.error == "Unexpected error: KeyError: 'missing'"
    assert isinstance(found, Diagnosis)
    assert found == result.diagnosis
    assert found.place.startswith(printing_tools.__file__)
    assert found.place.endswith("in look_up")
    assert found.frames[0].function == "fail"


async def test_the_last_words_of_a_process_that_dies_are_its_calls(
    client: ExecutorClient, context: ExecutionContext
) -> None:
    for _ in range(3):
        handle = await client.submit("crash", {}, context=context)
        told = lines(await outputs(handle))

        assert told[:2] == [("stdout", "from a child"), ("stderr", "Fatal Python error: Segmentation fault")]
        assert 'printing_tools.py", line' in "".join(line for _, line in told)
        assert (await handle.result()).error_code == "LOST"


async def test_the_last_words_of_a_process_are_heard_after_a_call_that_left_another(
    client: ExecutorClient, context: ExecutionContext
) -> None:
    """Which keeps the pipes that it has, so that the next call of the process gets others."""
    await asyncio.gather(*(client.execute("leave_a_writer", context, seconds=3.0) for _ in range(4)))

    told = lines(await outputs(await client.submit("crash", {}, context=context)))

    assert told[:2] == [("stdout", "from a child"), ("stderr", "Fatal Python error: Segmentation fault")]
    assert "left behind" not in [line for _, line in told]
