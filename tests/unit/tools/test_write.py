"""Write on real files: what it keeps, what it refuses, and what two writers see."""

import asyncio
import errno
import os
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from forge_tools.model import ToolResult
from forge_tools.tools.file import write as writing
from forge_tools.tools.file.read import Read
from forge_tools.tools.file.write import Write

Call = Callable[..., Awaitable[ToolResult]]
Put = Callable[[str, bytes], Path]


@pytest.fixture
def call(caller: Callable[[Write], Call]) -> Call:
    return caller(Write())


async def test_a_new_file_is_made_with_its_folders(call: Call, ws: Path) -> None:
    result = await call(file_path="a/b/c.py", content="one\ntwo\n")
    assert result.output == "Created a/b/c.py (2 lines, 8 bytes)"
    assert (ws / "a/b/c.py").read_bytes() == b"one\ntwo\n"
    assert (result.metadata["created"], result.metadata["eol"]) == (True, "lf")


async def test_an_old_file_is_replaced_and_the_difference_shown(call: Call, write: Put) -> None:
    path = write("f", b"one\ntwo\nthree\n")
    path.chmod(0o755)
    result = await call(path="f", content="one\n2\nthree\n")
    assert result.output == "Wrote f (3 lines, 12 bytes; was 3 lines)\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three"
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"one\n2\nthree\n", 0o755)


@pytest.mark.parametrize(
    ("old", "content", "new"),
    [
        (b"a\r\nb\r\n", "x\ny\n", b"x\r\ny\r\n"),
        (b"a\r\nb\r\n", "x\r\ny\r\n", b"x\r\ny\r\n"),
        (b"a\r\nb\n", "x\ny\n", b"x\ny\n"),
        (b"a\nb\n", "x\r\ny", b"x\r\ny"),
        (b"\xef\xbb\xbfa\r\n", "é\n", b"\xef\xbb\xbf\xc3\xa9\r\n"),
        ("\ufeffa\n".encode("utf-16-le"), "é\n", "\ufeffé\n".encode("utf-16-le")),
        ("\ufeffa\n".encode("utf-16-be"), "\ufeffé\n", "\ufeffé\n".encode("utf-16-be")),
        (b"caf\xe9\n", "coffee\n", b"coffee\n"),
        (b"\x89PNG\0\0", "é", b"\xc3\xa9"),
        (b"a", "", b""),
    ],
)
async def test_encoding_mark_and_line_ends_are_those_of_the_old_file(
    call: Call, write: Put, old: bytes, content: str, new: bytes
) -> None:
    path = write("f", old)
    result = await call(file_path="f", content=content)
    assert result.success
    assert path.read_bytes() == new


@pytest.mark.parametrize(
    ("options", "new"),
    [
        ({"line_endings": "lf"}, b"a\nb\n"),
        ({"line_endings": "crlf"}, b"a\r\nb\r\n"),
        ({"line_endings": "as_given"}, b"a\r\nb\n"),
        ({"encoding": "utf-16"}, "\ufeffa\r\nb\n".encode("utf-16-le")),
        ({"encoding": "utf-8-sig"}, b"\xef\xbb\xbfa\r\nb\n"),
        ({"encoding": "cp1252"}, b"a\r\nb\n"),
    ],
)
async def test_the_caller_may_say_how(call: Call, ws: Path, options: dict[str, Any], new: bytes) -> None:
    assert (await call(file_path="f", content="a\r\nb\n", **options)).success
    assert (ws / "f").read_bytes() == new


