"""Which workers host the tools of MCP servers."""

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import workers.__main__ as program
from forge_tools.base import BaseTool
from forge_tools.config import Settings
from forge_tools.errors import ConfigurationError
from tests.fleet import ROOT


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    raw = str(ROOT / "tests" / "mcp_servers" / "raw.py")
    servers = {"raw": {"command": sys.executable, "args": ["-P", raw, "plain"]}}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
    return Settings.load(
        home=tmp_path / "home", mcp_config=tmp_path / "mcp.json", broker_url="redis://b", database_url="postgresql://d"
    )


async def hosted(settings: Settings, *words: str) -> list[str]:
    tools: list[BaseTool] = program.offered(program.parser().parse_args(words), settings)
    names = [tool.name for tool in tools if tool.name.startswith("mcp__")]
    for tool in tools:
        await tool.shutdown()
    return names


@pytest.mark.parametrize("words", [(), ("--categories", "mcp"), ("--categories", "file,mcp"), ("--no-builtins",)])
async def test_a_worker_of_the_async_lane_hosts_them(settings: Settings, words: tuple[str, ...]) -> None:
    assert len(await hosted(settings, "--lane", "async", *words)) == 6


@pytest.mark.parametrize("words", [("--lane", "process"), ("--lane", "async", "--categories", "file")])
async def test_others_start_no_server(settings: Settings, words: tuple[str, ...]) -> None:
    assert await hosted(settings, *words) == []


async def test_the_extra_is_named_where_it_is_missing(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        if name == program.HOSTING:
            raise ModuleNotFoundError("No module named 'mcp'", name="mcp")
        return import_module(name)

    monkeypatch.setattr(program, "import_module", missing)

    with pytest.raises(ConfigurationError, match=r"pip install 'forge-tools\[mcp\]'"):
        await hosted(settings, "--lane", "async")
