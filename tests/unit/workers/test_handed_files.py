"""The files that a call in a child hands over: which the engine takes, and that none is left when the call ends."""

import asyncio
import errno
import os
import re
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

from forge_tools.artifacts.parts import PART_BYTES, Draft
from forge_tools.config import Settings
from forge_tools.storage import Store
from tests.unit.workers.child_bench import CLAIM, ID, Bench, Speaker
from tests.waiting import reached
from workers.artifacts import ArtifactDesk
from workers.lanes.frames import MOST_FILES

BYTES = os.urandom(2 * PART_BYTES + 5)
ID_OF_BYTES = blake2b(BYTES, digest_size=16).hexdigest()


@pytest.fixture(autouse=True)
def tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this test's temporary files are, and no other's."""
    (place := tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


@pytest.fixture
async def calling(store: Store, bench: Bench, child: Speaker, tmp_path: Path) -> Speaker:
    """A child that runs a call."""
    bench.artifacts = ArtifactDesk(Settings(artifact_dir=tmp_path / "artifacts")), store
    bench.lane.run([replace(CLAIM, context='{"working_dir": ".", "session_id": "s"}')])
    await child.hear()
    return child


def keep(child: Speaker, *files: int, has_file: bool = True) -> None:
    artifact = {"want": "keep", "media_type": "image/png"}
    child.say("asked", *files, number=1, id=ID, attempt=1, artifact=artifact, has_file=has_file)


async def answer(child: Speaker, *files: int) -> dict[str, Any]:
    keep(child, *files)
    return (await child.hear())["artifact"]


def open_in(tmp: Path) -> int:
    """How many files without a name this process has open there."""
    found = 0
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # that of the listing itself is closed by now
            found += re.match(rf"{tmp}/.* \(deleted\)$", str(entry.readlink())) is not None
    return found


@pytest.fixture
def file(tmp: Path) -> Iterator[int]:
    """The child's descriptor of a file with the bytes, at its end as after writing."""
    with tempfile.TemporaryFile(buffering=0) as opened:
        opened.write(BYTES)
        yield opened.fileno()


async def test_a_file_is_kept_under_what_was_read_wherever_the_child_stands_in_it(
    calling: Speaker, store: Store, file: int
) -> None:
    assert (await answer(calling, file))["id"] == ID_OF_BYTES
    assert os.lseek(file, 0, os.SEEK_CUR) == len(BYTES), "nor does the engine move it"
    found = await store.artifacts.find(ID_OF_BYTES, "s")
    assert found is not None
    assert b"".join([chunk async for chunk in store.artifacts.read(found)]) == BYTES


def _pipe(_: Path) -> int:
    return os.pipe()[0]


def _named_pipe(tmp: Path) -> int:
    os.mkfifo(tmp / "pipe")
    return os.open(tmp / "pipe", os.O_RDWR)


def _of_another_file_system(_: Path) -> int:
    fd = os.memfd_create("secret")
    os.write(fd, b"secret")
    return fd


def _without_the_right_to_read(tmp: Path) -> int:
    (tmp / "file").write_bytes(b"secret")
    return os.open(tmp / "file", os.O_WRONLY)


def _merely_a_path(tmp: Path) -> int:
    (tmp / "file").write_bytes(b"secret")
    return os.open(tmp / "file", os.O_PATH)


@pytest.mark.parametrize(
    "open_",
    [
        _pipe,
        _named_pipe,
        _of_another_file_system,
        _without_the_right_to_read,
        _merely_a_path,
        lambda _: os.open("/dev/zero", os.O_RDONLY),
        lambda _: os.open("/proc/self/environ", os.O_RDONLY),
        lambda tmp: os.open(tmp, os.O_RDONLY),
        lambda _: socket.socket(socket.AF_UNIX).detach(),
    ],
)
async def test_what_cannot_be_read_or_might_never_answer_is_refused(
    calling: Speaker, tmp: Path, open_: Callable[[Path], int]
) -> None:
    fd = open_(tmp)
    assert re.search("not in a file below|cannot be stored on this host", (await answer(calling, fd))["error"])
    os.close(fd)


