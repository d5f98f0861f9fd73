"""A folder's project: its table in pyproject.toml, `.forge`, whose id names the home of its stack, and the socket of the broker there."""

import hashlib
import os
import socket
import tempfile
import tomllib
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Self
from uuid import NAMESPACE_URL, UUID, uuid5

from forge_tools.errors import ConfigurationError, StackError

FILE = "pyproject.toml"
TABLE = "tool.forge-tools"
MARKER = ".forge"

OWNER = "folder"
"""The file in a home that names the folder it belongs to."""

MAX_SOCKET_PATH = 100
"""Bytes; the kernel stops at 107, and Valkey's own temporary names need a few."""

_LONGEST = 200


@dataclass(frozen=True, slots=True)
class Project:
    """A folder whose pyproject.toml has our table. `tools` are references as `load_tools` takes them."""

    folder: Path
    tools: tuple[str, ...]


def find_project(start: Path | None = None) -> Project | None:
    """Return the project of a folder, the current one by default: its own, or that of the nearest parent which has one.

    Raises:
        ConfigurationError: naming the file and what is wrong in it.
    """
    start = (start or Path.cwd()).absolute()
    for folder in (start, *start.parents):
        table = _table(folder / FILE)
        if table is not None:
            if folder != start:
                _require_trusted(folder / FILE, start)
            return Project(folder, _references(folder, table))
    return None


def is_path(reference: str) -> bool:
    """Return whether a reference names a file or folder rather than a module."""
    return "/" in reference or reference.partition(":")[0].endswith(".py")


def _table(file: Path) -> Any:
    try:
        content = file.read_bytes()
    except OSError:
        return None
    if b"forge-tools" not in content:  # most do not concern us, and parsing takes a while
        return None
    try:
        return _parsed(content)
    except ValueError as error:
        raise ConfigurationError(f"{file} is no TOML: {error}.") from error


@lru_cache(maxsize=8)
def _parsed(content: bytes) -> Any:
    """Return the table. Cached: every client and stack of a process asks for it, and a large file takes milliseconds."""
    tables = tomllib.loads(content.decode()).get("tool")
    return tables.get("forge-tools") if isinstance(tables, dict) else None


def _references(folder: Path, table: Any) -> tuple[str, ...]:
    where = f"{folder / FILE}, [{TABLE}]"
    if not isinstance(table, dict):
        raise ConfigurationError(f'{where} must be a table, such as tools = ["mytools"].')
    if unknown := sorted(table.keys() - {"tools"}):
        raise ConfigurationError(f"{where}: there is no setting '{unknown[0]}'; the table has only `tools`.")
    tools = table.get("tools", [])
    if not isinstance(tools, list) or not all(isinstance(one, str) for one in tools):
        raise ConfigurationError(f'{where}: tools must be a list of strings, such as ["mytools", "more/tools.py"].')
    return tuple(str(folder / one) if is_path(one) else one for one in tools)


def _require_trusted(file: Path, start: Path) -> None:
    """Refuse another user's file in a parent folder such as /tmp: what it names would be imported."""
    owner = file.stat().st_uid
    if owner not in {os.getuid(), 0, start.stat().st_uid}:
        raise ConfigurationError(
            f"{file} names tools to import, but belongs to another user (uid {owner}). Work in a folder outside of "
            f"{file.parent}, or have that file removed."
        )


@dataclass(frozen=True, slots=True)
class Marker:
    """The home of a folder. `.forge` need not exist yet: until then the id derives from the folder's path.

    `copied_from` is the folder that the id in `.forge` belongs to, if this folder is a copy of it; its own id then
    differs.
    """

    folder: Path
    home: Path
    copied_from: Path | None = None

    @classmethod
    def find(cls, folder: Path, homes: Path) -> Self:
        """Look for `.forge` in the folder and those above, as git does for `.git`.

        Raises:
            ConfigurationError: there is one that holds no id, is a folder, or cannot be read.
        """
        folder = folder.resolve()
        for above in (folder, *filter(_is_trusted, folder.parents)):
            if (uuid := _read(above)) is not None:
                return cls._of(above, uuid, homes)
        return cls._of(folder, _derived(NAMESPACE_URL, folder), homes)

    @classmethod
    def _of(cls, folder: Path, uuid: UUID, homes: Path) -> Self:
        copied_from = None
        while (owner := _owner(homes / str(uuid))) is not None and _is_another(owner, folder, uuid):
            copied_from, uuid = copied_from or owner, _derived(uuid, folder)
        return cls(folder, homes / str(uuid), copied_from)

    @property
    def file(self) -> Path:
        return self.folder / MARKER

    def write(self) -> None:
        """Make `.forge` name the home."""
        if _read(self.folder) != UUID(self.home.name):
            # Not a secret: other users of the folder have their own homes.
            _replace(self.file, f"{self.home.name}\n", 0o644)

    def keep(self) -> None:
        """Record in the home that it belongs to this folder; only for the holder of its lock."""
        _replace(self.home / OWNER, f"{self.folder}\n", 0o600)

    def remove(self) -> None:
        """Remove `.forge`, unless it is a folder."""
        try:
            if self.file.is_file():
                self.file.unlink()
        except OSError as error:
            raise StackError(f"{self.file} cannot be removed: {error.strerror}. Remove it yourself.") from error


