"""What a search through a folder leaves out: settled once, exactly, and handed to whichever program searches."""

import re
from dataclasses import dataclass, field

from forge_tools.sandbox.paths.confinement import Handle
from forge_tools.sandbox.paths.folders import Sighting
from forge_tools.tools.file.globs import plain_rule
from forge_tools.tools.file.walking import Walk

_BINARY_ENDINGS = (
    "pyc", "pyo", "so", "o", "a", "dylib", "dll", "exe", "class", "jar", "wasm", "png", "jpg", "jpeg", "gif", "webp", "ico",
    "bmp", "tiff", "pdf", "zip", "gz", "bz2", "xz", "zst", "tar", "tgz", "whl", "7z", "mp3", "mp4", "mov", "avi", "ogg",
    "woff", "woff2", "ttf", "otf", "eot", "sqlite", "sqlite3", "db", "bin", "dat", "npy", "npz", "parquet", "pkl",
)  # fmt: skip
_BINARY = re.compile(r"\0([^\0]*\.(?:" + "|".join(_BINARY_ENDINGS) + r"))(?=\0)")


@dataclass(slots=True)
class Survey:
    """Paths are relative to the folder that was surveyed; those of folders end in a slash. `files` counts what stays in."""

    left_out: set[str] = field(default_factory=set)
    files: int = 0
    protected: int = 0
    binary_names: list[str] = field(default_factory=list)
    faults: list[tuple[str, str]] = field(default_factory=list)
    is_partial: bool = False
    seen: dict[str, Sighting] = field(default_factory=dict)
    _odd_folders: tuple[str, ...] = ()
    _has_gaps: bool = False

    def rules(self) -> str:
        """Write what is left out as lines of a .gitignore, one plain path each, as far as lines can say it."""
        return "".join(plain_rule(path) for path in sorted(self.left_out) if _is_sayable(path))

    def has(self, path: str) -> bool:
        """Whether a file is left out by its path or by that of a folder: which no line could name, or nobody could list."""
        if path in self.left_out or path.startswith(self._odd_folders):
            return True
        return self._has_gaps and path[: path.rfind("/") + 1] not in self.seen

    @property
    def has_ignored(self) -> bool:
        """Whether a search without ignore rules would look into more."""
        return len(self.left_out) > self.protected

    def finish(self, walk: Walk) -> "Survey":
        self._odd_folders = tuple(path for path in self.left_out if path.endswith("/") and not _is_sayable(path))
        self.faults, self.is_partial, self.seen = walk.faults, walk.is_partial, walk.seen
        self._has_gaps = self.is_partial or bool(self.faults)
        return self


def survey(walk: Walk, target: Handle) -> Survey:
    """Go through the folder: what rules ignore is left out, and what holds secrets."""
    found = Survey()
    protection = target.root.root.protection
    for level in walk.levels():
        secrets = protection.hidden_of([*level.files, *level.folders])
        secret_files, secret_folders = secrets.intersection(level.files), secrets.intersection(level.folders)
        if secret_folders:
            level.folders[:] = [name for name in level.folders if name not in secret_folders]
        out = level.ignored_folders.difference(level.folders) | secret_folders
        if out or level.ignored or secret_files:
            found.left_out.update(f"{level.path}{name}/" for name in out)
            found.left_out.update(level.path + name for name in level.ignored | secret_files)
        found.files += len(level.files) - len(secret_files)
        found.protected += len(secret_files) + len(secret_folders)
        found.binary_names += [level.path + name for name in _BINARY.findall("\0".join(["", *level.files, ""]))]
    return found.finish(walk)


def _is_sayable(path: str) -> bool:
    return path.isprintable()
