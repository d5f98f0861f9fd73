"""Read on real files of every encoding, shape and size."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from forge_tools.model import ToolResult
from forge_tools.sandbox.paths.workspace import Workspace
from forge_tools.tools.file import read as reading
from forge_tools.tools.file.read import Read
from tests.descriptors import descriptors
from tests.waiting import reached, within

Call = Callable[..., Awaitable[ToolResult]]
Write = Callable[[str, bytes], Path]


@pytest.fixture
def read(caller: Callable[[Read], Call]) -> Call:
    return caller(Read())


async def test_lines_come_numbered_from_one(read: Call, write: Write) -> None:
    write("a.txt", b"one\ntwo\nthree")
    result = await read(file_path="a.txt")
    assert result.output == "     1\tone\n     2\ttwo\n     3\tthree"
    assert (result.metadata["lines"], result.metadata["eol"], result.metadata["truncated"]) == (3, "lf", False)


async def test_raw_text_is_the_lines_joined(read: Call, write: Write) -> None:
    write("a.txt", b"one\r\ntwo\r\nthree\r\n")
    result = await read(path="a.txt", line_numbers=False, offset=2)
    assert result.output == "two\nthree"
    assert result.metadata["eol"] == "crlf"


@pytest.mark.parametrize(
    ("content", "text", "encoding"),
    [
        (b"\xef\xbb\xbfa\r\nb", "a\nb", "utf-8"),
        ("hé\nwö\n".encode("utf-16"), "hé\nwö", "utf-16-le"),
        (b"caf\xe9\nna\xefve", "café\nnaïve", "unknown-8bit"),
        ("ok é ü ö\nbad \udcff\n".encode("utf-8", "surrogateescape"), "ok é ü ö\nbad \ufffd", "utf-8"),
        ("\u2028a\x85b\x0bc".encode(), "\u2028a\x85b\\x0bc", "utf-8"),
        (b"\xed\xa0\x80\n", "í\xa0\x80", "unknown-8bit"),
        (b"a\rb\rc", "a\\rb\\rc", "utf-8"),
        (b"\n\n", "\n", "utf-8"),
    ],
)
async def test_every_encoding_is_shown_as_valid_text(
    read: Call, write: Write, content: bytes, text: str, encoding: str
) -> None:
    write("f", content)
    result = await read(file_path="f", line_numbers=False)
    assert (result.output, result.metadata["encoding"]) == (text, encoding)


async def test_the_caller_may_name_the_encoding(read: Call, write: Write) -> None:
    write("f", "日本\n".encode("shift_jis"))
    assert (await read(file_path="f", encoding="shift_jis", line_numbers=False)).output == "日本"
    write("g", "hi\n".encode("utf-16-le"))
    assert (await read(file_path="g")).error_code == "BINARY_FILE"
    assert (await read(file_path="g", encoding="utf-16-le", line_numbers=False)).output == "hi"
    assert "Unknown text encoding 'rot13'" in (await read(file_path="g", encoding="rot13")).error


async def test_an_empty_file_says_so(read: Call, write: Write) -> None:
    write("empty", b"")
    result = await read(file_path="empty")
    assert (result.output, result.metadata["lines"]) == ("(empty file)", 0)


async def test_a_binary_file_is_refused_by_kind_and_size(read: Call, write: Write) -> None:
    write("all.zip", b"PK\x03\x04\r\n\x1a\n\0\0\0" + b"\0" * 49_000)
    result = await read(file_path="all.zip")
    assert result.error == "all.zip is binary (ZIP archive, 49 kB); text tools cannot read it"
    assert result.error_code == "BINARY_FILE"
    assert result.error_details["head"].startswith("50 4b 03 04")


async def test_a_nul_after_the_sample_is_shown_as_an_escape(read: Call, write: Write) -> None:
    write("f", b"a\n" * 4096 + b"x\0y\n")
    assert (await read(file_path="f", tail=1, line_numbers=False)).output == "x\\x00y"


@pytest.mark.parametrize("content", [b"a\nb\nc", b"a\nb\nc\n"])
async def test_the_tail_is_the_last_lines_with_or_without_a_final_newline(
    read: Call, write: Write, content: bytes
) -> None:
    write("f", content)
    assert (await read(file_path="f", tail=1)).output == "     3\tc"
    assert (await read(file_path="f", tail=9)).output.count("\n") == 2


async def test_pages_follow_one_another_to_the_end(read: Call, write: Write) -> None:
    lines = [f"line {number} " + "é" * (number % 70) for number in range(1, 400)]
    write("f", "\n".join(lines).encode())
    got, arguments = [], {}
    time_left = within(60, "the pages do not end")
    while arguments is not None and next(time_left):
        result = await read({"max_output_size": 1500}, file_path="f", limit=50, line_numbers=False, **arguments)
        assert len(result.output) <= 1500
        got += result.output.split("\n")
        arguments = result.metadata.get("next")
    assert got == lines


async def test_a_one_line_file_is_paged_by_column(read: Call, write: Write) -> None:
    text = "".join(chr(0x4E00 + number % 5000) for number in range(9000))
    write("f", text.encode())
    got, arguments = "", {}
    time_left = within(60, "the pages do not end")
    while arguments is not None and next(time_left):
        result = await read(file_path="f", line_numbers=False, **arguments)
        got += result.output.partition("… [+")[0]
        arguments = result.metadata.get("next")
    assert got == text


async def test_a_long_line_says_how_to_see_the_rest(read: Call, write: Write) -> None:
    write("f", b"x" * 20_234 + b"\nnext\n")
    result = await read(file_path="f")
    assert "… [+18,234 chars; use column=2000]\n     2\tnext" in result.output
    assert result.metadata["truncated"]


async def test_what_is_cut_is_said_at_the_end(read: Call, write: Write) -> None:
    write("f", b"x\n" * 5000)
    result = await read(file_path="f")
    assert result.output.endswith("[lines 1-2,000 of 5,000; continue with offset=2001]")
    assert result.metadata["next"] == {"offset": 2001}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"offset": 4}, "offset 4 is past the end of f (3 lines)"),
        ({"offset": 2**63}, f"offset {2**63} is past the end of f (3 lines)"),
        ({"offset": 1, "tail": 1}, "Pass offset or tail, not both"),
        ({"offset": 0}, "Value for offset is below minimum: 1"),
        ({"offset": -1}, "Value for offset is below minimum: 1"),
        ({"limit": 0}, "Value for limit is below minimum: 1"),
        ({"column": 9}, "column 9 is past the end of line 1 (3 characters)"),
    ],
)
async def test_what_does_not_fit_the_file_is_refused(read: Call, write: Write, arguments: dict, says: str) -> None:
    write("f", b"one\ntwo\nthree\n")
    result = await read(file_path="f", **arguments)
    assert (result.error, result.error_code) == (says, "VALIDATION_ERROR")


async def test_the_last_line_without_newline_can_be_read_alone(read: Call, write: Write) -> None:
    write("f", b"one\ntwo")
    assert (await read(file_path="f", offset=2, limit=1)).output == "     2\ttwo"


@pytest.fixture
def sparse(ws: Path) -> Path:
    """200 MB: a little text, a hole, a little text."""
    with open(ws / "sparse", "wb") as file:
        file.write(b"first\n" * 2000)
        file.seek(200 << 20)
        file.write(b"\nlast but one\nlast\n")
    return ws / "sparse"


async def test_the_tail_of_200_mb_is_found_without_reading_them(read: Call, sparse: Path) -> None:
    started = time.process_time()
    result = await read(file_path="sparse", tail=2)
    assert time.process_time() - started < 0.5
    assert (result.output, result.metadata["lines"]) == ("last but one\nlast", None)


async def test_a_line_of_200_mb_is_cut_with_bounded_memory(read: Call, sparse: Path) -> None:
    result = await read(file_path="sparse", offset=2001, limit=1, line_numbers=False)
    assert result.output.startswith("\\x00\\x00")
    assert result.metadata["next"] == {"offset": 2001, "column": 2000}
    assert len(result.output) < 10_000


async def test_without_time_it_returns_what_it_has(read: Call, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    write("f", b"line\n" * 200_000)
    monkeypatch.setattr(reading, "SURVEYED_BYTES", 0)
    monkeypatch.setattr("forge_tools.tools.builtin.Deadline.is_over", True)
    result = await read(file_path="f", limit=20_000, offset=100_000)
    assert (result.success, result.metadata["partial"]) == (True, True)
    assert "stopped early" in result.output


async def test_a_cancelled_read_lets_go_of_the_file(read: Call, sparse: Path) -> None:
    call = asyncio.ensure_future(read(file_path="sparse", offset=9_000_000))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await reached(lambda: not descriptors(sparse))


async def test_a_file_that_shrinks_or_goes_while_it_is_read_is_no_error(ws: Path, write: Write) -> None:
    path = write("f", b"line\n" * 1000)
    workspace = Workspace(ws)
    with workspace.open_file("f") as file:
        path.write_bytes(b"short\n")
        path.unlink()
        assert os.pread(file.fd, 100, 0) == b"short\n"


async def test_no_path_leads_out(read: Call, ws: Path) -> None:
    (ws / "link").symlink_to("../secret")
    for path in ("../secret", "link", str(ws.parent / "secret"), "/proc/self/root/etc/passwd"):
        result = await read(file_path=path)
        assert result.error == f"Path is outside the workspace: {path}"
        assert result.error_code == "PATH_OUTSIDE_WORKSPACE"


@pytest.mark.parametrize("name", ["-n", "new\nline", "bad\udcff", "ü" * 127])
async def test_odd_names_are_ordinary_files(read: Call, write: Write, name: str) -> None:
    write(name, b"odd\n")
    assert (await read(file_path=name)).output == "     1\todd"


async def test_a_folder_and_a_fifo_are_refused_at_once(read: Call, ws: Path) -> None:
    (ws / "folder").mkdir()
    os.mkfifo(ws / "fifo")
    assert (await read(file_path="folder")).error_code == "NOT_A_FILE"
    assert (await read(file_path="fifo")).error_code == "NOT_A_FILE"


async def test_the_etag_is_that_of_the_bytes(read: Call, write: Write) -> None:
    write("f", b"\xef\xbb\xbfsame\n")
    first = (await read(file_path="f")).metadata["etag"]
    assert (await read(file_path="f", limit=1, tail=1)).metadata["etag"] == first
    write("f", b"same\n")
    assert (await read(file_path="f")).metadata["etag"] != first


async def test_dry_run_reads(read: Call, write: Write) -> None:
    write("f", b"x\n")
    assert (await read({"dry_run": True}, file_path="f")).output == "[Dry Run]      1\tx"


@pytest.mark.parametrize("limit", [0, 1, 64, 130, 200, 1000])
async def test_a_small_budget_still_shows_something_and_the_way_on(read: Call, write: Write, limit: int) -> None:
    write("f", b"some words in a line\n" * 100)
    result = await read({"max_output_size": limit}, file_path="f")
    assert result.success
    assert result.metadata["truncated"]
    assert result.metadata["next"]


async def test_an_unknown_parameter_is_refused(read: Call, write: Write) -> None:
    assert (await read(filepath="f")).error == "Unknown parameter 'filepath' (did you mean 'file_path'?)"
