"""Output of a command beyond its limit: kept whole, up to the limit of an artifact, however the command ended."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from forge_tools.model import ExecutionContext, ToolResult
from forge_tools.model.scope import SCOPE, CallScope
from forge_tools.sandbox import spools
from forge_tools.sandbox.artifacts import FolderArtifacts
from forge_tools.sandbox.processes.output import HeadTail
from forge_tools.sandbox.reach import Reach
from forge_tools.sandbox.reports import DirectReporter
from forge_tools.tool.executor import ToolExecutor
from forge_tools.tool.registry import ScopedRegistry
from forge_tools.tools.execution.bash import Bash
from tests.waiting import reached

Run = Callable[..., Awaitable[ToolResult]]


@pytest.fixture
def artifacts(tmp_path: Path) -> FolderArtifacts:
    return FolderArtifacts(tmp_path / "kept", max_bytes=1 << 20)


@pytest.fixture
def bash(tmp_path: Path, artifacts: FolderArtifacts) -> Run:
    (tmp_path / "ws").mkdir()
    registry = ScopedRegistry()
    registry.register(Bash())
    executor = ToolExecutor(registry, reach=Reach(root=tmp_path / "ws", artifacts=artifacts))

    async def run(command: str, *, limit: int = 1000, **arguments: Any) -> ToolResult:
        context = ExecutionContext(working_dir=".", max_output_size=limit, timeout=30)
        return await executor.execute("Bash", context, command=command, **arguments)

    return run


async def whole(artifacts: FolderArtifacts, result: ToolResult) -> str:
    with open(await artifacts.open(result.metadata["artifact"], ExecutionContext(working_dir=".")), "rb") as file:
        return file.read().decode()


@pytest.mark.parametrize("over", [-1, 0, 1, 2])
async def test_exactly_what_cannot_be_shown_is_kept(bash: Run, artifacts: FolderArtifacts, over: int) -> None:
    room = 1000 - 160
    result = await bash(f"head -c {room + over} /dev/zero | tr '\\0' x")
    assert len(result.output) <= 1000
    assert result.metadata["truncated"] == (over > 0) == ("artifact" in result.metadata)
    if over > 0:
        assert await whole(artifacts, result) == "x" * (room + over)


async def test_the_whole_output_is_the_text_that_is_shown_of_it(bash: Run, artifacts: FolderArtifacts) -> None:
    result = await bash("for i in $(seq 1 3000); do printf '\\033[31mline %d é\\033[0m\\r\\n' $i; done; exit 3")
    everything = await whole(artifacts, result)
    assert everything == "".join(f"line {number} é\n" for number in range(1, 3001))
    head, marker, tail = result.output.partition("[...")
    assert everything.startswith(head)
    assert everything.endswith(tail.partition("...]\n")[2].removesuffix("[exit code: 3]"))
    following = result.metadata["next"]
    assert f"Read it with offset={following['offset']} ...]" in tail
    assert head.splitlines()[-1] == f"line {following['offset'] - 1} é"
    assert (result.metadata["total_lines"], result.metadata["exit_code"], marker) == (3000, 3, "[...")


@pytest.mark.parametrize("limit", [0, 1, 30, 64, 160, 161, 200, 300])
async def test_however_little_may_be_shown_the_counts_and_the_whole_are_right(
    bash: Run, artifacts: FolderArtifacts, limit: int
) -> None:
    result = await bash("seq 1 500", limit=limit)
    everything = "".join(f"{number}\n" for number in range(1, 501))
    assert await whole(artifacts, result) == everything
    assert (result.metadata["total_chars"], result.metadata["total_lines"]) == (len(everything), 500)
    assert "omitted" in result.output
    assert len(result.output) <= max(limit, 50)


async def test_of_more_than_an_artifact_holds_the_ends_are_kept(bash: Run, artifacts: FolderArtifacts) -> None:
    result = await bash("seq 1 1000000; echo the end")
    everything = await whole(artifacts, result)
    lines = everything.splitlines()
    assert 1_000_000 < len(everything) <= 1 << 20
    assert (lines[0], lines[-2:]) == ("1", ["1000000", "the end"])
    [marker] = [line for line in lines if line.startswith("[")]
    left_out = 6_888_896 + len("the end\n") - (len(everything) - len(marker) - 1)
    assert marker == f"[... {left_out:,} bytes left out: the limit for an artifact is 1,048,576 ...]"
    holds = result.metadata["artifact_holds"]
    assert holds == "first and last 524,288 bytes of 6,888,904"
    assert f"omitted; {holds}: {result.metadata['artifact']}, Read it with" in result.output


async def test_what_a_command_wrote_before_its_time_was_up_is_kept(bash: Run, artifacts: FolderArtifacts) -> None:
    result = await bash("seq 1 2000; sleep 60", timeout=500)
    assert (result.success, result.error_code) == (False, "TIMEOUT")
    assert result.metadata["artifact"] in (result.error or "")
    assert await whole(artifacts, result) == "".join(f"{number}\n" for number in range(1, 2001))


async def test_what_a_cancelled_command_wrote_is_kept(bash: Run, artifacts: FolderArtifacts, tmp_path: Path) -> None:
    call = asyncio.create_task(bash("seq 1 2000; touch done; sleep 60"))
    await reached((tmp_path / "ws/done").exists, 30)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert len(list((tmp_path / "kept/files").iterdir())) == 1


async def test_a_full_disk_costs_the_artifact_and_not_the_result(bash: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(spools.os, "pwrite", full)
    result = await bash("seq 1 2000; echo end")
    assert result.success
    assert result.output.endswith("end\n")
    assert "artifact" not in result.metadata


SECRET = "QZ9%KW"


@pytest.mark.parametrize("written", ["%s\\n", "%s ", "Token:\\t%s\\r\\n"])
async def test_of_an_output_that_says_a_secret_very_often_the_ends_are_kept_without_any_part_of_it(
    bash: Run, artifacts: FolderArtifacts, written: str
) -> None:
    artifacts.max_bytes = 1 << 18
    count = 225_000 // len(SECRET)
    command = f"for i in $(seq {count}); do printf '{written}' \"$API_TOKEN\"; done"
    result = await bash(command, env={"API_TOKEN": SECRET})
    everything = await whole(artifacts, result)
    assert 225_000 < len(everything) <= 1 << 18
    assert "bytes left out: the limit for an artifact is 262,144" in everything
    assert not set("QZKW%") & set(everything + result.output + repr(result.metadata))
    assert everything.count("[redacted]") > 12_500


async def test_where_reading_goes_on_is_right_for_an_output_without_its_secrets(
    bash: Run, artifacts: FolderArtifacts
) -> None:
    result = await bash("for i in $(seq 500); do printf '%s,' \"$API_TOKEN\"; done", env={"API_TOKEN": SECRET})
    following, everything = result.metadata["next"], await whole(artifacts, result)
    head = result.output.partition("\n[...")[0]
    assert (everything, result.metadata["total_chars"]) == ("[redacted]," * 500, 5_500)
    assert (following["offset"], following["column"]) == (1, len(head))
    assert everything.startswith(head)


async def test_a_secret_that_is_a_part_of_what_stands_for_it_costs_no_artifact(
    bash: Run, artifacts: FolderArtifacts
) -> None:
    result = await bash('yes "$API_TOKEN" | head -c 225000', env={"API_TOKEN": "redacted"})
    assert (await whole(artifacts, result)).startswith("[[redacted]]\n")


async def test_who_follows_a_command_never_sees_half_of_a_secret(bash: Run) -> None:
    heard: list[str] = []
    token = SCOPE.set(CallScope(DirectReporter(lambda report: heard.append(report.text))))
    halves = 'printf %s "${API_TOKEN:0:3}"; sleep 0.2; printf %s "${API_TOKEN:3}"'
    try:
        await bash(f"head -c 9000 /dev/zero | tr '\\0' x; {halves}; echo; echo end", env={"API_TOKEN": SECRET})
    finally:
        SCOPE.reset(token)
    assert "".join(heard) == "x" * 9000 + "[redacted]\nend\n"
    assert "" not in heard


def test_a_short_text_opens_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forge_tools.sandbox.processes.output.Spool", None)
    kept = HeadTail(100, 1 << 20)
    for _ in range(100):
        kept.add("x")
    assert kept.whole is None


async def test_a_gigabyte_costs_little_memory(bash: Run, artifacts: FolderArtifacts) -> None:
    await bash("seq 1 300000")
    before = resident()
    result = await bash("yes 'a line of a command that does not stop by itself' | head -c 300000000; echo the end")
    assert result.metadata["total_chars"] == 300_000_000 + len("the end\n")
    assert (await whole(artifacts, result)).endswith("the end\n")
    assert resident() - before < 20 << 20


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
