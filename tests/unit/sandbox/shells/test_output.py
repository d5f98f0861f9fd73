"""The output of shells: kept as head and tail, read by positions while it grows."""

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from forge_tools.sandbox.shells import supervisor
from forge_tools.sandbox.shells.folder import Output, Piece
from forge_tools.sandbox.shells.supervisor import Segments
from tests.shell_hosts import has_ended, run_shell, shell_host
from tests.waiting import wait_until, within


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)


def test_what_is_written_in_parts_is_read_as_one(folder: int) -> None:
    written, output = Segments(folder, 80), Output(folder)
    assert (output.size, output.changed_at, output.read(0, 10)) == (0, None, [])
    for part in (b"abc", b"", b"defghijkl", b"mnopqrstuvwxyz"):
        written.write(part)
    assert output.read(0, 100) == [Piece(0, b"abcdefghijklmnopqrstuvwxyz")]
    assert output.read(9, 3) == [Piece(9, b"jkl")]
    assert output.read(10, 100) == [Piece(10, b"klmnopqrstuvwxyz")]
    assert (output.read(26, 100), output.read(99, 100)) == ([], [])
    assert output.size == written.size == 26
    assert output.changed_at is not None


def test_of_too_much_the_head_and_the_tail_are_kept(folder: int) -> None:
    written, output = Segments(folder, 80), Output(folder)
    data = bytes(range(250)) * 2
    written.write(data)
    assert written.size == output.size == 500
    assert output.read(0, 1000) == [Piece(0, data[:10]), Piece(430, data[430:])]
    assert output.read(5, 10) == [Piece(5, data[5:10]), Piece(430, data[430:435])]
    assert output.read(100, 10) == [Piece(430, data[430:440])]
    assert len(os.listdir(folder)) == 8


def test_a_disk_that_is_full_costs_only_what_finds_no_room(folder: int, monkeypatch: pytest.MonkeyPatch) -> None:
    written, output = Segments(folder, 80), Output(folder)
    written.write(b"before")
    write = os.write
    monkeypatch.setattr(supervisor.os, "write", _full)
    written.write(b"nowhere")
    monkeypatch.setattr(supervisor.os, "write", write)
    written.write(b"after")
    assert written.size == output.size == 18
    assert output.read(0, 100) == [Piece(0, b"before"), Piece(13, b"after")]


def test_what_was_kept_outlasts_a_disk_that_is_full(folder: int, monkeypatch: pytest.MonkeyPatch) -> None:
    written, output = Segments(folder, 80), Output(folder)
    written.write(b"0123456789" * 3)
    with monkeypatch.context() as patch:
        patch.setattr(supervisor.os, "write", _full)
        for _ in range(20):
            written.write(b"nowhere")
    assert len(os.listdir(folder)) == 3
    assert written.size == 170
    written.write(b"after")
    assert output.read(0, 100) == [Piece(0, b"0123456789" * 3), Piece(170, b"after")]


def test_what_somebody_put_in_the_place_of_a_file_is_not_read(folder: int, tmp_path: Path) -> None:
    written, output = Segments(folder, 80), Output(folder)
    written.write(b"x" * 35)
    (tmp_path / "secret").write_text("secret")
    first, second, third, last = sorted(tmp_path.glob("*.out"))
    first.unlink()
    second.unlink()
    second.symlink_to(tmp_path / "secret")
    third.unlink()
    os.mkfifo(third)
    (tmp_path / "²³.out").touch()
    (tmp_path / "-5.out").write_text("secret")
    assert output.read(0, 100) == [Piece(30, b"x" * 5)]
    last.unlink()
    last.mkdir()
    assert (output.read(0, 100), output.size) == ([], 30)


def test_a_reader_meets_nothing_wrong_while_the_writer_is_fast(folder: int) -> None:
    """The stream counts itself, so that each byte tells its own position."""
    written, output = Segments(folder, 1 << 16), Output(folder)
    stream = b"".join(b"%07d\n" % (n * 8) for n in range(1 << 17))
    writer = threading.Thread(
        target=lambda: [written.write(stream[at : at + 3000]) for at in range(0, len(stream), 3000)]
    )
    writer.start()
    position = gaps = 0
    time_left = within(60, "the stream is not read to its end")
    while next(time_left) and (writer.is_alive() or position < len(stream)):
        for piece in output.read(position, 5000):
            assert piece.start >= position
            assert piece.data == stream[piece.start : piece.end]
            gaps += piece.start > position
            position = piece.end
    writer.join()
    assert position == len(stream) == output.size


def test_ten_megabytes_a_second_do_not_wait_for_their_reader(tmp_path: Path) -> None:
    script = "for i in 1 2 3 4 5 6; do head -c 1000000 /dev/zero | tr '\\0' $i; done"
    with shell_host(tmp_path / "shells") as folder, run_shell(folder, script, spool_bytes=1 << 20) as shell:
        wait_until(lambda: has_ended(shell))
        head, tail = shell.output.read(0, 10_000_000)
        assert shell.facts()["size"] == shell.size == 6_000_000
    assert (head.start, set(head.data)) == (0, set(b"1"))
    assert (tail.end, set(tail.data)) == (6_000_000, set(b"6"))
    assert 7 << 17 >= len(tail.data) >= 6 << 17


def _full(*_: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
