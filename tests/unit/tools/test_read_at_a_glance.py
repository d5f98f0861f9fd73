"""Read of small files without a thread: the same answer, and the loop is never held."""

import asyncio
import os
import random
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from forge_tools.model import ToolResult
from forge_tools.sandbox.paths import confinement as nowait
from forge_tools.sandbox.paths.files import etag_of
from forge_tools.sandbox.paths.workspace import Workspace
from forge_tools.tools.file.read import Read, Reading
from tests.waiting import drop_from_memory, reached, within

Call = Callable[..., Awaitable[ToolResult]]
Write = Callable[[str, bytes], Path]

CONTENTS = {
    "plain": b"one\ntwo\nthree\n",
    "no-newline": b"one\n\ttwo",
    "crlf": b"one\r\ntwo\r\n",
    "mixed": b"one\r\ntwo\nthree\r\n",
    "lone-cr": b"one\rtwo\n",
    "ends-in-cr": b"one\ntwo\r",
    "utf-8": "é €\u2028x\u3000\xa0y\U0001f600\n\ufeffz\x85\n".encode(),
    "bom": b"\xef\xbb\xbfone\ntwo\n",
    "latin-1": b"caf\xe9\nna\xefve\n",
    "stray": "é ü ö ä\n".encode() + b"\xff\n",
    "utf-16": "one\ntwo\n".encode("utf-16"),
    "escape": b"a\x1b[1mb\nnext\n",
    "delete": b"a\x7fb\nnext\n",
    "binary": b"\x89PNG\r\n\x1a\n\0\0",
    "newlines": b"\n" * 70,
    "empty": b"",
    "long-line": b"x" * 2001 + b"\ny\n",
    "wide-line": "é".encode() * 2000 + b"\ny\n",
    "many-lines": b"a line\n" * 5000,
}
WISHES: list[dict[str, Any]] = [
    {}, {"line_numbers": False}, {"offset": 2}, {"offset": 2, "limit": 1}, {"limit": 1}, {"tail": 1}, {"tail": 2}, {"tail": 9},
    {"offset": 4090, "limit": 100}, {"limit": 2000, "offset": 3001}, {"column": 1}, {"encoding": "latin-1"}, {"offset": 2**63},
]  # fmt: skip


@pytest.fixture
def tmp_path(disk_path: Path) -> Path:
    """There are reads that wait: only a disk has them."""
    return disk_path


@pytest.fixture
def read(caller: Callable[[Read], Call], ws: Path) -> Call:
    """Reads in a file system that was met."""
    (ws / "first").write_bytes(b"x")
    with Workspace(ws).open_file("first") as file:
        nowait.meet(file.fd, file.stat.st_dev)
        if not nowait.offered[file.stat.st_dev]:
            pytest.skip("the file system of the temporary folder offers no reads that never wait")
    return caller(Read())


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What went to a thread."""
    seen: list[object] = []
    to_thread = asyncio.to_thread

    async def noted(work: Callable[[], Any]) -> Any:
        seen.append(work)
        return await to_thread(work)

    monkeypatch.setattr(asyncio, "to_thread", noted)
    return seen


@pytest.mark.parametrize("name", CONTENTS)
async def test_a_glance_tells_what_a_long_look_tells(
    read: Call, write: Write, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("f", CONTENTS[name])
    quick = [await read({"max_output_size": size}, file_path="f", **wish) for wish in WISHES for size in (300, 100_000)]
    monkeypatch.setattr(Reading, "glance", lambda *_: None)
    slow = [await read({"max_output_size": size}, file_path="f", **wish) for wish in WISHES for size in (300, 100_000)]
    for one in (*quick, *slow):
        one.duration_ms = None
    assert quick == slow


@pytest.mark.parametrize("name", ["plain", "no-newline", "crlf", "mixed", "utf-8", "newlines", "many-lines"])
async def test_a_small_plain_file_takes_no_thread(read: Call, write: Write, threads: list[object], name: str) -> None:
    write("f", CONTENTS[name])
    assert (await read(file_path="f")).success
    assert (await read(file_path="f", tail=1)).success
    assert not threads


@pytest.mark.parametrize("name", ["folder", "fifo", "link", "huge", "long", "binary", "no-such"])
async def test_whatever_else_there_is_takes_one(read: Call, ws: Path, threads: list[object], name: str) -> None:
    (ws / "folder").mkdir()
    os.mkfifo(ws / "fifo")
    (ws / "link").symlink_to("first")
    (ws / "huge").touch()
    os.truncate(ws / "huge", 1 << 40)
    (ws / "long").write_bytes(b"line\n" * 20_000)
    (ws / "binary").write_bytes(b"\0")
    result = await read(file_path=name)
    assert result.error_code == {
        "folder": "NOT_A_FILE", "fifo": "NOT_A_FILE", "huge": "BINARY_FILE", "binary": "BINARY_FILE", "no-such": "FILE_NOT_FOUND",
    }.get(name)  # fmt: skip
    assert len(threads) == 1


async def test_a_file_that_is_not_in_memory_takes_one(read: Call, write: Write, threads: list[object]) -> None:
    path = write("f", b"line\n" * 2000)
    if not os.major(path.stat().st_dev):
        pytest.skip("the temporary folder is on no disk")
    # A disk may be quicker than the question whether it has to be asked.
    for _ in within(30, "no reading took a thread"):
        drop_from_memory(path)
        assert (await read(file_path="f")).metadata["lines"] == 2000
        if threads:
            break
    assert len(threads) == 1


async def test_the_first_reading_in_a_file_system_takes_one(
    read: Call, threads: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nowait, "offered", {})
    for _ in range(3):
        assert (await read(file_path="first")).output == "     1\tx"
    assert len(threads) == 1


async def test_a_disk_that_takes_its_time_does_not_hold_the_loop(
    read: Call, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("f", b"line\n" * 20_000)
    is_asked, may_answer, pread = threading.Event(), threading.Event(), os.pread

    def slow(fd: int, size: int, position: int) -> bytes:
        is_asked.set()
        assert may_answer.wait(10)
        return pread(fd, size, position)

    monkeypatch.setattr(os, "pread", slow)
    reading = asyncio.ensure_future(read(file_path="f"))
    await reached(is_asked.is_set, 30)
    assert (await read(file_path="first")).success  # meanwhile others read
    may_answer.set()
    assert (await reading).metadata["lines"] == 20_000


async def test_what_is_swapped_meanwhile_is_read_whole_or_refused(read: Call, ws: Path) -> None:
    contents = [b"a\n" * 3000, b"bb\n" * 4000]
    etags = {etag_of(content): content.count(b"\n") for content in contents}
    done = threading.Event()

    def swap() -> None:
        make = [
            *(lambda path, content=content: path.write_bytes(content) for content in contents),
            os.mkfifo,
            lambda path: path.symlink_to("../secret"),
        ]
        time_left = within(60, "nobody stops the swaps")
        while not done.is_set() and next(time_left):
            random.choice(make)(ws / "new")
            (ws / "new").replace(ws / "f")

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        results = [await read(file_path="f") for _ in range(400)]
    finally:
        done.set()
        thread.join()
    for result in results:
        if result.success:
            assert etags[result.metadata["etag"]] == result.metadata["lines"]
        else:
            assert result.error_code in {"NOT_A_FILE", "PATH_OUTSIDE_WORKSPACE", "FILE_NOT_FOUND"}, result.error
