"""The soak in small, and the proof that it would see a tool that breaks its promises."""

import tempfile
from pathlib import Path

import pytest

from forge_tools.model import ExecutionContext, ToolCategory, ToolParameter, ToolResult
from forge_tools.tool.base import BaseTool
from forge_tools.tool.executor import ToolExecutor
from forge_tools.tool.registry import ScopedRegistry
from forge_tools.tools import BUILTINS
from tests.shell_hosts import shell_host
from tests.soak import races
from tests.soak.footprint import Footprint, litter
from tests.soak.mixed import Stream, choices, mix
from tests.soak.races import fuzz
from tests.unit.tools.every_tool import executor


class Careless(BaseTool):
    """Read or write whatever a path leads to."""

    name = "Careless"
    category = ToolCategory.FILE
    lane = "async"
    parameters = (
        ToolParameter(name="path", type="string", description="Any."),
        ToolParameter(name="writes", type="boolean", description="Write instead.", required=False, default=False),
    )
    root = Path()

    async def _execute(self, context: ExecutionContext, path: str, writes: bool = False) -> ToolResult:
        if writes:
            (self.root / path).write_text("harm")
            return ToolResult.ok("written")
        return ToolResult.ok((self.root / path).read_text())


async def test_no_file_tool_is_led_outside(tmp_path: Path) -> None:
    found = await fuzz(executor(tmp_path / "ws"), tmp_path / "ws", calls=40, seconds=30, seed=1)
    assert found.broken == []
    assert len(found.calls) == len(races.CALLS)
    assert {"Read ok", "Glob ok"} <= found.endings.keys()


@pytest.mark.parametrize(
    ("arguments", "says"), [({}, "tells of what is outside"), ({"writes": True}, "the outside is not what it was")]
)
async def test_a_tool_that_trusts_paths_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, bool], says: str
) -> None:
    registry = ScopedRegistry()
    registry.register(tool := Careless())
    tool.root = tmp_path / "ws"
    monkeypatch.setattr(races, "CALLS", {"Careless": [{"path": "d/other"} | arguments]})
    found = await fuzz(ToolExecutor(registry), tmp_path / "ws", calls=20_000, seconds=3, seed=1)
    assert any(says in broken for broken in found.broken)


async def test_mixed_calls_leave_the_process_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    with shell_host(tmp_path / "shells") as shells:
        seen = await mix(tmp_path / "ws", shells, calls=24, seconds=60, seed=1)
    seen.p99 = []  # of so few calls
    assert (seen.broken(), seen.calls >= 24 * len(choices())) == ([], True)


async def test_every_tool_for_files_and_commands_is_called(tmp_path: Path) -> None:
    with shell_host(tmp_path / "shells") as shells:
        stream = Stream(tmp_path / "ws", shells, "s", seed=1)
        await stream.run(1, deadline=0)
    kinds = (ToolCategory.FILE, ToolCategory.EXECUTION)
    assert stream.calls.keys() >= {tool.name for tool in BUILTINS if tool.category in kinds}


def test_growth_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "x").touch()
    seen = Footprint(calls=9, memory=[1 << 20, 40 << 20], handles=[10, 30], processes=[1, 2], p99=[0.01, 0.05])
    seen.files = [0, litter(tmp_path / "nothing")]
    assert len(seen.broken()) == 5
