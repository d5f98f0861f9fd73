"""Fixtures for unit tests: nothing here starts a server."""

import logging
from collections.abc import Iterator

import pytest

from forge_tools.tool.base import ExecutionContext
from forge_tools.tool.executor import ToolExecutor
from forge_tools.tool.registry import ScopedRegistry, ToolRegistry
from tests.spec.sample_tools import Bash, Broken, Echo, Meet, Read, Slow, Table


@pytest.fixture
def _empty_process_registry() -> Iterator[None]:
    ToolRegistry.reset()
    yield
    ToolRegistry.reset()


@pytest.fixture(autouse=True)
def _root_logger() -> Iterator[None]:
    """A command that a test runs in its process sets logging up anew, to a stream that ends with the test."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def own_logging(_root_logger: None) -> None:
    """For a test that sets logging up: the handlers there are pytest's, and are not to be closed."""
    logging.getLogger().handlers = []


@pytest.fixture
def context(tmp_path: object) -> ExecutionContext:
    return ExecutionContext(working_dir=str(tmp_path))


@pytest.fixture
def registry() -> ScopedRegistry:
    return ScopedRegistry()


@pytest.fixture
def executor(registry: ScopedRegistry) -> ToolExecutor:
    for tool in (Echo(), Read(), Bash(), Broken(), Slow(), Meet(), Table()):
        registry.register(tool)
    return ToolExecutor(registry)
