"""What shells write is searched for as long as asked, and for nothing that no line can be."""

import time

import pytest

from tests.unit.tools.shell_session import Session


@pytest.mark.parametrize("pattern", ["(", "one\ntwo", r"one\ntwo", r"[a]\\\n"])
async def test_a_pattern_that_can_match_nothing_is_refused_before_anything_is_waited_for(
    calls: Session, pattern: str
) -> None:
    handle = await calls.start("sleep 61")
    began = time.monotonic()
    result = await calls.output(handle, wait_for=pattern)
    assert (result.error_code, result.error.partition(",")[0]) == ("INVALID_REGEX", "Invalid pattern")
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("pattern", [r"o[^\n]e", r"C:\\new", "one"])
async def test_a_pattern_may_speak_of_line_breaks_that_it_does_not_want(calls: Session, pattern: str) -> None:
    handle = await calls.start(r"printf '%s\n' 'one C:\new'; sleep 61")
    assert (await calls.output(handle, wait_for=pattern)).metadata["matched"]


async def test_the_wait_is_over_when_it_is_though_there_is_more_to_search(calls: Session) -> None:
    handle = await calls.start("yes | head -c 40000000; echo the end")
    await calls.ended(handle)
    result = await calls.output(handle, wait_for="the [e]nd", wait_ms=1)
    assert result.metadata["matched"] is False
    searched_to = result.metadata["searched_to"]
    assert 0 < searched_to < 40_000_000
    assert f"[no line has matched wait_for before byte {searched_to:,}: the time ran out]" in result.output
    assert (await calls.output(handle, wait_for="the [e]nd", since=39_000_000)).metadata["matched_line"] == "the end"
