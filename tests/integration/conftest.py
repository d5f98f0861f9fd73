"""Fleets of real workers: one shared by a module's harmless tests, and a fresh one for tests that break things.

They have each kind of database in turn. Where a module's promises are the workers' or the client's alone, its `DATABASES`
names one kind: that every statement of the store means the same on both is what tests/contract is about.
"""

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from forge_tools.broker.celery_app import open_broker
from forge_tools.broker.message import Broker
from forge_tools.client import ExecutorClient, submissions
from forge_tools.client.connection import Connection
from forge_tools.client.results import Results
from forge_tools.model import ExecutionContext
from forge_tools.model.history import AttemptRecord
from tests.fleet import SAMPLE_TOOLS, Fleet


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Mark the tests of such a module as if each named that kind itself; those that name theirs keep it."""
    only = getattr(metafunc.module, "DATABASES", None)
    named = " ".join(str(mark.args[0]) for mark in metafunc.definition.iter_markers("parametrize"))
    for fixture, scope in (("fleet", "module"), ("database_url", "function")):
        if only and fixture in metafunc.fixturenames and fixture not in named:
            metafunc.definition.add_marker(pytest.mark.parametrize(fixture, only, indirect=True, scope=scope))


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def fleet(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, valkey_server: Any
) -> Iterator[Fleet]:
    """One worker a lane, on each database in turn, with the tools that the module's `FLEET_TOOLS` names."""
    folder = tmp_path_factory.mktemp("fleet")
    postgres = request.getfixturevalue("postgres") if request.param == "postgres" else None
    url = postgres.create_database() if postgres else f"sqlite:///{folder / 'forge.db'}"
    tools = getattr(request.module, "FLEET_TOOLS", SAMPLE_TOOLS)
    valkey_server.flush()
    fleet = Fleet(folder, valkey_server.url, url, kill_grace=1.0)
    fleet.start("async", concurrency=50, tools=tools)
    fleet.start("process", tools=tools)
    yield fleet
    fleet.stop()
    if postgres:
        postgres.drop_database(url)


@pytest.fixture
async def client(fleet: Fleet) -> AsyncIterator[ExecutorClient]:
    async with ExecutorClient(fleet.settings) as client:
        yield client


async def attempts_of(client: ExecutorClient, execution_id: str) -> list[AttemptRecord]:
    """The ended attempts of one execution, in order."""
    attempts = await client.history.attempts(limit=1000)
    return sorted((one for one in attempts if one.execution_id == execution_id), key=lambda one: one.attempt)


@dataclass
class Parts:
    """What the clients of a test are made of, in the order in which they are made."""

    brokers: list[Broker] = field(default_factory=list)
    results: list[Results] = field(default_factory=list)


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Parts:
    """Asked for before any client."""
    parts = Parts()

    def note_broker(url: str) -> Broker:
        parts.brokers.append(broker := open_broker(url))
        return broker

    def note_results(connection: Connection) -> Results:
        parts.results.append(results := Results(connection))
        return results

    monkeypatch.setattr(submissions, "open_broker", note_broker)
    monkeypatch.setattr(submissions, "Results", note_results)
    return parts


@pytest.fixture
def context(fleet: Fleet) -> ExecutionContext:
    return ExecutionContext(working_dir=str(fleet.folder), agent_id="agent-1", session_id="session-1")


@pytest.fixture
def fresh_fleet(tmp_path: Path, valkey: Any, database_url: str) -> Iterator[Fleet]:
    """No worker yet; the test starts, kills and freezes them as it likes."""
    fleet = Fleet(tmp_path, valkey.url, database_url, kill_grace=1.0)
    yield fleet
    fleet.stop()


class _Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"a page")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def page() -> Iterator[str]:
    """A web server on this machine, as `host:port`, at an address that no program takes for its own."""
    server = ThreadingHTTPServer(("127.0.0.2", 0), _Page)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.2:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
