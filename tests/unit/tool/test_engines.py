"""A tool may need the engine of its host: it gets it there, and reports its absence elsewhere."""

import argparse
from pathlib import Path
from typing import Any

import pytest

from forge_tools.config import Settings
from forge_tools.errors import ConfigurationError, ErrorCode
from forge_tools.model import ExecutionContext
from forge_tools.testing import InlineExecutor
from forge_tools.tool import engine, load_engine
from tests.engine_tools import make, with_engine, with_or_without
from workers.program import offered, parser

MAKE = "tests.engine_tools:make"


def test_a_call_that_needs_an_engine_fails_where_there_is_none_also_in_a_dry_run() -> None:
    with InlineExecutor(with_engine, with_or_without) as tools:
        refused = tools.run("with_engine")
        assert refused.error_code == ErrorCode.ENGINE_NOT_AVAILABLE
        assert "with_engine needs an engine, but this host has none. Set FORGE_ENGINE=" in (refused.error or "")
        assert tools.run("with_or_without").output == "none"
    with InlineExecutor(with_engine, context={"dry_run": True}) as tools:
        assert tools.run("with_engine").error_code == ErrorCode.ENGINE_NOT_AVAILABLE


def test_where_there_is_one_tools_get_it() -> None:
    with InlineExecutor(with_engine, with_or_without, overrides={engine: make}) as tools:
        assert [tools.run(name).output for name in ("with_engine", "with_or_without")] == ["an engine"] * 2


async def test_outside_of_an_executor_there_is_none() -> None:
    result = await with_engine.execute(ExecutionContext(working_dir="."))
    assert result.error_code == ErrorCode.ENGINE_NOT_AVAILABLE


def test_a_host_names_what_makes_its_engine() -> None:
    assert load_engine(Settings.load()) == {}
    assert load_engine(Settings.load(engine=MAKE)) == {engine: make}


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("tests.engine_tools", "'tests.engine_tools' must be module:function"),
        ("tests.engine_tools:mak", "has no 'mak'"),
        ("tests.engine_tools:TOOLS", "is not a function"),
        ("no_such_module:make", "there is no module 'no_such_module'"),
    ],
)
def test_a_reference_to_no_function_is_refused(reference: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        load_engine(Settings.load(engine=reference))


@pytest.mark.parametrize("settings", [{}, {"engine": MAKE}])
def test_a_worker_offers_what_needs_an_engine_only_where_there_is_one(
    settings: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options: argparse.Namespace = parser().parse_args(
        ["--lane", "async", "--no-builtins", "--tools", "tests.engine_tools:TOOLS"]
    )
    names = {tool.spec.name for tool in offered(options, Settings.load(home=tmp_path, **settings))}

    assert "with_or_without" in names
    assert ("with_engine" in names) is bool(settings)
    assert ("set FORGE_ENGINE=module:function" in caplog.text) is not bool(settings)
