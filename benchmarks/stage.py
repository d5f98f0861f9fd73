"""The servers of a run, and the workers that the current measure needs; no others run beside it."""

import secrets
import time
from collections.abc import Iterator, Set
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import get_args
from urllib.parse import urlsplit, urlunsplit

from benchmarks import fleets
from benchmarks.counters import count_statements
from benchmarks.fleets import DATABASES, Database, Fleet
from benchmarks.long_history import KeptPostgres, LongHistory, Tell, fit, history_url, load
from benchmarks.processes import Worker
from benchmarks.scene import Needs, Scene, Sizes, own_settings
from forge_tools.storage import migrate
from tests import services
from tests.services import PostgresServer, ValkeyServer
from tests.session_folder import SessionFolder


class Stage:
    """Servers start when first needed and stay; fleets end as soon as a measure does not need them."""

    def __init__(self, sizes: Sizes, cleanup: ExitStack, kept: Path | None, tell: Tell) -> None:
        self._cleanup = cleanup
        self._kept = kept
        self._tell = tell
        folder = SessionFolder()
        cleanup.callback(folder.remove)
        self._scene = Scene(sizes=sizes, folder=folder.path, settings={}, results={}, workers={}, absent={})
        self._fleets: dict[Fleet, list[Worker]] = {}

    def set_for(self, needs: Set[Needs]) -> Scene:
        """Bring up exactly these; a fleet that does not start is absent, and says why."""
        if needs and not self._scene.broker:
            self._scene = _with_servers(self._scene, self._cleanup, self._kept)
        if "history" in needs and self._scene.long is None:
            self._scene = _with_history(self._scene, self._kept, self._tell)
        wanted = {need for need in get_args(Fleet) if need in needs}
        self._stop(set(self._fleets) - wanted)
        absent = self._start(wanted - set(self._fleets))
        pids = {fleet: tuple(worker.pid for worker in crew) for fleet, crew in self._fleets.items()}
        return replace(self._scene, workers=pids, absent=absent)

    def _start(self, wanted: Set[Fleet]) -> dict[Fleet, str]:
        absent: dict[Fleet, str] = {}
        self._fleets |= {fleet: list(fleets.start(self._scene, fleet)) for fleet in sorted(wanted)}
        for fleet in wanted:
            try:
                for worker in self._fleets[fleet]:
                    worker.wait_ready()
            except RuntimeError as error:
                absent[fleet] = str(error)
        self._stop(set(absent))
        return absent

    def _stop(self, unwanted: Set[Fleet]) -> None:
        going = [worker for fleet in unwanted for worker in self._fleets.pop(fleet)]
        for worker in going:
            worker.ask_to_stop()
        for worker in going:
            worker.stop()


@contextmanager
def stage(sizes: Sizes, tell: Tell = lambda _: None, kept: Path | None = None) -> Iterator[Stage]:
    """An empty stage; whatever was brought up on it is gone after it, but for a history in the folder `kept`."""
    with ExitStack() as cleanup:
        bare = Stage(sizes, cleanup, kept, tell)
        try:
            yield bare
        finally:
            bare.set_for(set())


def _with_servers(scene: Scene, cleanup: ExitStack, kept: Path | None) -> Scene:
    valkey = cleanup.enter_context(ValkeyServer(scene.folder / "valkey"))
    if kept is None:
        postgres = cleanup.enter_context(PostgresServer(scene.folder / "postgres", fsync=True))
        _count_statements(postgres)
    else:
        postgres = cleanup.enter_context(KeptPostgres(kept / "postgres"))
    urls: dict[Database, str] = {
        "sqlite": f"sqlite:///{scene.folder / 'forge.db'}",
        "postgres": postgres.create_database(),
    }
    for url in urls.values():
        migrate.upgrade(url)
    return replace(
        scene,
        broker=valkey.url,
        broker_pid=valkey.process.pid,
        database_pid=postgres.process.pid,
        administration=postgres.url,
        settings={name: own_settings(scene.folder / f"home-{name}", valkey.url, urls[name]) for name in DATABASES},
        results={"raw": valkey.url, "raw-sql": _for_celery(postgres.create_database())},
    )


def _with_history(scene: Scene, kept: Path | None, tell: Tell) -> Scene:
    if kept is None:
        folder, sizes = scene.folder, scene.sizes
        long = LongHistory(sizes.history, sizes.small_history, sizes.old_history, int(time.time() * 1000))
        load(folder, scene.administration, long, tell)
    else:
        folder, long = kept, LongHistory.of_folder(kept)
        fit(kept, scene.administration, tell)
    urls: dict[Database, str] = {
        "sqlite": f"sqlite:///{folder / 'history.db'}",
        "postgres": history_url(scene.administration),
    }
    past = {name: own_settings(scene.folder / f"past-{name}", scene.broker, urls[name]) for name in DATABASES}
    sizes = replace(scene.sizes, history=long.rows, small_history=long.small, old_history=long.old)
    return replace(scene, long=long, past=past, sizes=sizes)


def keep_history(folder: Path, sizes: Sizes, tell: Tell) -> None:
    """Load a history into a new folder, for runs to come.

    Raises:
        FileExistsError: there is something already.
    """
    folder.mkdir(mode=0o711, parents=True)
    with KeptPostgres(folder / "postgres") as postgres:
        _count_statements(postgres)
        long = LongHistory(sizes.history, sizes.small_history, sizes.old_history, int(time.time() * 1000))
        load(folder, postgres.url, long, tell)


def _count_statements(postgres: PostgresServer) -> None:
    """What counts statements is loaded at the start of a server, and only if its configuration names it."""
    services.admin(postgres.url, "ALTER SYSTEM SET shared_preload_libraries = 'pg_stat_statements'")
    postgres.stop()
    postgres.start()
    count_statements(postgres.url)


def _for_celery(url: str) -> str:
    """Return the URL of that database as Celery takes it, for a role whose password is hashed as often as its driver demands."""
    parts, password = urlsplit(url), secrets.token_hex()
    name = parts.path[1:]
    made = f"CREATE ROLE {name} LOGIN PASSWORD '{password}'; ALTER DATABASE {name} OWNER TO {name}"
    services.admin(url, f"SET scram_iterations = 4096; {made}")
    there = f"{name}:{password}@{parts.hostname}:{parts.port}"
    return urlunsplit(parts._replace(scheme="db+postgresql+pg8000", netloc=there))
