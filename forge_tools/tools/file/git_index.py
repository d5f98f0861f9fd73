"""Which files a repository tracks, read from its index: rules never hide those."""

import os
import struct
from dataclasses import dataclass

from forge_tools.sandbox.paths.folders import Folder

_HEADER = struct.Struct(">4sII")
_STAT_BYTES = 40
_MODE_AT = 24
_MODES = {0o040000, 0o100644, 0o100664, 0o100755, 0o120000, 0o160000}
_EXTENDED = 0x4000
_LENGTH = 0x0FFF
_MAX_KEPT = 8

_kept: dict[tuple[int, ...], "Tracked"] = {}


@dataclass(frozen=True, slots=True)
class Tracked:
    """Tracked paths, and the folders on the way to them, relative to the repository."""

    files: frozenset[str] = frozenset()
    folders: frozenset[str] = frozenset()


NOTHING = Tracked()


def tracked_by(git: Folder) -> Tracked:
    """Read the index of an open `.git` folder; one that is missing or of an unknown form tracks nothing.

    Raises:
        OSError: it is there and cannot be read.
    """
    try:
        facts = git.stat("index")
        key = (facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)
        tracked = _kept.get(key)
        if tracked is None:
            tracked = parse(git.read("index"))
            if len(_kept) >= _MAX_KEPT:
                _kept.clear()
            _kept[key] = tracked
        return tracked
    except FileNotFoundError:
        return NOTHING


def parse(data: bytes) -> Tracked:
    """Read an index of version 2 to 4, with SHA-1 or SHA-256 names of objects."""
    for hash_bytes in (20, 32):
        try:
            files = _files(data, hash_bytes)
        except (ValueError, struct.error, IndexError):
            continue
        folders = {path[: path.rindex("/")] for path in files if "/" in path}
        above = {name[:index] for name in folders for index, char in enumerate(name) if char == "/"}
        return Tracked(frozenset(files), frozenset(folders | above))
    return NOTHING


def _files(data: bytes, hash_bytes: int) -> set[str]:
    magic, version, count = _HEADER.unpack_from(data)
    if magic != b"DIRC" or version not in (2, 3, 4):
        raise ValueError("not an index")
    files: set[str] = set()
    position, name = _HEADER.size, b""
    for _ in range(count):
        if int.from_bytes(data[position + _MODE_AT : position + _MODE_AT + 4]) not in _MODES:
            raise ValueError("not an entry")
        flags = position + _STAT_BYTES + hash_bytes
        facts = int.from_bytes(data[flags : flags + 2])
        begin = flags + (4 if facts & _EXTENDED else 2)
        dropped = 0
        if version == 4:
            dropped, begin = _varint(data, begin)
        end = data.index(b"\0", begin)
        name = name[: len(name) - dropped] + data[begin:end] if version == 4 else data[begin:end]
        if facts & _LENGTH != min(len(name), _LENGTH):
            raise ValueError("not an entry")
        files.add(os.fsdecode(name))
        position = end + 1 if version == 4 else position + ((end - position) // 8 + 1) * 8
    return files


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """Read how many bytes of the name before are dropped, in the form that pack files use for offsets."""
    value = data[position] & 0x7F
    while data[position] & 0x80:
        position += 1
        value = (value + 1 << 7) | (data[position] & 0x7F)
    return value, position + 1
