"""Which workers host the tools of MCP servers."""

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from forge_tools.config import Settings
from forge_tools.errors import ConfigurationError
from forge_tools.sandbox.configured import reach_of
from tests.fleet import ROOT
from workers import program


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    raw = str(ROOT / "tests" / "mcp_servers" / "raw.py")
    servers = {"raw": {"command": sys.executable, "args": ["-P", raw, "plain"], "cwd": str(ROOT)}}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
    return Settings.load(
        home=tmp_path / "home", mcp_config=tmp_path / "mcp.json", broker_url="redis://b", database_url="postgresql://d"
    )


def hosted(settings: Settings, *words: str) -> list[str]:
    options = program.parser().parse_args(words)
    servers = program.hosted_servers(options, settings, reach_of(settings))
    if servers is None:
        return []
    try:
        return [
            tool.name for tool in program.offered(options, settings, servers.start()) if tool.name.startswith("mcp__")
        ]
    finally:
        servers.close()


@pytest.mark.parametrize("words", [(), ("--categories", "mcp"), ("--categories", "file,mcp"), ("--no-builtins",)])
def test_a_worker_of_the_async_lane_hosts_them(settings: Settings, words: tuple[str, ...]) -> None:
    assert len(hosted(settings, "--lane", "async", *words)) == 6


@pytest.mark.parametrize("words", [("--lane", "process"), ("--lane", "async", "--categories", "file")])
def test_others_start_no_server(settings: Settings, words: tuple[str, ...]) -> None:
    assert hosted(settings, *words) == []


def test_the_extra_is_named_where_it_is_missing(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        if name == program.HOSTING:
            raise ModuleNotFoundError("No module named 'mcp'", name="mcp")
        return import_module(name)

    monkeypatch.setattr(program, "import_module", missing)

    with pytest.raises(ConfigurationError, match=r"pip install 'forge-tools\[mcp\]'"):
        hosted(settings, "--lane", "async")
