"""What ripgrep prints becomes whole records of a page, or warnings."""

import json
from pathlib import Path
from typing import Any

import pytest

from forge_tools.errors import SandboxError
from forge_tools.sandbox.paths.folders import Changes, Folder, Look
from forge_tools.tools.builtin import Page
from forge_tools.tools.file.ripgrep import MAX_LINE_BYTES, MatchSink, NameSink, complaints_of, require_searched


def page(offset: int = 0, limit: int = 100, room: int = 10_000) -> Page:
    return Page(offset=offset, limit=limit, room=room)


def message(kind: str, **data: Any) -> bytes:
    return json.dumps({"type": kind, "data": {"path": {"text": "./f"}, **data}}, separators=(",", ":")).encode() + b"\n"


def match(text: str, number: int = 1, start: int = 0, kind: str = "match") -> bytes:
    submatches = [{"match": {"text": "x"}, "start": start, "end": start + 1}] if kind == "match" else []
    return message(kind, lines={"text": text}, line_number=number, submatches=submatches)


def matches(*messages: bytes, into: Page | None = None, **options: Any) -> Page:
    found = into or page()
    given = {"max_columns": 500, "has_numbers": True, "has_context": False} | options
    sink = MatchSink(found, lambda path: path.removeprefix("./"), str, **given)
    data = message("begin") + b"".join(messages)
    for start in range(0, len(data), 7 if len(data) < 10_000 else 1 << 16):
        if not sink.feed(data[start : start + (7 if len(data) < 10_000 else 1 << 16)]):
            break
    return found


def test_a_page_takes_whole_records_up_to_its_limit() -> None:
    records = page(offset=2, limit=2)
    assert [records.add(f"r{number}") for number in range(5)] == [True, True, True, True, False]
    assert (records.records, records.notes("file", total=None, is_partial=False)[1]["next"]) == (
        ["r2", "r3"],
        {"offset": 4},
    )


def test_a_page_takes_whole_records_up_to_its_budget() -> None:
    records = page(room=10)
    assert [records.add("12345"), records.add("67890")] == [True, False]
    assert (records.records, records.seen, records.has_more) == (["12345"], 1, True)


def test_a_single_record_over_the_budget_is_cut() -> None:
    records = page(room=4)
    assert records.add("123456")
    assert records.records == ["1234"]


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_names_and_counts_are_read_wherever_the_pipe_cuts(size: int) -> None:
    for data, has_counts, expected in (
        (b"./a\0./new\nline\0\n2 matches\n5 files searched\n", False, ["a", "new\nline"]),
        (b"./a\0" + b"3\n./b\0" + b"1\n\n4 matches\n5 files searched\n", True, ["a:3", "b:1"]),
    ):
        found = page()
        sink = NameSink(found, lambda path: path.removeprefix("./"), str, has_counts=has_counts)
        for start in range(0, len(data), size):
            assert sink.feed(data[start : start + size])
        sink.finish()
        assert (found.records, sink.searched) == (expected, 5)


def test_matches_and_context_are_told_apart() -> None:
    found = matches(match("before\n", 1, kind="context"), match("x\n", 2), match("far x\n", 9), has_context=True)
    assert found.records == ["f-1-before", "f:2:x", "--\nf:9:far x"]


def test_a_match_over_lines_is_one_record() -> None:
    assert matches(match("a x\nb\n", 4)).records == ["f:4:a x\nf:5:b"]


def test_a_long_line_is_cut_around_its_match() -> None:
    line = "é" * 1000 + "x" + "é" * 1000
    record = matches(match(line, 1, start=2000), max_columns=30).records[0]
    assert record == f"f:1:[990 chars …] {'é' * 10}x{'é' * 19} [… 981 chars]"


def test_bytes_that_are_not_utf8_are_shown_as_latin_1() -> None:
    lines = {"bytes": "Y2Fm6SB4Cg=="}
    assert matches(message("match", lines=lines, line_number=1, submatches=[])).records == ["f:1:café x"]


def test_matches_in_a_binary_file_become_one_line() -> None:
    found = matches(match("x\n"), match("x\n", 2), message("end", binary_offset=4))
    assert found.records == ["f: binary file matches"]


def test_a_line_of_megabytes_is_reported_without_its_text() -> None:
    found = matches(match("y" * (2 * MAX_LINE_BYTES) + "x", 7), match("x\n", 8))
    assert found.records == ["f:7:[matches in a very long line; Read it in parts with column]", "f:8:x"]


def test_files_that_were_not_asked_for_are_left_out() -> None:
    found = page()
    sink = MatchSink(found, lambda _: None, str, max_columns=99, has_numbers=True, has_context=False)
    assert sink.feed(message("begin") + match("x\n") + match("y" * (2 * MAX_LINE_BYTES)) + match("x\n"))
    assert found.records == []


def test_without_numbers_only_the_path_is_shown() -> None:
    assert matches(match("x\n"), has_numbers=False).records == ["f:x"]


def test_what_ripgrep_lacks_is_told_apart_from_what_is_wrong() -> None:
    with pytest.raises(SandboxError, match="does not have"):
        require_searched("(?=a)", None, "rg: PCRE2 is not available in this build of ripgrep")
    require_searched("(?=a)", None, "rg: f: Permission denied (os error 13)")


def test_complaints_name_what_was_not_searched_except_what_may_lie_outside(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with Folder(-1, str(tmp_path)) as folder:
        here = Look().at(folder.fd)
        changes = Changes({"": here, "out/": here}, folder.fd)
    said = "rg: ./a: Permission denied (os error 13)\nrg: ./out/b: Permission denied (os error 13)\n"
    told = complaints_of(said, str.upper, changes)
    assert told == (["A: Permission denied"], ["a"])
