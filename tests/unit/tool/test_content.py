"""The file of a part may change while it is kept: what is kept is what there was, or nothing."""

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from forge_tools.model import ExecutionContext, ToolResult
from forge_tools.model.artifacts import Artifact
from forge_tools.sandbox.artifacts import FolderArtifacts
from forge_tools.sandbox.reach import Reach
from forge_tools.tool.executor import ToolExecutor
from forge_tools.tool.registry import ScopedRegistry
from tests.part_tools import leading

DATA = bytes(range(256)) * 4_000


class Meanwhile(FolderArtifacts):
    """Artifacts that are kept just after somebody has changed a file."""

    def __init__(self, folder: Path, file: Path, size: int) -> None:
        super().__init__(folder)
        self._file, self._size = file, size

    async def put(self, chunks: AsyncIterator[bytes], context: ExecutionContext, **how: Any) -> Artifact:
        os.truncate(self._file, self._size)
        return await super().put(chunks, context, **how)


async def returned(tmp_path: Path, size: int) -> ToolResult:
    (tmp_path / "w").mkdir()
    (tmp_path / "w/data.bin").write_bytes(DATA)
    registry = ScopedRegistry()
    registry.register(leading)
    artifacts = Meanwhile(tmp_path / "kept", tmp_path / "w/data.bin", size)
    return await ToolExecutor(registry, reach=Reach(root=tmp_path / "w", artifacts=artifacts)).call(
        "leading", {"to": "data.bin"}
    )


@pytest.mark.parametrize("size", [0, 300_000, len(DATA) - 1])
async def test_a_file_that_shrinks_is_not_kept_and_its_failure_says_so(tmp_path: Path, size: int) -> None:
    result = await returned(tmp_path, size)

    assert (result.success, result.error_code, result.files) == (False, "UNSTORABLE", ())
    assert f"file data.bin: it was cut off at {size:,} bytes while it was being kept" in str(result.error)
    assert len(result.images) == 1


async def test_of_a_file_that_grows_is_kept_what_there_was(tmp_path: Path) -> None:
    result = await returned(tmp_path, 2 * len(DATA))

    assert (result.success, result.files[0].size) == (True, len(DATA))
    assert await result.files[0].bytes() == DATA