async def test_a_file_of_a_terabyte_of_holes_is_refused_at_once(calling: Speaker, file: int) -> None:
    os.ftruncate(file, 1 << 40)
    assert "The output is larger than" in (await answer(calling, file))["error"]


async def test_a_file_that_shrinks_while_it_is_copied_is_kept_as_it_was_read(
    calling: Speaker, file: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = Draft.add

    def cut(self: Draft, chunk: bytes) -> None:
        add(self, chunk)
        os.ftruncate(file, PART_BYTES + 1)

    monkeypatch.setattr(Draft, "add", cut)
    assert (await answer(calling, file))["id"] == blake2b(BYTES[: PART_BYTES + 1], digest_size=16).hexdigest()


async def test_no_room_for_another_copy_is_an_answer_with_the_reason(
    calling: Speaker, file: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> int:
        raise OSError(errno.ENOSPC, "")

    monkeypatch.setattr(os, "pwrite", full)
    assert "on this host: No space left on device" in (await answer(calling, file))["error"]
    monkeypatch.undo()
    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    assert "on this host: No space left on device" in (await answer(calling, file))["error"]
    monkeypatch.undo()
    assert (await answer(calling, file))["id"] == ID_OF_BYTES


async def test_a_request_without_its_file_is_refused(calling: Speaker) -> None:
    assert "Malformed request" in (await answer(calling))["error"]


async def test_of_several_files_with_one_frame_one_is_taken(calling: Speaker, file: int, tmp: Path) -> None:
    before = open_in(tmp)
    assert (await answer(calling, file, file, file))["id"] == ID_OF_BYTES
    await reached(lambda: open_in(tmp) == before)


async def test_a_child_that_sends_files_without_requests_is_ended(
    bench: Bench, calling: Speaker, file: int, tmp: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = open_in(tmp)
    for _ in range(MOST_FILES + 1):
        calling.say("answering", file)
    await bench.until(lambda: bench.outcomes)
    assert f"more than {MOST_FILES} files without a request" in caplog.text
    await reached(lambda: open_in(tmp) == before)


async def test_a_file_left_by_one_call_is_not_the_next_ones(
    bench: Bench, calling: Speaker, file: int, tmp: Path
) -> None:
    before = open_in(tmp)
    calling.say("answering", file)
    calling.finish(CLAIM)
    await bench.until(lambda: bench.outcomes)
    bench.lane.run([replace(CLAIM, context='{"working_dir": ".", "session_id": "t"}')])
    await calling.hear()
    assert "Malformed request" in (await answer(calling))["error"]
    await reached(lambda: open_in(tmp) == before)


@pytest.mark.parametrize("end", ["returns", "is cancelled", "dies"])
async def test_what_is_not_kept_yet_is_given_up_when_a_call(
    bench: Bench, calling: Speaker, store: Store, file: int, tmp: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    before, is_copying, may_go_on = open_in(tmp), asyncio.Event(), asyncio.Event()
    begin = store.artifacts.begin

    async def slow(*arguments: Any) -> Any:
        is_copying.set()
        await may_go_on.wait()
        return await begin(*arguments)

    monkeypatch.setattr(store.artifacts, "begin", slow)
    keep(calling, file)
    await is_copying.wait()
    if end == "returns":
        calling.finish(CLAIM)
    elif end == "dies":
        calling.die()
    else:
        bench.lane.cancel(ID, CLAIM.attempt)
    await bench.until(lambda: bench.outcomes and not bench.lane._steps)  # noqa: SLF001  nobody outside sees them end
    may_go_on.set()
    await reached(lambda: open_in(tmp) == before)
    assert await store.artifacts.find(ID_OF_BYTES, "s") is None
