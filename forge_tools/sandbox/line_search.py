"""A program, not a module: searches lines where there is no ripgrep, and prints what ripgrep would.

Its one argument is the request as JSON. Of a folder, the current one, it searches all regular files but those that standard
input names (paths between zero bytes, those of folders with a slash at the end); without a folder, standard input itself.
Links are not followed. The standard library alone, started with -I -S: it has to be quick to start.
"""

import base64
import codecs
import errno
import json
import os
import re
import stat
import sys
from collections.abc import Iterator
from typing import Any

_MAX_DEPTH = 256
_PIECE = 65_536
_MAX_BYTES = 512 << 20
_INTO = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Searcher:
    """One request: which lines match, and how they are told."""

    def __init__(self, request: dict[str, Any]) -> None:
        self._match = re.compile(request["regex"], re.IGNORECASE if request["ignore_case"] else 0).search
        self._mode = request["mode"]
        self._before = request["before"]
        self._after = request["after"]
        self._most = request["max_per_file"] or sys.maxsize
        self._glob = re.compile(request["glob"], re.DOTALL) if request["glob"] else None
        self._name = re.compile(request["name"]) if request["name"] else None
        self._hidden = request["hidden"]
        self.searched = 0

    def wants(self, path: str, name: str) -> bool:
        is_named = not self._name or self._name.fullmatch(name)
        return bool(is_named and (not self._glob or self._glob.fullmatch(path)))

    def folder(self, fd: int, above: str, left_out: set[str]) -> None:
        """Search a folder name by name, files and folders alike."""
        with os.scandir(fd) as entries:
            found = sorted(
                (os.fsencode(e.name), e.name, e.is_dir(follow_symlinks=False)) for e in entries if not e.is_symlink()
            )
        for _, name, is_folder in found:
            path = above + name
            if name == ".git" or path in left_out or f"{path}/" in left_out or not (self._hidden or name[0] != "."):
                continue
            try:
                if is_folder:
                    if path.count("/") >= _MAX_DEPTH:
                        raise OSError(errno.ELOOP, f"it is deeper than {_MAX_DEPTH} folders")
                    self._enter(fd, name, f"{path}/", left_out)
                elif self.wants(path, name):
                    self._open(fd, name, f"./{path}")
            except BrokenPipeError:
                raise
            except OSError as error:
                complain(f"./{path}: {error.strerror}")

    def file(self, fd: int, path: str, *, is_asked_for: bool) -> None:
        """Search an open file. One that is binary is left out, unless it was asked for by name."""
        with os.fdopen(fd, "rb") as file:
            if os.fstat(fd).st_size > _MAX_BYTES:
                raise OSError(errno.EFBIG, f"larger than {_MAX_BYTES:,} bytes, which needs ripgrep")
            data = as_utf8(file.read())
        self.searched += 1
        binary = data.find(b"\0")
        if is_asked_for:
            data = data.replace(b"\0", b"\n")
        elif binary >= 0:  # seen only once what is before it was searched, a piece at a time
            data = data[: binary // _PIECE * _PIECE].rpartition(b"\n")[0]
        text = data.decode("utf-8", "surrogateescape")
        if not self._tell(path, text, binary, is_binary=binary >= 0 and not is_asked_for):
            complain(f"DEBUG|: ignoring {path}: found binary data at offset {binary}")

    def _tell(self, path: str, text: str, binary: int, *, is_binary: bool) -> bool:
        """Print what matches; False means that the file turned out to be binary."""
        if self._mode == "content":
            self._tell_lines(path, text, binary)
            return not is_binary
        if self._mode == "files_with_matches":
            if is_found := any(True for _ in self._matches(text)):
                write(os.fsencode(path) + b"\0")
            return is_found or not is_binary
        number = 0 if is_binary else sum(1 for _ in self._matches(text))
        if number:
            write(os.fsencode(path) + b"\0%d\n" % number)
        return not is_binary

    def _enter(self, above: int, name: str, path: str, left_out: set[str]) -> None:
        fd = os.open(name, _INTO, dir_fd=above)
        try:
            self.folder(fd, path, left_out)
        finally:
            os.close(fd)

    def _open(self, folder: int, name: str, path: str) -> None:
        fd = os.open(name, _READ, dir_fd=folder)
        if stat.S_ISREG(os.fstat(fd).st_mode):
            self.file(fd, path, is_asked_for=False)
        else:
            os.close(fd)

    def _matches(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield the index of each line that matches, and where in the text the match begins. No match spans lines."""
        left, line, counted, position = self._most, 0, 0, 0
        while left and (found := self._match(text, position)):
            start = found.start()
            if start == len(text) and (not text or text[-1] == "\n"):
                return  # behind the last line there is none
            line += text.count("\n", counted, start)
            yield line, start
            end = text.find("\n", start)
            if end < 0:
                return
            left, line, counted, position = left - 1, line + 1, end + 1, end + 1

    def _tell_lines(self, path: str, text: str, binary: int) -> None:
        where, lines = encoded(os.fsencode(path)), []
        last = until = -1
        for index, start in self._matches(text):
            if last < 0:
                tell("begin", path=where)
                lines = text.split("\n")
            around = (
                *range(last + 1, min(until + 1, index)),
                *range(max(index - self._before, until + 1, last + 1), index),
            )
            for context in around:
                tell_line("context", where, lines, context)
            tell_line("match", where, lines, index, text[text.rfind("\n", 0, start) + 1 : start])
            last, until = index, index + self._after
        if last >= 0:
            end = len(lines) - (not lines[-1])
            for context in range(last + 1, min(until + 1, end)):
                tell_line("context", where, lines, context)
            tell("end", path=where, binary_offset=None if binary < 0 else binary)


def as_utf8(data: bytes) -> bytes:
    """Take a byte order mark off, and turn what it says is UTF-16 into UTF-8."""
    if data.startswith(codecs.BOM_UTF8):
        return data.removeprefix(codecs.BOM_UTF8)
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return data.decode("utf-16", "replace").encode()
    return data


def encoded(data: bytes) -> dict[str, str]:
    try:
        return {"text": data.decode()}
    except UnicodeDecodeError:
        return {"bytes": base64.b64encode(data).decode()}


def tell_line(kind: str, where: dict[str, str], lines: list[str], index: int, before: str | None = None) -> None:
    line = lines[index] + ("\n" if index + 1 < len(lines) else "")
    starts = [] if before is None else [{"start": len(before.encode("utf-8", "surrogateescape"))}]
    raw = encoded(line.encode("utf-8", "surrogateescape"))
    tell(kind, path=where, lines=raw, line_number=index + 1, submatches=starts)


def tell(kind: str, **data: Any) -> None:
    write(json.dumps({"type": kind, "data": data}, separators=(",", ":")).encode() + b"\n")


def write(data: bytes) -> None:
    sys.stdout.buffer.write(data)


def complain(text: str) -> None:
    sys.stderr.buffer.write(os.fsencode(f"rg: {text}\n"))


def main() -> None:
    request = json.loads(sys.argv[1])
    try:
        searcher = Searcher(request)
    except (re.error, OverflowError, RecursionError) as error:
        complain(f"regex parse error:\nerror: {error}")
        sys.exit(2)
    if request["is_file"]:
        searcher.file(os.dup(0), "<stdin>", is_asked_for=True)
    else:
        left_out = {os.fsdecode(path) for path in sys.stdin.buffer.read().split(b"\0")}
        here = os.open(".", _INTO)
        searcher.folder(here, "", left_out)
        os.close(here)
    if request["mode"] == "content":
        tell("summary", stats={"searches": searcher.searched})
    else:
        write(b"\n%d files searched\n" % searcher.searched)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:
        os._exit(0)  # whoever reads has seen enough; nothing is left to flush
