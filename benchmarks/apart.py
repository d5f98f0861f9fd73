"""A broker and a database for one side only, whose counters nobody else influences."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.scene import Scene, own_settings
from forge_tools.config import Settings
from forge_tools.storage import migrate
from tests.services import GivenPostgres, ValkeyServer


@contextmanager
def apart(scene: Scene, name: str) -> Iterator[Settings]:
    """Provide both, empty, and remove them afterwards; the database is on the PostgreSQL of the run."""
    folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=scene.folder))
    postgres = GivenPostgres(scene.administration)
    url = postgres.create_database()
    try:
        migrate.upgrade(url)
        with ValkeyServer(folder / "valkey") as valkey:
            yield own_settings(folder / "home", valkey.url, url)
    finally:
        postgres.stop()