@pytest.mark.parametrize(
    ("old", "content", "options", "says"),
    [
        (None, "a\ud800", {}, "content contains half a surrogate pair at character 2, which no encoding can represent"),
        (None, "a€", {"encoding": "latin-1"}, "content contains '€' at character 2, which iso8859-1 cannot represent"),
        (b"caf\xe9", "é", {}, "f is not UTF-8, and content has 'é': name the file's encoding"),
        (None, "a", {"encoding": "rot13"}, "Unknown text encoding 'rot13'"),
    ],
)
async def test_what_cannot_be_encoded_changes_nothing(
    call: Call, write: Put, ws: Path, old: bytes | None, content: str, options: dict[str, Any], says: str
) -> None:
    if old is not None:
        write("f", old)
    result = await call(file_path="f", content=content, **options)
    assert (result.error_code, result.error.startswith(says)) == ("ENCODING_ERROR", True)
    assert ((ws / "f").read_bytes() if old else (ws / "f").exists()) == (old or False)


async def test_the_etag_of_a_reading_is_the_key_to_a_writing(
    call: Call, caller: Callable[[Read], Call], write: Put
) -> None:
    path = write("f", b"\xef\xbb\xbfone\n")
    etag = (await caller(Read())(file_path="f")).metadata["etag"]
    first = await call(file_path="f", content="two\n", if_match=etag)
    assert (first.metadata["etag_before"], first.metadata["changed"]) == (etag, True)
    second = await call(file_path="f", content="three\n", if_match=etag)
    assert second.error_code == "STALE_FILE"
    assert (
        second.error
        == f"f changed since it was read (etag {etag} expected, {first.metadata['etag']} found). Read it again"
    )
    assert path.read_bytes() == b"\xef\xbb\xbftwo\n"
    assert (await call(file_path="f", content="3\n", if_match=first.metadata["etag"])).success


async def test_a_file_can_be_asked_to_be_new(call: Call, write: Put) -> None:
    assert (await call(file_path="f", content="x", if_none_match="*")).success
    refused = await call(file_path="f", content="y", if_none_match="*")
    assert (refused.error_code, "already exists" in refused.error) == ("STALE_FILE", True)
    assert (await call(file_path="g", content="y", if_match="b2:00")).error_code == "STALE_FILE"


async def test_the_same_content_touches_nothing(call: Call, write: Put) -> None:
    path = write("f", b"same\r\n")
    before = path.stat()
    result = await call(file_path="f", content="same\n")
    assert (result.output, result.metadata["changed"]) == (
        "Unchanged: f already has exactly this content (1 line, 6 bytes)",
        False,
    )
    after = path.stat()  # to read it may change the time of the last access
    assert (after.st_ino, after.st_mtime_ns, after.st_ctime_ns) == (
        before.st_ino,
        before.st_mtime_ns,
        before.st_ctime_ns,
    )


async def test_only_the_execute_bits_may_change(call: Call, write: Put) -> None:
    path = write("f", b"#!/bin/sh\n")
    result = await call(file_path="f", content="#!/bin/sh\n", executable=True)
    assert result.output == "Made f executable; its content is unchanged"
    assert path.stat().st_mode & 0o111
    await call(file_path="f", content="#!/bin/bash\n", executable=False)
    assert not path.stat().st_mode & 0o111


async def test_folders_are_not_made_where_that_is_not_wanted(call: Call, ws: Path) -> None:
    result = await call(file_path="a/f", content="x", create_dirs=False)
    assert (result.error_code, "create_dirs=true" in result.error) == ("FILE_NOT_FOUND", True)
    assert os.listdir(ws) == []


async def test_a_refused_content_makes_no_folders(call: Call, ws: Path) -> None:
    assert not (await call(file_path="a/b/f", content="\ud800")).success
    assert os.listdir(ws) == []


async def test_a_link_is_written_through_and_a_hard_link_said_to_be_broken(call: Call, write: Put, ws: Path) -> None:
    write("target", b"old")
    (ws / "link").symlink_to("target")
    os.link(ws / "target", ws / "other")
    result = await call(file_path="link", content="new")
    assert result.metadata["hardlink_broken"]
    assert ((ws / "link").is_symlink(), (ws / "target").read_bytes()) == (True, b"new")
    assert (ws / "other").read_bytes() == b"old"


