"""The `spec` marker, and a clean process-wide registry for every test."""

from collections.abc import Iterator

import pytest

from forge_tools.base import ExecutionContext
from forge_tools.registry import ScopedRegistry, ToolRegistry


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
