"""Real worker processes for tests, started as operators start them and stopped by pid."""

import asyncio
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import ExitStack, closing
from pathlib import Path

import psutil

from forge_tools.config import Settings
from forge_tools.embedded.stack import ensure_key
from forge_tools.sandbox.walls.probe import given
from forge_tools.storage import open_store
from forge_tools.storage.connection.drivers import Address
from tests.migrated import migrated
from tests.waiting import wait_until
from tests.warm import Forked, WarmInterpreter, shared
from workers.forkserver import PRELOADED

ROOT = Path(__file__).resolve().parent.parent
SAMPLES = "tests.sample_tools"
SAMPLE_TOOLS = f"{SAMPLES}:TOOLS"
WORKER = (*PRELOADED, "asyncpg", "tomllib", "timeit", "tests.probed", SAMPLES, "forge_tools.client")
"""What every worker imports, and the tools of most; and what scripts of tests need besides."""


class WorkerProcess:
    """One `python -m workers` with its log."""

    def __init__(self, process: "subprocess.Popen[bytes] | Forked", log: Path) -> None:
        self.process = process
        self.log = log

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait_ready(self, timeout: float = 60) -> None:
        wait_until(
            lambda: b"Worker ready" in self.log.read_bytes() or self.process.poll() is not None,
            timeout,
            f"worker is not ready; its log: {self.log.read_text()}",
        )
        assert self.process.poll() is None, self.log.read_text()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self, timeout: float = 60) -> int:
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"worker did not stop within {timeout}s: {self.log.read_text()}") from None


class Fleet:
    """A migrated database, a broker, and the workers of one test."""

    def __init__(self, folder: Path, broker_url: str, database_url: str, **overrides: object) -> None:
        self.folder = folder
        self.settings = Settings.load(
            home=folder / "home", broker_url=broker_url, database_url=database_url, workspace=folder, **overrides
        )
        self.workers: list[WorkerProcess] = []
        migrated(database_url)
        ensure_key(self.settings)

    def start(
        self,
        lane: str,
        *,
        queues: str = "default,background",
        concurrency: int = 2,
        tools: str = SAMPLE_TOOLS,
        from_nothing: bool = False,
        **environment: str,
    ) -> WorkerProcess:
        """Start one worker with these tools and wait until it serves; keywords are FORGE_* settings.

        It is forked by an interpreter that has its imports, unless it is `from_nothing`: with the umask and the language of the test.
        """
        log = self.folder / f"worker-{len(self.workers)}.log"
        words = ["workers", "--lane", lane, "--queues", queues, "--concurrency", str(concurrency)]
        words += ["--tools", tools, "--categories", "file,execution,other"]
        start = self._start_from_nothing if from_nothing else self._fork
        worker = start(words, self.environment(**environment), log)
        self.workers.append(worker)
        worker.wait_ready()
        return worker

    def _fork(self, words: list[str], environment: dict[str, str], log: Path) -> WorkerProcess:
        with log.open("wb") as output:
            process = warm_worker().start(words, cwd=ROOT, env=environment, stdout=output, stderr=output)
        return WorkerProcess(process, log)

    def _start_from_nothing(self, words: list[str], environment: dict[str, str], log: Path) -> WorkerProcess:
        argv = [sys.executable, "-P", "-m", *words]
        with log.open("wb") as output:
            process = subprocess.Popen(argv, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT)
        return WorkerProcess(process, log)

    def environment(self, **overrides: str) -> dict[str, str]:
        settings = {
            "FORGE_HOME": str(self.settings.home),
            "FORGE_BROKER_URL": self.settings.broker_url,
            "FORGE_DATABASE_URL": self.settings.database_url,
            "FORGE_WORKSPACE": str(self.settings.workspace),
            "FORGE_KILL_GRACE": str(self.settings.kill_grace),
            "FORGE_DRAIN": "6",  # a test ends before the bodies that it leaves
        }
        if given().no_namespaces:
            # Or they would be left to other hosts.
            settings["FORGE_WALLS_OF"] = json.dumps(
                dict.fromkeys(("Bash", "category:mcp"), given().of_commands("namespace"))
            )
        return {**os.environ, **settings, **{f"FORGE_{k.upper()}": v for k, v in overrides.items()}}

    def freeze(self, worker: WorkerProcess) -> None:
        """Stop it between two of its transactions: nobody else could write to SQLite while one stands still."""
        address = Address.parse(self.settings.database)
        with ExitStack() as held:
            if address.dialect == "sqlite":
                own = held.enter_context(closing(sqlite3.connect(address.target, timeout=30, isolation_level=None)))
                own.execute("BEGIN IMMEDIATE")
            worker.signal(signal.SIGSTOP)
            wait_until(lambda: psutil.Process(worker.pid).status() == psutil.STATUS_STOPPED, 10, "it was not stopped")

    async def looked_again(self) -> None:
        """Wait until every worker has looked at the database anew, from beginning to end, as it does at each beat."""
        async with await open_store(self.settings.database) as store, asyncio.timeout(60):
            beats = {worker.id: worker.beat for worker in await store.workers.list(seen_within=15)}
            while any(
                worker.beat < beats.get(worker.id, worker.beat) + 2 and worker.stopped_at is None
                for worker in await store.workers.list(seen_within=15)
            ):
                await asyncio.sleep(0.05)

    def stop(self) -> None:
        for worker in self.workers:
            if worker.process.poll() is None:
                worker.process.terminate()
        for worker in self.workers:
            worker.stop()


def copy_packages(folder: Path) -> None:
    """Copy this tree's packages with what is compiled of them, which stays valid: a copy has the time of its original."""
    for package in ("forge_tools", "workers", "migrations"):
        being_written = shutil.ignore_patterns("*.pyc.*")
        shutil.copytree(ROOT / package, folder / package, ignore=being_written)


@shared
def warm_worker() -> WarmInterpreter:
    """What forks the workers and scripts of this test process, whose imports would cost more than most tests."""
    return WarmInterpreter(*WORKER)
