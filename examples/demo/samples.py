"""Files for the demo to work on: those of the current folder, else the package's own sources."""

import os
from collections.abc import Iterator
from pathlib import Path

import forge_tools

WANTED = 25
FEWEST = 3
MAX_BYTES = 200_000
MAX_LOOKED_AT = 5_000
"""Entries that are looked at before it settles for what was found: the folder may be a whole disk."""

_SKIPPED = frozenset({"node_modules", "__pycache__", "venv", "build", "dist", "site-packages"})


def sample_files(folder: Path) -> tuple[Path, list[str]]:
    """Return a workspace and some text files in it, relative to it."""
    for workspace in (folder, Path(forge_tools.__file__).parent):
        files = list(_text_files(workspace))
        if len(files) >= FEWEST:
            break
    return workspace, files


def _text_files(folder: Path) -> Iterator[str]:
    looked_at = found = 0
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in _SKIPPED)
        for name in sorted(names):
            looked_at += 1
            path = Path(parent, name)
            if not name.startswith(".") and _is_small_text(path):
                found += 1
                yield str(path.relative_to(folder))
            if found == WANTED or looked_at == MAX_LOOKED_AT:
                return


def _is_small_text(path: Path) -> bool:
    try:
        if path.is_symlink() or not path.is_file() or not 0 < path.stat().st_size <= MAX_BYTES:
            return False
        return "\0" not in path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False