def broker_socket(home: Path) -> Path:
    """Return where the embedded broker of `home` listens: in a private folder if the path is too long for a socket."""
    here = home.resolve() / "valkey.sock"
    name = hashlib.blake2b(os.fsencode(here), digest_size=8).hexdigest()
    private = f"forge-tools-{os.getuid()}"
    # /tmp itself, too: TMPDIR may lead to a long path.
    folders = [Path(tempfile.gettempdir()) / private, Path("/tmp") / private]  # noqa: S108 made 0700, its owner checked
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        folders.insert(0, Path(runtime))
    places = [here, *(folder / f"{name}.sock" for folder in folders)]
    return next((place for place in places if len(os.fsencode(place)) <= MAX_SOCKET_PATH), places[-1])


def _is_trusted(folder: Path) -> bool:
    """Return whether a parent folder may decide: a stranger's file in /tmp would open all of /tmp to tools."""
    try:
        return (folder / MARKER).lstat().st_uid in (os.getuid(), 0)
    except OSError:
        return False


def _derived(base: UUID, folder: Path) -> UUID:
    """Derive the same id each time, so that reading needs no write; other hosts derive other ids."""
    return uuid5(base, ascii(f"{socket.gethostname()}:{folder}"))


def _read(folder: Path) -> UUID | None:
    file = folder / MARKER
    if os.path.isdir(file):  # noqa: PTH112  unlike Path.is_dir it returns False for what cannot be accessed
        raise ConfigurationError(
            f"{file} is a folder, perhaps made by an unreleased version of forge-tools; this version leaves it alone: "
            "rename or remove it, or set FORGE_HOME to it to continue with its content."
        )
    # A link that cannot be followed may be a loop or lead into a closed folder: opening it tells.
    leads_nowhere = os.path.islink(file) and not os.path.exists(file)  # noqa: PTH110, PTH114  as above
    if not (os.path.isfile(file) or leads_nowhere):  # noqa: PTH113  as above; opening a pipe would block
        return None
    try:
        with file.open("rb") as opened:
            return UUID(opened.read(_LONGEST).decode("ascii").strip())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        why = f"cannot be read ({error.strerror})" if isinstance(error, OSError) else "does not hold the id of a stack"
        raise ConfigurationError(f"{file} {why}. Correct or remove it, or set FORGE_HOME to another folder.") from error


def _owner(home: Path) -> Path | None:
    try:
        return Path(os.fsdecode((home / OWNER).read_bytes()).removesuffix("\n"))
    except OSError:
        return None


def _is_another(owner: Path, folder: Path, uuid: UUID) -> bool:
    """Return whether the owner is still another folder; not if it was moved, or is the same by another path."""
    try:
        return owner != folder and _read(owner) == uuid and not owner.samefile(folder)
    except (ConfigurationError, OSError):
        return False


def _replace(file: Path, text: str, mode: int) -> None:
    """Write it atomically: others may read it at any time."""
    new = file.with_name(f"{file.name}.{os.getpid()}.new")
    try:
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
        with os.fdopen(fd, "wb") as opened:
            opened.write(os.fsencode(text))
        new.replace(file)
    except OSError as error:
        with suppress(OSError):
            new.unlink()
        raise StackError(
            f"{file}, which records where the embedded stack keeps its data, cannot be written ({error.strerror}). "
            "Set FORGE_HOME to a folder for the data."
        ) from error
