"""Read and Grep on artifacts: as on files, and on nobody else's."""

import os
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from forge_tools.model import ExecutionContext, ToolResult
from forge_tools.sandbox.artifacts import FolderArtifacts
from forge_tools.sandbox.reach import Reach
from forge_tools.tool.executor import ToolExecutor
from forge_tools.tool.registry import ScopedRegistry
from forge_tools.tools import BUILTINS
from tests.descriptors import descriptors
from tests.waiting import within

Call = Callable[..., Awaitable[ToolResult]]

LINES = [f"{number:05} {'needle' if number % 1000 == 7 else 'hay'} é" for number in range(1, 20_001)]
TEXT = "\n".join(LINES)
UNKNOWN = f"artifact://{'0' * 32}"


async def pieces(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), 70_000):
        yield data[start : start + 70_000]


@pytest.fixture
def artifacts(tmp_path: Path) -> FolderArtifacts:
    return FolderArtifacts(tmp_path / "kept")


@pytest.fixture
def call(tmp_path: Path, artifacts: FolderArtifacts) -> Call:
    (tmp_path / "ws").mkdir()
    registry = ScopedRegistry()
    registry.register_many([tool() for tool in BUILTINS])
    executor = ToolExecutor(registry, reach=Reach(root=tmp_path / "ws", artifacts=artifacts))

    async def run(tool: str, *, session: str | None = "s", **arguments: Any) -> ToolResult:
        return await executor.execute(tool, ExecutionContext(working_dir=".", session_id=session), **arguments)

    return run


@pytest.fixture
async def handle(artifacts: FolderArtifacts) -> str:
    kept = await artifacts.put(pieces(TEXT.encode()), ExecutionContext(working_dir=".", session_id="s"))
    return kept.handle


async def test_pages_of_an_artifact_are_all_of_it(call: Call, handle: str) -> None:
    seen: list[str] = []
    following: dict[str, int] | None = {"offset": 1}
    time_left = within(60, "the pages do not end")
    while following and next(time_left):
        page = await call("Read", file_path=handle, line_numbers=False, limit=3000, **following)
        assert page.success, page.error
        seen.append(page.output)
        following = page.metadata.get("next")
    assert "\n".join(seen) == TEXT
    assert len(seen) == 7


async def test_an_artifact_reads_like_the_file_with_its_bytes(call: Call, handle: str, tmp_path: Path) -> None:
    (tmp_path / "ws/file").write_text(TEXT)
    for options in ({"offset": 19_999}, {"tail": 3}, {"column": 6, "limit": 1}, {"encoding": "latin-1", "limit": 2}):
        kept, file = [await call("Read", file_path=path, **options) for path in (handle, "file")]
        assert kept.output == file.output
        assert (kept.metadata.pop("files_accessed"), file.metadata.pop("files_accessed")) == ([handle], ["file"])
        assert {**kept.metadata, "mtime": 0} == {**file.metadata, "mtime": 0}
    past = await call("Read", file_path=handle, offset=30_000)
    assert past.error == f"offset 30000 is past the end of {handle} (20,000 lines)"


@pytest.mark.parametrize(
    "options",
    [
        {"output_mode": "content"},
        {"output_mode": "content", "before": 1, "head_limit": 4, "offset": 2},
        {"output_mode": "count"},
        {"output_mode": "files_with_matches"},
        {"ignore_case": True, "pattern": "NEEDLE é$", "output_mode": "content"},
        {"pattern": "not there"},
    ],
)
async def test_a_search_of_an_artifact_finds_what_one_of_the_file_does(
    call: Call, handle: str, tmp_path: Path, options: dict[str, Any]
) -> None:
    (tmp_path / "ws/file").write_text(TEXT)
    asked = {"pattern": "needle", **options}
    kept, file = [await call("Grep", path=path, **asked) for path in (handle, "file")]
    assert kept.success, kept.error
    shown = str(kept.output).replace(f"{handle}:", "file:").replace(f"{handle}-", "file-").replace(handle, "file")
    assert shown == file.output
    assert kept.metadata.get("matches") == file.metadata.get("matches")


