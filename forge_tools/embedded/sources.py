"""The user's source files: which folders are watched, and what changed in them."""

import os
from collections.abc import Iterable, Iterator
from importlib.util import cache_from_source
from pathlib import Path
from threading import Event

from watchfiles import Change, watch

from forge_tools.errors import ConfigurationError
from forge_tools.project import FILE

STEP_MS = 50
"""A change is told once it has been quiet for so long: editors write a file in several steps."""

MOST_FOLDERS = 5_000
IGNORED = frozenset({"__pycache__", "node_modules", "site-packages", "venv", "env"})
"""As all folders whose name begins with a dot, and virtual environments of any name."""


def changes(roots: Iterable[Path], stop: Event) -> Iterator[list[Path]]:
    """Tell which files changed, in folders that are watched one by one, so that what is ignored costs nothing.

    Raises:
        ConfigurationError: there are too many folders.
    """
    tops = {root.resolve() for root in roots}
    while not stop.is_set():
        folders = _folders(tops)
        told = watch(
            *folders, watch_filter=_is_told, recursive=False, step=STEP_MS, stop_event=stop, raise_interrupt=False
        )
        for found in told:
            files = [Path(path) for _, path in found if _is_source(path)]
            for file in files:
                Path(cache_from_source(str(file))).unlink(missing_ok=True)  # of one second and size it would be taken
            came = [Path(path) for change, path in found if change is Change.added and Path(path).is_dir()]
            files += [file for folder in came for file in folder.rglob("*.py")]
            if files:
                yield files
            if came:
                break  # and watch these, too


def _folders(tops: Iterable[Path]) -> list[Path]:
    found: list[Path] = []
    for top in tops:
        for folder, names, _ in os.walk(top):
            names[:] = [name for name in names if not _is_ignored(Path(folder, name))]
            found.append(Path(folder))
            if len(found) > MOST_FOLDERS:
                raise ConfigurationError(
                    f"{top} has more than {MOST_FOLDERS:,} folders to watch. Start in the folder of your tools, or move "
                    "data into one whose name begins with a dot."
                )
    return found


def _is_ignored(folder: Path) -> bool:
    return folder.name.startswith(".") or folder.name in IGNORED or (folder / "pyvenv.cfg").exists()


def _is_source(path: str) -> bool:
    return path.endswith(".py") or Path(path).name == FILE


def _is_told(change: Change, path: str) -> bool:
    return _is_source(path) or (change is Change.added and Path(path).is_dir() and not _is_ignored(Path(path)))
