"""Fixtures for unit tests: nothing here starts a server."""

from collections.abc import Iterator

import pytest

from forge_tools.base import ExecutionContext
from forge_tools.registry import ScopedRegistry, ToolRegistry


@pytest.fixture
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
