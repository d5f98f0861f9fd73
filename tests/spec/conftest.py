"""The `spec` marker, and a clean process-wide registry for every test."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from forge_tools.base import ExecutionContext
from forge_tools.cli.services import with_store
from forge_tools.config import Settings
from forge_tools.model import new_id
from forge_tools.registry import ScopedRegistry, ToolRegistry
from tests.fleet import Fleet
from tests.migrated import migrated
from tests.versioned_tools import FIRST, SECOND


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "spec(*numbers): the requirements of docs/requirements.md that a test holds")


@pytest.fixture(autouse=True)
def _empty_process_registry() -> Iterator[None]:
    ToolRegistry.reset()
    yield
    ToolRegistry.reset()


@pytest.fixture
def context(tmp_path: object) -> ExecutionContext:
    return ExecutionContext(working_dir=str(tmp_path))


@pytest.fixture
def registry() -> ScopedRegistry:
    return ScopedRegistry()


@pytest.fixture
def versions(tmp_path: Path) -> Mapping[str, str]:
    """Where to find a catalogue in which a tool was published in two versions, as by two workers."""
    url = f"sqlite:///{tmp_path / 'versions.db'}"
    migrated(url)
    for deployed in (FIRST, SECOND):
        with_store(
            lambda store, deployed=deployed: store.catalogue.publish([tool().spec for tool in deployed], new_id()),
            Settings.load(database_url=url),
        )
    return {"FORGE_DATABASE_URL": url}


@pytest.fixture
def stack(tmp_path: Path, valkey: Any) -> Iterator[Mapping[str, str]]:
    """Where to find a broker, a database and a worker of the async lane with the built-in tools."""
    (tmp_path / "stack").mkdir()
    fleet = Fleet(tmp_path / "stack", valkey.url, f"sqlite:///{tmp_path / 'stack' / 'forge.db'}")
    fleet.start("async")
    yield {name: value for name, value in fleet.environment().items() if name.startswith("FORGE_")}
    fleet.stop()
