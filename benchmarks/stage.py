"""The servers and workers of a run: one Valkey, two databases, and a worker of each kind that is needed."""

import os
import sys
from collections.abc import Iterator, Set
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from benchmarks import raw_celery
from benchmarks.processes import Worker
from benchmarks.scene import DATABASES, Database, Needs, Scene, Sizes
from forge_tools.config import Settings
from forge_tools.storage import migrate
from tests.services import PostgresServer, SessionFolder, ValkeyServer

CONCURRENCY = {"async": 1000, "process": raw_celery.CONCURRENCY}


@contextmanager
def stage(sizes: Sizes, needs: Set[Needs]) -> Iterator[Scene]:
    """Start what is needed; all of it stays up together for the whole run, and is gone after it."""
    with ExitStack() as cleanup:
        folder = SessionFolder()
        cleanup.callback(folder.remove)
        scene = Scene(sizes=sizes, folder=folder.path, broker="", settings={}, workers={}, servers={})
        if needs:
            scene = _with_servers(scene, cleanup)
            workers = {key: worker for need in sorted(needs) for key, worker in _start(scene, need, cleanup)}
            scene = replace(scene, workers={key: worker.pid for key, worker in workers.items()})
        yield scene


def _with_servers(scene: Scene, cleanup: ExitStack) -> Scene:
    valkey = cleanup.enter_context(ValkeyServer(scene.folder / "valkey"))
    postgres = cleanup.enter_context(PostgresServer(scene.folder / "postgres", fsync=True))
    urls: dict[Database, str] = {
        "sqlite": f"sqlite:///{scene.folder / 'forge.db'}",
        "postgres": postgres.create_database(),
    }
    for url in urls.values():
        migrate.upgrade(url)
    return replace(
        scene,
        broker=valkey.url,
        settings={database: _settings(scene.folder, valkey.url, database, urls[database]) for database in DATABASES},
        servers={
            "raw": (valkey.process.pid,),
            "sqlite": (valkey.process.pid,),
            "postgres": (valkey.process.pid, postgres.process.pid),
        },
    )


def _settings(folder: Path, broker: str, database: Database, url: str) -> Settings:
    """Each database has a queue of its name, so that both can share one broker."""
    home = folder / f"home-{database}"
    home.mkdir()
    return Settings.load(home=home, workspace=home, broker_url=broker, database_url=url, routes={"other": database})


def _start(scene: Scene, need: Needs, cleanup: ExitStack) -> Iterator[tuple[tuple[str, Needs], Worker]]:
    if need == "raw":
        worker = _raw_worker(scene)
        cleanup.callback(worker.stop)
        yield ("raw", need), worker
        return
    for database in DATABASES:
        worker = scene.start_worker(
            f"{database}-{need}",
            database,
            *("--lane", need, "--queues", database, "--concurrency", str(CONCURRENCY[need])),
            *("--no-builtins", "--tools", "benchmarks.tools:TOOLS"),
        )
        cleanup.callback(worker.stop)
        yield (database, need), worker


def _raw_worker(scene: Scene) -> Worker:
    worker = Worker(
        "raw",
        [
            *(sys.executable, "-m", "celery", "--app", "benchmarks.raw_celery", "worker"),
            *("--pool", "prefork", "--concurrency", str(raw_celery.CONCURRENCY), "--loglevel", "INFO"),
        ],
        folder=scene.folder,
        environment={**os.environ, raw_celery.URL: scene.broker},
    )
    worker.wait_ready(" ready.")
    return worker