async def test_a_long_output_is_found_again_by_what_its_marker_says(call: Call) -> None:
    long = await call("Bash", command="seq 1 100000")
    handle = long.metadata["artifact"]
    assert handle in long.output
    following = dict(long.metadata["next"])
    assert following.pop("tool") == "Read"
    page = await call("Read", **following, limit=1, line_numbers=False)
    shown = long.output.partition("[...")[0].split()
    assert page.output.split("\n")[0] == str(int(shown[-1]) + 1)
    hit = await call("Grep", path=handle, pattern="^77777$", output_mode="content")
    assert hit.output == f"{handle}:77777:77777"


@pytest.mark.parametrize("tool", ["Read", "Grep"])
async def test_another_session_is_told_the_same_as_of_what_is_not_there(call: Call, handle: str, tool: str) -> None:
    name, more = ("file_path", {}) if tool == "Read" else ("path", {"pattern": "x"})
    for session in ("t", None, ""):
        other = await call(tool, session=session, **{name: handle}, **more)
        missing = await call(tool, session=session, **{name: UNKNOWN}, **more)
        assert other.error_code == missing.error_code == "ARTIFACT_NOT_FOUND"
        assert (other.error or "").replace(handle, UNKNOWN) == missing.error


@pytest.mark.parametrize(
    "path", ["artifact://", "artifact://x", f"{UNKNOWN}0", f"{UNKNOWN}/../../etc/passwd", f"artifact://{'A' * 32}"]
)
async def test_what_is_not_a_handle_names_no_artifact(call: Call, path: str) -> None:
    result = await call("Read", file_path=path)
    assert result.error_code == "ARTIFACT_NOT_FOUND"
    assert path[:60] in (result.error or "")


async def test_what_has_expired_is_unknown(call: Call, handle: str, tmp_path: Path) -> None:
    for path in (tmp_path / "kept").rglob("*"):
        os.utime(path, (0, 0))
    assert (await call("Read", file_path=handle)).error_code == "ARTIFACT_NOT_FOUND"


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("Write", {"file_path": UNKNOWN, "content": "x"}),
        ("Edit", {"file_path": UNKNOWN, "old_string": "a", "new_string": "b"}),
        ("Delete", {"file_path": UNKNOWN}),
        ("ListDirectory", {"path": UNKNOWN}),
        ("Glob", {"pattern": "*", "path": UNKNOWN}),
        ("Bash", {"command": "pwd", "cwd": UNKNOWN}),
    ],
)
async def test_other_tools_refuse_artifacts(call: Call, tool: str, arguments: dict[str, str], tmp_path: Path) -> None:
    result = await call(tool, **arguments)
    assert (result.success, result.error_code) == (False, "VALIDATION_ERROR")
    assert "which only Read and Grep accept" in (result.error or "")
    assert list((tmp_path / "ws").iterdir()) == []


async def test_without_artifacts_on_a_host_there_is_a_clear_error(tmp_path: Path) -> None:
    registry = ScopedRegistry()
    registry.register_many([tool() for tool in BUILTINS])
    executor = ToolExecutor(registry, reach=Reach(root=tmp_path))
    result = await executor.execute("Read", ExecutionContext(working_dir="."), file_path=UNKNOWN)
    assert "this host does not keep artifacts" in (result.error or "")


async def test_reading_leaves_no_file_open(
    call: Call, handle: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    unpacked = tmp_path_factory.mktemp("unpacked")
    monkeypatch.setattr(tempfile, "tempdir", str(unpacked))
    asked: list[tuple[str, dict[str, str]]] = [
        ("Read", {"file_path": handle}),
        ("Grep", {"path": handle, "pattern": "x"}),
        ("Grep", {"path": handle, "pattern": "("}),
        ("Read", {"file_path": handle, "encoding": "none"}),
    ]
    await call("Read", file_path=handle)
    before = descriptors(unpacked)  # with the one that is kept for the next page
    for tool, arguments in asked:
        await call(tool, **arguments)
    assert len(before) == 1
    assert descriptors(unpacked) == before
