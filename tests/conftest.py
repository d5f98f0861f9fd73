"""Fixtures that every test may use: real servers and fresh databases."""

import gc
import os
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TypeVar

import hypothesis
import pytest

from forge_tools.sandbox.walls.privileges import is_closed, open_up
from tests import compiled
from tests.limits import Limits
from tests.pooler import Pooler, is_wanted
from tests.processes import pytest_addoption, pytest_runtestloop
from tests.server_process import ServiceMissingError
from tests.services import GivenPostgres, GivenValkey, PostgresServer, Services, ValkeyServer
from tests.session_folder import MEMORY_FOLDER, RUN_FOLDER, roomy_memory
from tests.surroundings import settle
from tests.warm import make_shared

__all__ = ["pytest_addoption", "pytest_runtestloop"]  # pytest looks for them here

Server = TypeVar("Server")

NO_POOLER = "PgBouncer is no wheel that pip installs: install it and set FORGE_TEST_PGBOUNCER=1"

WAITING = ("chaos", "conformance", "integration", "e2e", "releases")
"""Folders whose files take long and mostly wait: for workers, leases and heartbeats."""

LONGEST = (
    "chaos/test_chaos.py",
    *("integration/test_recovery.py", "integration/test_adapters_on_workers.py", "spec/test_docs_run.py"),
    *("contract/test_audit.py", "integration/test_outages.py", "contract/test_retention.py"),
    *("integration/test_workspaces.py", "integration/test_benchmarks.py", "contract/test_handed_artifacts.py"),
    *("integration/test_artifacts.py", "contract/test_migrations_example.py", "e2e/test_demo.py"),
)
"""These begin first: none of them is alone at the end."""

OBJECTS = 10_000
"""How many more there are when the collector looks at them: every 700, as usual, took a twentieth of the time of tests."""


settle()
hypothesis.settings.register_profile("tests", deadline=None)  # an example may come late on a busy machine
hypothesis.settings.load_profile("tests")
compiled.share()
gc.disable()  # until all is collected: it would look at every module again and again


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "timeout(seconds): another limit for each phase of this test than that of all")
    config.pluginmanager.register(Limits())


@pytest.fixture(scope="session")
def services() -> Iterator[Services]:
    """The servers of this session; nothing starts until it is asked for."""
    given = os.environ.get(MEMORY_FOLDER)
    servers = Services(Path(given) if given else roomy_memory())
    yield servers
    servers.close()


@pytest.fixture
def disk_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder on a disk, which `tmp_path` hardly ever is."""
    folder = os.environ.get(RUN_FOLDER)
    return Path(tempfile.mkdtemp(dir=folder)) if folder else tmp_path_factory.mktemp("disk")


@pytest.fixture(scope="session")
def valkey_server(services: Services) -> ValkeyServer | GivenValkey:
    """The session's Valkey, for fixtures that outlive a test; whatever is in it stays."""
    return started(services.valkey)


@pytest.fixture
def valkey(valkey_server: ValkeyServer | GivenValkey) -> ValkeyServer | GivenValkey:
    """A Valkey that is empty; `.url` is as Celery takes it."""
    valkey_server.flush()
    return valkey_server


@pytest.fixture
def valkey_url(valkey: ValkeyServer | GivenValkey) -> str:
    return valkey.url


@pytest.fixture(scope="session")
def postgres(services: Services) -> PostgresServer | GivenPostgres:
    """The session's PostgreSQL; tests take `fresh_postgres` instead, unless they need the server itself."""
    return started(services.postgres)


@pytest.fixture(scope="session")
def pooler(postgres: PostgresServer | GivenPostgres, services: Services) -> Iterator[Pooler]:
    """The session's PgBouncer in transaction mode; tests ask for a database behind it."""
    if not is_wanted():
        pytest.skip(NO_POOLER)
    running = started(lambda: Pooler(services.folder("pooler"), postgres.url).start())
    yield running
    running.stop()


@pytest.fixture
def fresh_postgres(postgres: PostgresServer | GivenPostgres) -> Iterator[str]:
    """The URL of an empty PostgreSQL database of this test's own."""
    url = postgres.create_database()
    yield url
    postgres.drop_database(url)


@pytest.fixture
def postgres_url(fresh_postgres: str) -> str:
    return fresh_postgres


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """The URL of a SQLite database that is not there yet."""
    return f"sqlite:///{tmp_path / 'forge.db'}"


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest) -> str:
    """A fresh, empty database of each kind in turn."""
    return str(request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "fresh_postgres"))


def started(start: Callable[[], Server]) -> Server:
    """Start a server; where it is missing, the run fails with the sentence that says so."""
    try:
        return start()
    except ServiceMissingError as error:
        sentence = str(error)
    pytest.fail(sentence, pytrace=False)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mix files that wait with files that compute, and be through with the long ones early: both cores are busy to the end."""
    tests = Path(__file__).parent
    folders = {item.path: item.path.relative_to(tests).parts[0] for item in items}
    waiting = [file for file in folders if folders[file] in WAITING]
    others = [file for file in folders if folders[file] not in WAITING]
    places = {file: 0.7 * place / len(waiting) for place, file in enumerate(waiting)}
    places |= {file: place / len(others) for place, file in enumerate(others)}
    places |= {tests / name: place - len(LONGEST) for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places[item.path])


def pytest_collection_finish() -> None:
    """Spare the collector thousands of tests and their modules: every collection in a test would look at them all.

    And begin what all test processes share.
    """
    gc.freeze()
    gc.set_threshold(OBJECTS)
    gc.enable()
    make_shared()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Keep what a file of tests leaves behind from later ones.

    A process that a test hardened would try walls from behind one. What pytest keeps of each test is not garbage, and
    every later collection would look at all of it: after a few hundred files that took as long as a short test does.
    """
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()
    if is_closed():
        open_up()
        pytest.fail("this test closed the test process to others of its user: do that in a child")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let reports travel between test processes: a log that quotes half a surrogate pair is no UTF-8."""
    report = yield
    report.sections = [(name, text.encode(errors="replace").decode()) for name, text in report.sections]
    return report
