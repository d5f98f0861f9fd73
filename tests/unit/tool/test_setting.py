"""Settings that a host gives a tool by name: typed, known at the start, and hidden if secret."""

from pathlib import Path
from typing import Annotated

import pytest
from pydantic import SecretStr

from forge_tools.errors import ConfigurationError
from forge_tools.secrets.detection import SecretSource
from forge_tools.testing import InlineExecutor
from forge_tools.tool import Depends, Setting, load_settings, tool
from forge_tools.tool.base import BaseTool, ExecutionContext, ToolCategory, ToolResult
from forge_tools.tool.executor import ToolExecutor
from forge_tools.tool.registry import ScopedRegistry

KEY = Annotated[SecretStr, Setting("WEATHER")]


def connect(url: Annotated[str, Setting("WEATHER_URL")], key: KEY) -> str:
    return f"{url}?key={key.get_secret_value()}"


@tool
def ask(
    city: str,
    service: Annotated[str, Depends(connect)],
    limit: Annotated[int, Setting("WEATHER_LIMIT", 3)],
    names: Annotated[list[str], Setting("WEATHER_NAMES", [])],
) -> str:
    """Ask for the weather."""
    print("asking", service)
    if city == "nowhere":
        raise ValueError(service)
    return f"{service}&q={city} {limit + 1} {names}"


class Ask(BaseTool):
    """Ask for the weather."""

    name = "Ask"
    category = ToolCategory.OTHER
    parameters = ()

    async def _execute(self, context: ExecutionContext, key: KEY) -> ToolResult:
        context.emit(f"with {key.get_secret_value()}")
        return ToolResult.ok(key.get_secret_value())


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("WEATHER_URL", "https://weather"),
        ("FORGE_SECRET_WEATHER", "hunter22-hunter33"),
        ("WEATHER_LIMIT", "7"),
        ("WEATHER_NAMES", '["a", "b"]'),
    ):
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("told")
def test_a_tool_is_told_typed_values_and_what_is_secret_is_in_nothing_that_it_says() -> None:
    with InlineExecutor(ask, Ask) as tools:
        assert tools.run("ask", city="Rome").output == "https://weather?key=[redacted]&q=Rome 8 ['a', 'b']"
        failed = tools.run("ask", city="nowhere")
        assert tools.run("Ask").output == "[redacted]"

        assert failed.error == "Unexpected error: ValueError: https://weather?key=[redacted]"
        assert failed.diagnosis is not None
        assert "hunter22" not in str(failed.diagnosis)
        assert "hunter22" not in repr(tools.reports)
    assert [parameter.name for parameter in ask.parameters] == ["city"]


def test_what_is_missing_or_does_not_fit_is_named_at_the_start_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEATHER_LIMIT", "many")

    with pytest.raises(ConfigurationError) as caught:
        load_settings([ask, Ask()], SecretSource({}))

    said = str(caught.value)
    assert "Tool ask cannot be offered: WEATHER_URL is not set. Set it in the environment of every worker" in said
    assert "Tool ask cannot be offered: WEATHER_LIMIT is not valid: Input should be a valid integer" in said
    assert said.count("The worker has no FORGE_SECRET_WEATHER in its environment") == 2
    with InlineExecutor(ask) as tools:
        assert "WEATHER_URL is not set" in (tools.run("ask", city="Rome").error or "")


@pytest.mark.usefixtures("told")
async def test_what_was_read_at_the_start_counts_and_a_file_comes_before_a_variable(
    tmp_path: Path, context: ExecutionContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "WEATHER").write_text("of-the-file-1\n")
    overrides = load_settings([ask, Ask()], SecretSource({"WEATHER": "of-the-variable"}, tmp_path))
    for name in ("FORGE_SECRET_WEATHER", "WEATHER_URL"):
        monkeypatch.delenv(name)
    registry, made = ScopedRegistry(), [make() for make in overrides.values()]
    registry.register(ask)

    result = await ToolExecutor(registry, overrides=overrides).execute("ask", context, city="Rome")

    assert result.output == "https://weather?key=[redacted]&q=Rome 8 ['a', 'b']"
    assert SecretStr("of-the-file-1") in made