@pytest.mark.parametrize(("folder", "file"), [(0o555, 0o644), (0o755, 0o444)])
async def test_what_may_not_be_written_is_refused(
    call: Call, write: Put, as_nobody: Any, folder: int, file: int
) -> None:
    path = write("d/f", b"old")
    as_nobody(path, path.parent)
    path.chmod(file)
    path.parent.chmod(folder)
    result = await call(file_path="d/f", content="new")
    dry = await call({"dry_run": True}, file_path="d/f", content="new")
    path.parent.chmod(0o755)
    assert (result.error_code, dry.error) == ("PERMISSION_DENIED", result.error)
    assert (path.read_bytes(), os.listdir(path.parent)) == (b"old", ["f"])


async def test_many_writers_of_one_file_leave_one_of_their_contents(call: Call, ws: Path) -> None:
    contents = {f"{number}\n" * 1000 for number in range(40)}
    results = await asyncio.gather(*(call(file_path="f", content=content) for content in contents))
    assert all(result.success for result in results), [result.error for result in results if not result.success]
    assert (ws / "f").read_text() in contents
    assert os.listdir(ws) == ["f"]


async def test_of_many_that_create_one_wins(call: Call, ws: Path) -> None:
    calls = (call(file_path="d/f", content=str(number), if_none_match="*") for number in range(20))
    results = await asyncio.gather(*calls)
    assert sum(result.success for result in results) == 1
    assert {result.error_code for result in results if not result.success} == {"STALE_FILE"}


async def test_a_cancelled_write_does_nothing_later(call: Call, ws: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reached, go_on = threading.Event(), threading.Event()
    real = writing.temporary_name

    def slow(name: str) -> str:
        reached.set()
        go_on.wait(10)
        return real(name)

    monkeypatch.setattr(writing, "temporary_name", slow)
    task = asyncio.ensure_future(call(file_path="f", content="x"))
    await asyncio.to_thread(reached.wait, 10)
    task.cancel()
    asyncio.get_running_loop().call_later(0.05, go_on.set)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert os.listdir(ws) == []


async def test_a_call_whose_time_is_over_changes_nothing(call: Call, ws: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forge_tools.tools.builtin.Deadline.is_over", True)
    result = await call(file_path="f", content="x")
    assert (result.error_code, os.listdir(ws)) == ("TIMEOUT", [])


async def test_a_large_file_is_replaced_without_being_kept_in_memory(call: Call, ws: Path) -> None:
    with open(ws / "f", "wb") as file:
        file.truncate(80 << 20)
    result = await call(file_path="f", content="small\n")
    assert result.output == "Wrote f (1 line, 6 bytes; was 83,886,080 bytes)"


async def test_making_a_file_executable_leaves_what_shares_its_inode_alone(call: Call, write: Put, ws: Path) -> None:
    shared = write("shared", b"same")
    shared.chmod(0o640)
    os.link(shared, ws / "f")

    await call(file_path="f", content="same", executable=True)

    assert shared.stat().st_mode & 0o777 == 0o640


async def test_folders_that_were_made_for_a_write_that_fails_are_taken_away_again(
    call: Call, ws: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (ws / "kept").mkdir()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr("forge_tools.sandbox.paths.files.os.fsync", full)
        result = await call(file_path="kept/a/b/c", content="x")
    assert result.error_code == "DISK_FULL"
    assert [str(path.relative_to(ws)) for path in ws.rglob("*")] == ["kept"]
    assert (await call(file_path="kept/a/b/c", content="x")).success


@pytest.mark.parametrize("path", [".", "new/", "new/.", "new/..", "f/."])
async def test_the_path_of_a_folder_is_refused(call: Call, ws: Path, path: str) -> None:
    (ws / "f").write_text("old")
    refused = await call(file_path=path, content="x")
    assert not refused.success
    assert "is a directory" in str(refused.error) or "goes through a file" in str(refused.error)
    assert [*os.listdir(ws), (ws / "f").read_text()] == ["f", "old"]
