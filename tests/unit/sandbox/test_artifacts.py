"""Artifacts in a folder: whole or not there, each session its own, within quota and time; and the files bytes pass through."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_tools.artifacts.parts import MAX_PACKED_BYTES, PART_BYTES, pack, write_at
from forge_tools.errors import SandboxError
from forge_tools.model import ExecutionContext, PageWish
from forge_tools.sandbox.artifacts import FolderArtifacts, keep_text
from forge_tools.sandbox.reach import REACH, Reach
from forge_tools.sandbox.spools import RECENT_FILES, Gathered, Recent, Spool, fill
from tests.descriptors import descriptors
from tests.waiting import within

BYTES = random.Random(2).randbytes(2 * PART_BYTES + 700_000)
ROOT = Path(__file__).parents[3]

SLOW_PUT = """
import asyncio, sys
from pathlib import Path
from forge_tools.model import ExecutionContext
from forge_tools.sandbox import artifacts

async def chunks():
    for number in range(4000):
        print(number, flush=True)
        yield number.to_bytes(4, "big") * 4096

kept = artifacts.FolderArtifacts(Path(sys.argv[1]), max_bytes=1 << 30)
asyncio.run(kept.put(chunks(), ExecutionContext(working_dir=".")))
"""


async def chunks(data: bytes, size: int = 100_000) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


def session(name: str | None) -> ExecutionContext:
    return ExecutionContext(working_dir=".", session_id=name)


async def read(artifacts: FolderArtifacts, handle: str, of: str | None = "s") -> bytes:
    with open(await artifacts.open(handle, session(of)), "rb") as file:
        return file.read()


async def put(artifacts: FolderArtifacts, data: bytes, of: str | None = "s") -> str:
    return (await artifacts.put(chunks(data), session(of))).handle


def stored(folder: Path) -> list[Path]:
    """The files of artifacts that `folder` holds."""
    return list((folder / "kept/files").iterdir())


def damage(folder: Path, data: bytes) -> None:
    """Overwrite the second part of the only artifact."""
    [only] = stored(folder)
    with only.open("r+b") as file:
        write_at(file.fileno(), data, MAX_PACKED_BYTES)


@pytest.fixture
def kept(tmp_path: Path) -> FolderArtifacts:
    return FolderArtifacts(tmp_path / "kept")


async def test_the_ids_of_a_session_are_told_by_their_beginning(kept: FolderArtifacts, tmp_path: Path) -> None:
    first, second = [(await put(kept, data)).removeprefix("artifact://") for data in (b"one", b"two")]
    await put(kept, b"another's", of="t")
    assert sorted(await kept.ids("s", "", 9)) == sorted([first, second])
    assert await kept.ids("s", first[:8], 9) == [first]
    assert len(await kept.ids("s", "", 1)) == 1
    for strange in ("../", "*", "[a-f]", "nobody"):
        assert await kept.ids("s", strange, 9) == []
    assert await FolderArtifacts(tmp_path / "kept", ttl=-1.0).ids("s", "", 9) == []


@pytest.mark.parametrize("data", [b"", b"x", BYTES, bytes(3_000_000)])
async def test_what_was_put_is_read_byte_for_byte(kept: FolderArtifacts, data: bytes) -> None:
    assert await read(kept, await put(kept, data)) == data


async def test_the_same_bytes_are_kept_once(kept: FolderArtifacts, tmp_path: Path) -> None:
    handles = await asyncio.gather(*(put(kept, BYTES, of) for of in ("s", "t", None, "s")))
    assert len(set(handles)) == 1
    assert [f"artifact://{only.name}" for only in stored(tmp_path)] == handles[:1]
    for of in ("s", "t", None):
        assert await read(kept, handles[0], of) == BYTES


async def test_who_reads_while_the_same_is_kept_again_reads_it(kept: FolderArtifacts, tmp_path: Path) -> None:
    handle = await put(kept, BYTES[:1000])
    keeping = asyncio.gather(*(put(kept, BYTES[:1000]) for _ in range(100)))
    time_left = within(60, "keeping it does not end")
    while not keeping.done() and next(time_left):
        afresh = FolderArtifacts(tmp_path / "kept")  # has no copy of its own yet
        assert await read(afresh, handle) == BYTES[:1000]
    await keeping


@pytest.mark.parametrize("other", [None, "", "t", "../s", "s/", "\x00\ud800", "s" * 9999])
async def test_a_session_reads_only_what_it_kept(kept: FolderArtifacts, other: str | None) -> None:
    handle = await put(kept, BYTES)
    with pytest.raises(SandboxError, match="This session has no artifact"):
        await read(kept, handle, other)
    await put(kept, BYTES, other)
    assert await read(kept, handle, other) == BYTES


async def test_what_is_larger_than_an_artifact_may_be_is_refused(tmp_path: Path) -> None:
    small = FolderArtifacts(tmp_path / "kept", max_bytes=1000)
    assert await read(small, await put(small, BYTES[:1000])) == BYTES[:1000]
    with pytest.raises(SandboxError, match="1,000 bytes"):
        await put(small, BYTES[:1001])


async def test_what_is_kept_is_compressed(kept: FolderArtifacts, tmp_path: Path) -> None:
    await put(kept, b"the same line\n" * 100_000)
    [only] = stored(tmp_path)
    assert only.stat().st_blocks * 512 < 1_400_000 / 20


@pytest.mark.parametrize("char", ["x", "\U0001f600", "\udc80"])
async def test_an_output_over_the_limit_is_kept_in_part_whatever_its_characters_are(char: str, tmp_path: Path) -> None:
    kept = FolderArtifacts(tmp_path / "kept", max_bytes=1200)
    token = REACH.set(Reach(artifacts=kept))
    try:
        facts = [await keep_text(char * length, session("s"), 30) for length in (200, 300, 1201)]
    finally:
        REACH.reset(token)

    assert ["artifact_error" in one for one in facts] == [False] * 3
    assert [len(await read(kept, one["artifact"])) <= 1200 for one in facts] == [True] * 3
    assert "artifact_holds" in facts[2]


async def test_an_output_that_no_quota_holds_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match="2,500 bytes"):
        await put(FolderArtifacts(tmp_path / "kept", quota=2500), BYTES[:2501])


async def test_a_session_over_its_quota_loses_what_it_kept_first(tmp_path: Path) -> None:
    small = FolderArtifacts(tmp_path / "kept", quota=2500)
    other = await put(small, BYTES[:1000], "other")
    handles = [await put(small, BYTES[number : number + 1000]) for number in range(4)]
    for gone in handles[:2]:
        with pytest.raises(SandboxError, match="no artifact"):
            await read(small, gone)
    assert await read(small, other, "other") == BYTES[:1000]
    assert len(await read(small, handles[2]) + await read(small, handles[3])) == 2000
    assert len(stored(tmp_path)) == 3


async def test_what_is_kept_last_stays_whatever_the_clock_says(tmp_path: Path) -> None:
    small = FolderArtifacts(tmp_path / "kept", quota=1500)
    await put(small, BYTES[:1000])
    [mark] = (tmp_path / "kept/sessions").glob("*/*")
    os.utime(mark, (time.time() + 60, time.time() + 60))
    assert len(await read(small, await put(small, BYTES[1:1001]))) == 1000
    assert len(stored(tmp_path)) == 1


async def test_what_expired_is_unknown_then_gone_and_may_be_kept_again(tmp_path: Path) -> None:
    kept = FolderArtifacts(tmp_path / "kept", ttl=60.0)
    handle = await put(kept, BYTES)
    [only] = stored(tmp_path)
    os.utime(only, (0, time.time() - 61))
    with pytest.raises(SandboxError, match="expired"):
        await read(kept, handle)
    assert kept.purge() == 1
    assert list((tmp_path / "kept/sessions").glob("*/*")) == []
    assert await read(kept, await put(kept, BYTES)) == BYTES


@pytest.mark.parametrize("data", [b"no zlib", zlib.compress(b"other"), pack(bytes(PART_BYTES))])
async def test_damaged_files_are_refused_and_kept_again(kept: FolderArtifacts, tmp_path: Path, data: bytes) -> None:
    handle = await put(kept, BYTES)
    damage(tmp_path, data)
    with pytest.raises(SandboxError, match=f"{handle} is damaged"):
        await read(kept, handle)
    assert await read(kept, await put(kept, BYTES)) == BYTES


async def test_faces_find_read_and_page_what_a_session_kept(kept: FolderArtifacts, tmp_path: Path) -> None:
    text = b"".join(b"%06d\n" % number for number in range(400_000))
    handle = await put(kept, text)
    assert await kept.find(handle.removeprefix("artifact://"), "another") is None
    found = await kept.find(handle.removeprefix("artifact://"), "s")
    assert found is not None
    assert b"".join([chunk async for chunk in kept.read(found)]) == text
    page = await kept.page(found, PageWish(offset=200_001, limit=2))
    assert (page.data, page.next) == (b"200000\n200001\n", {"offset": 200_003})
    damage(tmp_path, zlib.compress(b"other"))
    with pytest.raises(SandboxError, match=f"{handle} is damaged"):
        await kept.page(found, PageWish(byte=PART_BYTES + 5))


async def test_bytes_are_unpacked_once_for_several_readings(kept: FolderArtifacts, tmp_path: Path) -> None:
    handle = await put(kept, BYTES)
    assert await read(kept, handle) == BYTES
    damage(tmp_path, b"not looked at again")
    assert await read(kept, handle) == BYTES
    with pytest.raises(SandboxError, match="no artifact"):
        await read(kept, handle, "another session")


async def test_a_read_that_is_cancelled_leaves_no_file_open(
    kept: FolderArtifacts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    handle = await put(kept, bytes(8 << 20))
    before = descriptors(tmp_path)
    for _ in range(20):
        opening = asyncio.create_task(kept.open(handle, session("s")))
        await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
    await asyncio.get_running_loop().shutdown_default_executor()
    assert descriptors(tmp_path) <= before


def test_who_is_killed_while_he_puts_leaves_nothing_that_anybody_sees(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SLOW_PUT, str(tmp_path / "kept")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as putter:
        assert putter.stdout is not None
        assert [putter.stdout.readline() for _ in range(100)][-1] == "99\n"
        putter.send_signal(signal.SIGKILL)
    [leftover] = stored(tmp_path)
    assert list((tmp_path / "kept/sessions").iterdir()) == []
    kept = FolderArtifacts(tmp_path / "kept")
    kept.purge()
    assert leftover.exists(), "it might still be on its way"
    os.utime(leftover, (0, time.time() - 3700))
    kept.purge()
    assert stored(tmp_path) == []


def test_nobody_else_may_look_into_the_folder(kept: FolderArtifacts, tmp_path: Path) -> None:
    asyncio.run(put(kept, BYTES))
    folders = [path for path in (tmp_path / "kept").rglob("*") if path.is_dir()]
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "kept", *folders)} == {0o700}


@given(st.lists(st.binary(max_size=400), max_size=12), st.integers(300, 700))
def test_of_too_much_a_spool_keeps_the_first_and_the_last(parts: list[bytes], limit: int) -> None:
    everything = b"".join(parts)

    async def spooled() -> bytes:
        spool = Spool(limit)
        for part in parts:
            spool.write(part)
        assert spool.size == len(everything)
        return b"".join([chunk async for chunk in spool.chunks()])

    shown = asyncio.run(spooled())
    if len(everything) <= limit:
        assert shown == everything
        return
    head, _, rest = shown.rpartition(b"[... ")
    number, _, tail = rest.partition(b" bytes left out: the limit for an artifact is %d ...]\n" % limit)
    assert len(shown) <= limit
    assert everything.startswith(head)
    assert everything.endswith(tail)
    assert int(number.replace(b",", b"")) == len(everything) - len(head) - len(tail)


async def test_a_spool_cuts_between_lines_and_never_inside_a_character() -> None:
    for text in ("".join(f"{number}\n" for number in range(9000)), "é漢\U0001f600" * 9000):
        spool = Spool(10_000)
        spool.write(text.encode())
        shown = b"".join([chunk async for chunk in spool.chunks()]).decode()
        head, _, tail = shown.partition("[...")
        assert text.startswith(head)
        assert text.endswith(tail.partition("...]\n")[2])


async def test_a_file_that_was_read_lately_is_read_again_from_where_it_was(tmp_path: Path) -> None:
    recent = Recent(2 * len(BYTES) + 100_000)
    for name in ("a", "b", "c"):
        gathered = await fill(Gathered(), chunks(name.encode() + BYTES), 1 << 30)
        fd = gathered.take(5.0)
        recent.add(name, fd)
        os.close(fd)
    assert recent.open("a") is None, "there is room for two"
    first, second = recent.open("c"), recent.open("c")
    assert first is not None
    assert second is not None
    assert os.read(first, 5) == os.read(second, 5) == b"c" + BYTES[:4]
    assert os.fstat(first).st_mtime == 5.0
    for fd in (first, second):
        os.close(fd)


async def test_no_more_than_so_many_files_are_kept_and_none_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    recent, gathered = Recent(), await fill(Gathered(), chunks(b"x"), 1)
    for number in range(RECENT_FILES * 2):
        recent.add(str(number), gathered.fd)
    gathered.close()
    assert len(descriptors(tmp_path)) == RECENT_FILES
    del recent
    assert descriptors(tmp_path) == set()


async def test_a_file_that_cannot_be_kept_for_later_is_fetched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> int:
        raise OSError(24, "Too many open files")

    recent, gathered = Recent(2 * len(BYTES) + 100_000), await fill(Gathered(), chunks(BYTES), 1 << 30)
    monkeypatch.setattr("forge_tools.sandbox.spools.os.dup", refuse)
    recent.add("a", gathered.fd)
    gathered.close()
    assert recent.open("a") is None


async def test_calls_that_evict_at_the_same_time_are_not_in_each_others_way(tmp_path: Path) -> None:
    several = [FolderArtifacts(tmp_path / "kept", quota=3000) for _ in range(4)]

    async def keep(seed: int) -> None:
        for number in range(20):
            await put(several[number % 4], bytes([seed * number % 12]) * 1000)

    await asyncio.gather(*map(keep, range(16)))
    held = sum(path.stat().st_size > 0 for path in (tmp_path / "kept/sessions").glob("*/*"))
    assert held <= 3
