"""Fixtures for unit tests: nothing here starts a server."""

from collections.abc import Iterator

import pytest
from fakeredis import FakeAsyncRedis, FakeServer

from forge_tools import bell
from forge_tools.base import ExecutionContext
from forge_tools.dispatch import publishers
from forge_tools.executor import ToolExecutor
from forge_tools.registry import ScopedRegistry, ToolRegistry
from tests.spec.sample_tools import Bash, Broken, Echo, Meet, Read, Slow, Table


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


@pytest.fixture
def fake_broker(monkeypatch: pytest.MonkeyPatch) -> FakeServer:
    """A Redis in this process, which whatever is made with `redis_client` meets: for what only writes to it and hears from it."""
    server = FakeServer()
    for module in (bell, publishers):
        monkeypatch.setattr(module, "redis_client", lambda *_, **__: FakeAsyncRedis(server=server))
    return server


@pytest.fixture
def executor(registry: ScopedRegistry) -> ToolExecutor:
    for tool in (Echo(), Read(), Bash(), Broken(), Slow(), Meet(), Table()):
        registry.register(tool)
    return ToolExecutor(registry)
