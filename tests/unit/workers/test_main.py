"""The worker's command line: what it offers, what it refuses, and with which exit code."""

import argparse
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from forge_tools.config import Settings
from forge_tools.model import ToolCategory
from tests.sample_tools import TOOLS
from workers.program import main, offered, parser

SAMPLES = ["--tools", "tests.sample_tools:TOOLS"]


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`main` configures this process; let it configure copies."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr("workers.program.set_up", lambda *_: None)
    monkeypatch.setattr("workers.program.capture", lambda: None)
    monkeypatch.setattr("workers.program.capture_logs", lambda: None)
    monkeypatch.setattr("workers.program.harden", lambda: None)
    monkeypatch.setattr("workers.app.signal.signal", lambda number, handler: None)
    monkeypatch.setenv("FORGE_INSTANCE", "")
    monkeypatch.setattr("workers.program.drain", lambda engine: engine.stop(drain=0))
    loggers = [logging.getLogger(name) for name in ("forge_tools.tools", "celery", "celery.worker.request")]
    levels = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FORGE_HOME", str(tmp_path))


def names(settings: Settings, *arguments: str) -> set[str]:
    options = parser().parse_args(["--lane", "async", *arguments])
    return {tool.name for tool in offered(options, settings)}


def test_the_embedded_stack_trusts_its_user_with_every_tool() -> None:
    assert names(Settings.load(), *SAMPLES) >= {tool.name for tool in TOOLS}


def test_elsewhere_running_commands_must_be_asked_for() -> None:
    settings = Settings.load(broker_url="redis://broker", database_url="postgresql://db/forge")
    everything, plain = names(settings, "--categories", "execution,file"), names(settings)

    assert not [name for name in plain if name == "Bash"]
    assert plain <= everything | {name for name in plain if name not in everything}


def test_named_tools_are_offered_whatever_the_categories_say() -> None:
    assert names(Settings.load(), "--categories", "web", "--no-builtins", *SAMPLES) == {tool.name for tool in TOOLS}


def test_queues_and_categories_are_read_from_lists() -> None:
    options = parser().parse_args(["--lane", "process", "--queues", "a, b,", "--categories", "file,web"])

    assert options.queues == ("a", "b")
    assert options.categories == [ToolCategory.FILE, ToolCategory.WEB]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "required: --lane"),
        (["--lane", "gpu"], "invalid choice: 'gpu'"),
        (["--lane", "async", "--queues", ","], "name at least one queue"),
        (["--lane", "async", "--queues", "default,a b"], "Queue 'a b' is not a valid name; use up to 205 letters"),
        (["--lane", "async", "--categories", "x"], "there are file, execution,"),
        (["--lane", "async", "--categories", ","], "name at least one category"),
        (["--lane", "async", "--concurrency", "0"], "'0' is not a whole number from 1 to 9,999"),
        (["--lane", "async", "--concurrency=-5"], "'-5' is not a whole number from 1 to 9,999"),
    ],
)
def test_a_command_line_that_means_nothing_is_refused_with_its_usage(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)

    assert caught.value.code == 2
    printed = capsys.readouterr().err
    assert "Usage: forge-tools worker" in printed
    assert said in printed


def test_an_unknown_category_is_refused_with_the_known_ones() -> None:
    with pytest.raises(argparse.ArgumentError, match="there are file, execution"):
        argparse.ArgumentParser.parse_args(_strict(), ["--lane", "async", "--categories", "nonsense"])


def _strict() -> argparse.ArgumentParser:
    strict = parser()
    strict.exit_on_error = False
    return strict


@pytest.mark.parametrize(
    ("variable", "value", "code"),
    [
        ("FORGE_LEASE", "1", os.EX_CONFIG),
        ("FORGE_BROKER_URL", "redis://host:port", os.EX_CONFIG),
        ("FORGE_DATABASE_URL", "postgresql://127.0.0.1:1/forge", os.EX_UNAVAILABLE),
    ],
)
def test_what_keeps_a_worker_from_starting_is_said_with_its_exit_code(
    variable: str,
    value: str,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(variable, value)
    monkeypatch.setattr("workers.engine.DATABASE_SECONDS", 0.5)

    assert main(["--lane", "async", "--no-builtins"]) == code
    assert [record.levelname for record in caplog.records][-1] == "ERROR"


@pytest.mark.usefixtures("home")
def test_a_tool_module_that_is_not_there_is_a_matter_of_configuration(caplog: pytest.LogCaptureFixture) -> None:
    assert main(["--lane", "async", "--tools", "no.such.module:TOOLS"]) == os.EX_CONFIG
    assert "no.such.module" in caplog.text


@pytest.mark.usefixtures("home")
def test_a_setting_that_a_tool_misses_is_named_before_anything_starts(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    (tmp_path / "tools_of_a_forecast.py").write_text(
        "from typing import Annotated\n\nfrom pydantic import SecretStr\n\nfrom forge_tools.tool import Setting, tool\n\n\n"
        "@tool\ndef ask(url: Annotated[str, Setting('WEATHER_URL')], key: Annotated[SecretStr, Setting('WEATHER')]) -> str:\n"
        "    'Ask.'\n    return url\n"
    )

    assert (
        main(["--lane", "process", "--no-builtins", "--tools", str(tmp_path / "tools_of_a_forecast.py")])
        == os.EX_CONFIG
    )
    assert "Tool ask cannot be offered: WEATHER_URL is not set. Set it in the environment" in caplog.text
    assert "The worker has no FORGE_SECRET_WEATHER in its environment" in caplog.text
