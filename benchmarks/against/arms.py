"""One arm: a tree with an interpreter that has its packages, its own servers, a worker and a client."""

import hashlib
import io
import os
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.fleets import OURS, TOOLS, WARMING_CALLS, Database
from benchmarks.peers import environments
from benchmarks.processes import ROOT, Client, Worker, cpu_of, cpu_seconds
from tests.services import PostgresServer, ValkeyServer

MEASURED = ("forge_tools", "workers", "migrations", "pyproject.toml", "constraints.txt")
"""What is taken of an old commit: what it has of `benchmarks` is not, so that clients and tools are the same files in every arm."""

PROGRAM = ("-P", "-m")


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """The processes that take part: `pids` are those of client, worker and database."""

    name: str
    client: Client
    pids: Sequence[int]
    python: str
    environment: Mapping[str, str]

    def cpu(self) -> float:
        """Return the seconds of processor time used so far."""
        return cpu_seconds(self.pids)

    def ask(self, what: str, **how: object) -> float:
        """Let its client do this, and return the figure it measured."""
        return float(self.client.ask(what, **how))

    def command(self, *words: str) -> float:
        """Run `forge-tools` until it exits; return the milliseconds of processor time it took."""
        return cpu_of([self.python, *PROGRAM, "forge_tools.cli", *words], self.environment)


def check_out(revision: str, tree: Path) -> None:
    """Check out what is measured of a commit.

    Raises:
        RuntimeError: there is no such commit.
    """
    done = subprocess.run(
        ["git", "archive", "--format=zip", revision, *MEASURED], cwd=ROOT, capture_output=True, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr.decode().strip())
    with zipfile.ZipFile(io.BytesIO(done.stdout)) as archive:
        archive.extractall(tree)


def interpreter(tree: Path) -> str:
    """Return a Python with the packages that this tree needs: this one, unless they differ from those of the working tree."""
    wanted, constraints = _wanted(tree)
    if (wanted, constraints) == _wanted(ROOT):
        return sys.executable
    versions = repr((wanted, constraints)).encode()
    name = f"commit-{hashlib.sha256(versions).hexdigest()[:12]}"
    environments.install_packages(name, ["-c", str(tree / "constraints.txt"), *wanted], versions)
    return environments.interpreter(name)


def _wanted(tree: Path) -> tuple[list[str], bytes]:
    project = tomllib.loads((tree / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["postgres"]]
    return wanted, (tree / "constraints.txt").read_bytes()


@contextmanager
def arm(name: str, tree: Path, python: str, database: Database, parent: Path) -> Iterator[Arm]:
    """Start everything. The audit chain is off: workers write it when they have time, which would be in others' turns.

    Raises:
        RuntimeError: another tree's `forge_tools` would be measured.
    """
    folder = parent / f"{database}-{name}"
    (folder / "home").mkdir(mode=0o711, parents=True)
    with ExitStack() as cleanup:
        broker = cleanup.enter_context(ValkeyServer(folder / "valkey"))
        url, servers = f"sqlite:///{folder / 'home' / 'forge.db'}", []
        if database == "postgres":
            postgres = cleanup.enter_context(PostgresServer(folder / "postgres", fsync=True))
            url, servers = postgres.create_database(), [postgres.process.pid]
        environment = _environment(tree, folder, broker.url, url)
        cpu_of([python, *PROGRAM, "forge_tools.cli", "db", "upgrade"], environment)
        words = ("--lane", "async", "--concurrency", "1000", *TOOLS)
        worker = Worker(
            "worker", [python, *OURS, *words], folder=folder, environment=environment, ready_words="Worker ready"
        )
        cleanup.callback(worker.stop)
        worker.wait_ready()
        client = Client(name, [python, *PROGRAM, "benchmarks.client"], folder=folder, environment=environment)
        cleanup.callback(client.stop)
        if not Path(source := client.ask("source")).is_relative_to(tree):
            raise RuntimeError(f"{name} would measure {source} instead of {tree}")
        client.ask("lone", calls=WARMING_CALLS)
        pids = [client.pid, worker.pid, *servers]
        yield Arm(name=name, client=client, pids=pids, python=python, environment=environment)


def _environment(tree: Path, folder: Path, broker: str, database: str) -> dict[str, str]:
    """Everything else has the tree's defaults, which may be what makes the difference."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("FORGE_") and name != "PYTHONDONTWRITEBYTECODE"
    }
    return kept | {
        "PYTHONPATH": os.pathsep.join((str(tree), str(ROOT))),
        "FORGE_HOME": str(folder / "home"),
        "FORGE_WORKSPACE": str(folder / "home"),
        "FORGE_BROKER_URL": broker,
        "FORGE_DATABASE_URL": database,
        "FORGE_AUDIT_INTERVAL": "0",
    }
