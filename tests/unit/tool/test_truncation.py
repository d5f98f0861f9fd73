"""Outputs are cut to their limit, at line ends if that costs little, and the cut says what is missing and where it is."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from forge_tools.errors import SandboxError
from forge_tools.model.artifacts import Artifact
from forge_tools.sandbox.artifacts import FolderArtifacts
from forge_tools.sandbox.processes.output import shortened
from forge_tools.sandbox.reach import Reach
from forge_tools.tool.base import BaseTool, ExecutionContext, ToolCategory, ToolParameter, ToolResult
from forge_tools.tool.executor import ToolExecutor
from forge_tools.tool.registry import ScopedRegistry

HANDLE = f"artifact://{'0123456789abcdef' * 2}"
LIMITS = [*range(70), 100, 139, 140, 141, 180, 200, 1000, 5000]


def shorten(text: str, limit: int, kept: dict[str, str] | None = None) -> tuple[str, dict[str, Any]]:
    return shortened(text, text, chars=len(text), newlines=text.count("\n"), limit=limit, kept=kept or {})


class Say(BaseTool):
    """Return what it is told to."""

    name = "Say"
    category = ToolCategory.OTHER
    parameters = (ToolParameter(name="what", type="array", description="One item: the output."),)

    async def _execute(self, context: ExecutionContext, what: list[Any]) -> ToolResult:
        return ToolResult.ok(what[0], own="kept")


class Broken:
    """Artifacts that fail as they are told to."""

    max_bytes = 1 << 20

    def __init__(self, error: Exception | None) -> None:
        self.error = error
        self.was_asked = asyncio.Event()

    async def put(self, chunks: AsyncIterator[bytes], context: ExecutionContext) -> Artifact:
        self.was_asked.set()
        if self.error is None:
            await asyncio.sleep(60)
        raise self.error or AssertionError

    async def open(self, handle: str, context: ExecutionContext) -> int:
        raise AssertionError


def executor(artifacts: Any = None) -> ToolExecutor:
    registry = ScopedRegistry()
    registry.register(Say())
    return ToolExecutor(registry, reach=Reach(artifacts=artifacts))


async def say(what: object, limit: int, artifacts: Any = None, timeout: float = 20.0) -> ToolResult:
    context = ExecutionContext(working_dir=".", max_output_size=limit, timeout=timeout)
    return await executor(artifacts).execute("Say", context, what=[what])


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("artifact", [None, HANDLE])
def test_the_cut_text_keeps_to_the_limit_once_the_marker_fits(limit: int, artifact: str | None) -> None:
    text = "\n".join(f"line {number}: é漢\U0001f600" for number in range(2000))

    cut, facts = shorten(text, limit, {"artifact": artifact} if artifact else {})

    marker = cut[cut.index("[...") : cut.index("...]") + 4]
    assert len(cut) <= max(limit, len(marker))
    head, tail = cut.split(marker)
    assert text.startswith(head.rstrip("\n"))
    assert text.endswith(tail.lstrip("\n"))
    assert (facts["truncated"], facts["total_chars"], facts["total_lines"]) == (True, len(text), 2000)
    assert len(marker) <= max(limit, 56), "the handle is left out where it has no room"


def test_cuts_prefer_whole_lines_and_say_what_is_missing() -> None:
    text = "\n".join(f"{number:04}" for number in range(1000))

    cut, facts = shorten(text, 500)

    lines = cut.split("\n")
    marker = next(line for line in lines if line.startswith("["))
    shown = [line for line in lines if line != marker]
    assert all(len(line) == 4 for line in shown)
    assert facts["shown_lines"] == len(shown)
    assert marker == f"[... {4999 - len(shown) * 5 + 1:,} characters ({1000 - len(shown):,} lines) omitted ...]"
    assert 1.2 < (len(shown) - lines.index(marker)) / lines.index(marker) < 1.8


def test_the_marker_and_the_metadata_name_the_first_line_that_is_missing() -> None:
    text = "\n".join(f"{number:04}" for number in range(1, 1001))

    cut, facts = shorten(text, 500, {"artifact": HANDLE})

    before = [line for line in cut.partition("\n[...")[0].split("\n") if line]
    offset = int(before[-1]) + 1
    assert f"omitted; full output: {HANDLE}, Read it with offset={offset} ...]" in cut
    assert facts["next"] == {"tool": "Read", "file_path": HANDLE, "offset": offset}


def test_one_endless_line_is_cut_inside() -> None:
    cut, facts = shorten("ab" * 50_000, 1000)

    assert 950 <= len(cut) <= 1000
    assert cut.startswith("abab")
    assert cut.endswith("abab")
    assert facts == {"truncated": True, "total_chars": 100_000, "total_lines": 1, "shown_lines": 2}


def test_the_rest_of_an_endless_line_is_at_a_column() -> None:
    text = "".join(f"{number:05}" for number in range(10_000))

    cut, facts = shorten(text, 1000, {"artifact": HANDLE})

    column = facts["next"]["column"]
    assert facts["next"] == {"tool": "Read", "file_path": HANDLE, "offset": 1, "column": column}
    assert f"Read it with offset=1, column={column} ...]" in cut
    assert cut.startswith(text[:column] + "\n[...")


@pytest.mark.parametrize("over", [0, 1, 64, 4998, 4999, 5000])
async def test_an_output_over_the_limit_is_kept_whole(tmp_path: Path, over: int) -> None:
    text = "\n".join(f"{number:04}" for number in range(1000))
    artifacts = FolderArtifacts(tmp_path / "kept")

    result = await say(text, over, artifacts)

    if over >= len(text):
        assert (result.output, result.metadata) == (text, {"own": "kept"})
        return
    handle = result.metadata["artifact"]
    fd = await artifacts.open(handle, ExecutionContext(working_dir="."))
    with open(fd, "rb") as file:
        assert file.read().decode() == text
    assert result.metadata["own"] == "kept"
    assert result.metadata["next"]["file_path"] == handle
    assert (handle in result.output) == (over > 130)


async def test_what_is_not_text_is_kept_as_json_and_half_a_character_as_an_escape(tmp_path: Path) -> None:
    artifacts = FolderArtifacts(tmp_path / "kept")
    for what, kept in (({"a": ["é"] * 9}, '{\n  "a": [\n    "é"'), ("x\ud800" * 20, "x\\ud800x")):
        result = await say(what, 30, artifacts)
        with open(await artifacts.open(result.metadata["artifact"], ExecutionContext(working_dir=".")), "rb") as file:
            assert file.read().decode().startswith(kept)


async def test_data_that_is_too_long_is_indented_beside_the_loop() -> None:
    class Witness:
        def __str__(self) -> str:
            threads.append(threading.current_thread())
            return "seen"

    threads: list[threading.Thread] = []

    result = await say([Witness()] * 9, 30)

    assert result.metadata["total_lines"] == 11
    assert threads[-1] is not threading.current_thread()


async def test_of_an_output_larger_than_an_artifact_the_ends_are_kept(tmp_path: Path) -> None:
    artifacts = FolderArtifacts(tmp_path / "kept", max_bytes=100_000)
    result = await say("".join(f"{number:09}\n" for number in range(50_000)), 1000, artifacts)
    with open(await artifacts.open(result.metadata["artifact"], ExecutionContext(working_dir=".")), "rb") as file:
        lines = file.read().decode().splitlines()
    [marker] = [line for line in lines if line.startswith("[")]
    assert sum(len(line) + 1 for line in lines) <= 100_000
    assert (lines[0], lines[-1]) == ("000000000", "000049999")
    assert (
        marker == f"[... {10 * (50_000 - len(lines) + 1):,} bytes left out: the limit for an artifact is 100,000 ...]"
    )


@pytest.mark.parametrize(
    ("error", "reason"),
    [(SandboxError("The disk is full"), "The disk is full"), (RuntimeError("x"), "RuntimeError: x")],
)
async def test_a_call_whose_output_cannot_be_kept_succeeds_and_says_why(error: Exception, reason: str) -> None:
    result = await say("long " * 100, 100, Broken(error))
    assert result.success
    assert len(result.output) <= 100
    assert "artifact" not in result.metadata
    assert result.metadata["artifact_error"] == f"The full output was not kept: {reason}"


async def test_keeping_an_output_takes_no_longer_than_its_call_may() -> None:
    result = await say("long " * 100, 100, Broken(None), timeout=0.3)
    assert result.success
    assert "could not be stored within 0.5s" in result.metadata["artifact_error"]


async def test_without_artifacts_nothing_is_said_of_them() -> None:
    result = await say("long " * 100, 100)
    assert result.metadata.keys() == {"own", "truncated", "total_chars", "total_lines", "shown_lines"}


async def test_a_call_cancelled_while_its_output_is_kept_is_recorded_as_cancelled() -> None:
    artifacts = Broken(None)
    runs = executor(artifacts)
    call = asyncio.create_task(
        runs.execute("Say", ExecutionContext(working_dir=".", max_output_size=9), what=["x" * 99])
    )
    await asyncio.wait_for(artifacts.was_asked.wait(), 5)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert [one.result.error_code for one in runs.get_executions()] == ["CANCELLED"]


async def test_of_an_output_too_large_for_an_artifact_the_result_says_which_part_is_kept(tmp_path: Path) -> None:
    result = await say("12345678\n" * 50_000, 1000, FolderArtifacts(tmp_path / "kept", max_bytes=1 << 18))

    holds = "first and last 131,072 bytes of 450,000"
    assert result.metadata["artifact_holds"] == holds
    assert f"omitted; {holds}: {result.metadata['artifact']}, Read it with" in result.output
