"""Edit on real files: exactly what was asked for, or a refusal that says why."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from forge_tools.model import ToolResult
from forge_tools.tools.file.edit import Edit

Call = Callable[..., Awaitable[ToolResult]]
Put = Callable[[str, bytes], Path]


@pytest.fixture
def call(caller: Callable[[Edit], Call]) -> Call:
    return caller(Edit())


def one(old: str, new: str, **options: Any) -> dict[str, Any]:
    return {"file_path": "f", "old_string": old, "new_string": new, **options}


async def test_what_was_done_is_shown_with_its_lines(call: Call, write: Put) -> None:
    path = write("f", b"".join(b"line %d\n" % number for number in range(1, 10)))
    path.chmod(0o755)
    result = await call(**one("line 5\n", "line five\nand more\n"))
    assert result.output == (
        "Edited f: 1 replacement at line 5 (+2 −1)\n"
        "@@ -2,7 +2,8 @@\n line 2\n line 3\n line 4\n-line 5\n+line five\n+and more\n line 6\n line 7\n line 8"
    )
    facts = {"replacements": 1, "lines": [5], "matched": "exact", "diffstat": {"added": 2, "removed": 1}}
    assert facts.items() <= result.metadata.items()
    assert path.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize(
    ("before", "old", "new", "after"),
    [
        (b"a\r\nb\r\nc", "a\nb", "x\ny\nz", b"x\r\ny\r\nz\r\nc"),
        (b"a\r\nb\r\n", "b", "x\ny", b"a\r\nx\r\ny\r\n"),
        (b"a\nb\r\nc\n", "a\nb\nc", "a\nB\nc", b"a\nB\nc\n"),
        (b"a\r\nb\n", "a\r\nb", "a\nb", b"a\nb\n"),
        (b"\xef\xbb\xbfone\n", "one", "two", b"\xef\xbb\xbftwo\n"),
        (b"no end", "end", "end\n", b"no end\n"),
        (b"last\nline", "\nline", "", b"last"),
        (b"caf\xe9 x \xff\n", "x", "y", b"caf\xe9 y \xff\n"),
        (b"caf\xe9 x\n", "café x", "café y", b"caf\xe9 y\n"),
        (b"ok \xc3\xa9 \xff bad \xf0\x9f\x98\x80 x", "bad", "good", b"ok \xc3\xa9 \xff good \xf0\x9f\x98\x80 x"),
        ("\ufeffone\r\ntwo".encode("utf-16-le"), "two", "zwei\ndrei", "\ufeffone\r\nzwei\r\ndrei".encode("utf-16-le")),
        ("\ufeffone\n".encode("utf-16-be"), "one", "eins", "\ufeffeins\n".encode("utf-16-be")),
        (b"a.b a*b $1", "a*b", r"\1 & $1", rb"a.b \1 & $1 $1"),
        (b"only\rreturns\r", "returns", "x", b"only\rx\r"),
        (b"a\x0bb\x0cc\xe2\x80\xa8d\n", "c", "x", b"a\x0bb\x0cx\xe2\x80\xa8d\n"),
    ],
)
async def test_nothing_changes_but_what_was_named(
    call: Call, write: Put, before: bytes, old: str, new: str, after: bytes
) -> None:
    path = write("f", before)
    result = await call(**one(old, new))
    assert result.success, result.error
    assert path.read_bytes() == after


@pytest.mark.parametrize("codec", ["shift_jis", "gbk", "euc-kr", "big5", "cp1252", "utf-16-le"])
async def test_text_in_an_encoding_that_is_named_is_matched_by_character(call: Call, write: Put, codec: str) -> None:
    words = {
        "shift_jis": "表示ソ能",
        "gbk": "中文誠",
        "euc-kr": "한국어",
        "big5": "功許蓋",
        "cp1252": "naïve",
        "utf-16-le": "✓",
    }
    text = f"{words[codec]}|\\ end\n{words[codec]}\n"
    path = write("f", text.encode(codec))
    result = await call(**one("|\\", "!", encoding=codec))
    assert result.success, result.error
    assert path.read_bytes() == text.replace("|\\", "!").encode(codec)


async def test_a_byte_that_looks_like_a_character_is_not_one(call: Call, write: Put) -> None:
    data = "表\n".encode("shift_jis")  # its second byte is a backslash
    path = write("f", data)
    assert (await call(**one("\\", "/", encoding="shift_jis"))).error_code == "EDIT_NO_MATCH"
    assert path.read_bytes() == data


@pytest.mark.parametrize(
    ("data", "options", "says"),
    [
        (b"caf\xe9\n", one("caf", "ö"), "f is not UTF-8, and new_string has 'ö'"),
        (b"a\n", one("a", "\ud800"), "new_string contains half a surrogate pair at character 1"),
        (b"\xff\xfea\0b", one("a", "b"), "f is not entirely utf-16-le, so it cannot be edited"),
        (b"a\n", one("a", "b", encoding="iso-2022-jp"), "f is not entirely iso2022_jp"),
        (b"a", one("a", "é", encoding="ascii"), "new_string contains 'é' at character 1, which ascii cannot represent"),
    ],
)
async def test_what_cannot_be_written_as_the_file_is_written_is_refused(
    call: Call, write: Put, data: bytes, options: dict[str, Any], says: str
) -> None:
    path = write("f", data)
    result = await call(**options)
    assert (result.error_code, result.error.startswith(says)) == ("ENCODING_ERROR", True), result.error
    assert path.read_bytes() == data


@pytest.mark.parametrize(
    ("text", "options", "code", "says"),
    [
        ("x = 1\n", one("x = 2", "y"), "EDIT_NO_MATCH", "Closest: line 1 is 80% alike; line 1 has `x = 1`"),
        ("if a:\n\tb = long_name\n", one("if a:\n    b = long_name", "y"), "EDIT_NO_MATCH",
         "line 2 starts with 1 tab where old_string has 4 spaces"),
        ("a\u00a0b = 1\n", one("a b = 1", "y"), "EDIT_NO_MATCH",
         "line 1 has '\\xa0' (U+00A0 no-break space) at column 2 where old_string has a space"),
        ("some words  \nand more\n", one("some words\nand more", "y"), "EDIT_NO_MATCH",
         "line 1 ends with 2 spaces where old_string has nothing"),
        ("caf\u00e9 is open\n", one("cafe\u0301 is open", "y"), "EDIT_NO_MATCH", "another Unicode form"),
        ("Return True\n", one("return true", "y"), "EDIT_NO_MATCH", "line 1 differs in upper and lower case: `Return True`"),
        ("say \u2018hi\u2019\n", one("say 'hi'", "y"), "EDIT_NO_MATCH", "U+2018 left single quotation mark"),
        ("abc\n", one("something else entirely", "y"), "EDIT_NO_MATCH", "Nothing in the file is similar"),
        ("value = 200\n", one("value = 100\n", "value = 200\n"), "EDIT_NO_MATCH",
         "The file already contains new_string, at line 1."),
        ("a\nb\na\n", one("a", "y"), "EDIT_NOT_UNIQUE", "old_string occurs 2 times in f (lines 1, 3). Add context, set near_line"),
        ("a\na\n", one("a", "y", expected_replacements=3), "EDIT_NOT_UNIQUE", "occurs 2 times in f (lines 1, 2), not 3"),
        ("a\n", one("a", "a"), "EDIT_NO_CHANGE", "old_string and new_string are identical"),
        ("a\n", one("", "b"), "VALIDATION_ERROR", "old_string is empty, but f is not"),
        ("a\n", {"file_path": "f"}, "VALIDATION_ERROR", "Pass old_string and new_string, or edits"),
        ("a\n", {"file_path": "f", "edits": []}, "VALIDATION_ERROR", "edits has 0 items; pass 1 to 100"),
        ("a\n", one("a", "b", edits=[{"old_string": "a", "new_string": "b"}]), "VALIDATION_ERROR", "not both"),
        ("a\n", {"file_path": "f", "edits": [{"old_string": "a", "new_sting": "b"}]}, "VALIDATION_ERROR", "edits[0].new_string"),
        ("a\n", one("a", "b", if_match="b2:00"), "STALE_FILE", "f changed since it was read"),
    ],
)  # fmt: skip
async def test_a_refusal_says_where_and_why(
    call: Call, write: Put, text: str, options: dict[str, Any], code: str, says: str
) -> None:
    path = write("f", text.encode())
    result = await call(**options)
    assert (result.error_code, says in result.error) == (code, True), result.error
    assert len(result.error) < 500
    assert path.read_bytes() == text.encode()


async def test_blocks_that_are_only_alike_are_never_replaced(call: Call, write: Put) -> None:
    path = write("f", b"func f() {\n\tx := 1\n\ty := 99\n\tz := 3\n}\n")
    result = await call(**one("func f() {\n\tx := 1\n\ty := 2\n\tz := 3\n}\n", "gone", match="whitespace"))
    assert (result.error_code, "line 3 has `y := 99` where old_string has `y := 2`" in result.error) == (
        "EDIT_NO_MATCH",
        True,
    )
    assert b"99" in path.read_bytes()


async def test_blanks_may_differ_where_that_is_asked_for(call: Call, write: Put) -> None:
    path = write("f", b"class A:\n    def f(self):  \n        return 1\n\n    x = 2\n")
    options = one("def f(self):\n    return 1\n", "def f(self):\n    y = 1\n\n    return y\n")
    assert (await call(**options)).error_code == "EDIT_NO_MATCH"
    result = await call(**options, match="whitespace")
    assert result.metadata["matched"] == "whitespace"
    assert path.read_bytes() == b"class A:\n    def f(self):\n        y = 1\n\n        return y\n\n    x = 2\n"


async def test_of_several_the_nearest_all_or_a_known_number(call: Call, write: Put) -> None:
    path = write("f", b"a\nb\na\nb\naaa\n")
    await call(**one("a\n", "x\n", near_line=3))
    assert path.read_bytes() == b"a\nb\nx\nb\naaa\n"
    await call(**one("b", "y", expected_replacements=2))
    assert path.read_bytes() == b"a\ny\nx\ny\naaa\n"
    result = await call(**one("aa", "-", replace_all=True))
    assert (path.read_bytes(), result.metadata["replacements"]) == (b"a\ny\nx\ny\n-a\n", 1)


async def test_several_edits_see_each_other_and_are_all_or_none(call: Call, write: Put) -> None:
    path = write("f", b"one two\n")
    edits = [{"old_string": "one", "new_string": "1"}, {"old_string": "1 two", "new_string": "1 2"}]
    wrong = [*edits, {"old_string": "one", "new_string": "x"}]
    refused = await call(file_path="f", edits=wrong)
    assert refused.error.startswith("edits[2].old_string was not found in f.")
    assert path.read_bytes() == b"one two\n"
    result = await call(file_path="f", edits=edits)
    assert (path.read_bytes(), result.metadata["replacements"]) == (b"1 2\n", 2)


async def test_an_empty_old_text_makes_or_fills_a_file(call: Call, write: Put, ws: Path) -> None:
    assert (await call(file_path="a/new", old_string="", new_string="x\n")).output == "Created a/new (2 bytes)"
    write("empty", b"")
    assert (await call(file_path="empty", old_string="", new_string="x\n")).output == "Filled empty (2 bytes)"
    assert ((ws / "a/new").read_bytes(), (ws / "empty").read_bytes()) == (b"x\n", b"x\n")
    missing = await call(file_path="emty", old_string="a", new_string="x\n")
    assert missing.error == "File not found: emty. Similar: empty"
    assert not (await call(file_path="no/such", old_string="a", new_string="x")).success
    assert not (ws / "no").exists()


async def test_what_is_not_text_is_refused(call: Call, write: Put, ws: Path) -> None:
    write("f", b"\x89PNG\0")
    assert (await call(**one("P", "x"))).error == "f is binary (PNG image); text tools cannot change it"
    with open(ws / "f", "wb") as file:
        file.truncate(80 << 20)
    assert (await call(**one("P", "x"))).error_code == "FILE_TOO_LARGE"


@pytest.mark.parametrize(
    ("new", "says"),
    [
        ("x\n# ... rest of code unchanged ...\n", "seems to leave out code"),
        ("a\\nb", r"has \n as two characters"),
        ("if a &lt; b", "has &lt; where old_string has <"),
    ],
)
async def test_what_looks_like_a_slip_is_written_and_said(call: Call, write: Put, new: str, says: str) -> None:
    path = write("f", b"if a < b\nb\nc\n")
    result = await call(**one("if a < b\nb", new))
    assert says in result.metadata["warnings"][0]
    assert path.read_bytes() == new.encode() + b"\nc\n"


async def test_parallel_edits_of_one_file_are_all_kept(call: Call, write: Put) -> None:
    path = write("f", b"".join(b"line %d.\n" % number for number in range(50)))
    results = await asyncio.gather(*(call(**one(f"line {n}.", f"edited {n}.")) for n in range(50)))
    assert all(result.success for result in results)
    assert path.read_bytes() == b"".join(b"edited %d.\n" % number for number in range(50))


MANY = """
import asyncio, sys
from pathlib import Path
from forge_tools.model import ExecutionContext
from forge_tools.sandbox.reach import REACH, Reach
from forge_tools.tools.file.edit import Edit
async def main(mine):
    REACH.set(Reach(root=Path(sys.argv[1])))
    for n in range(mine, 40, 4):
        call = {"old_string": f"line {n}.", "new_string": f"edited {n}."}
        result = await Edit().execute(ExecutionContext(working_dir="."), file_path="f", **call)
        assert result.success, result.error
asyncio.run(main(int(sys.argv[2])))
"""


def test_edits_of_four_processes_are_all_kept(ws: Path, write: Put) -> None:
    path = write("f", b"".join(b"line %d.\n" % number for number in range(40)))
    processes = [subprocess.Popen([sys.executable, "-c", MANY, str(ws), str(number)]) for number in range(4)]
    assert [process.wait(timeout=60) for process in processes] == [0] * 4
    assert path.read_bytes() == b"".join(b"edited %d.\n" % number for number in range(40))
    assert os.listdir(ws) == ["f"]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
async def test_a_byte_order_mark_that_is_not_there_costs_no_byte(call: Call, write: Put, encoding: str) -> None:
    without = {"utf-8-sig": "utf-8", "utf-16": "utf-16-le", "utf-32": "utf-32-le"}[encoding]
    path = write("f", "hello world\nfoo\n".encode(without))

    await call(**one("foo", "bar", encoding=encoding))

    assert path.read_bytes().startswith("hello world\n".encode(without))


async def test_an_edit_does_not_grow_a_file_beyond_what_tools_open(call: Call, write: Put) -> None:
    path = write("f", b"a" * 20_000)

    result = await call(**one("a", "x" * 10_000, replace_all=True))

    assert result.error_code == "FILE_TOO_LARGE"
    assert path.read_bytes() == b"a" * 20_000


async def test_places_that_overlap_are_not_one_place(call: Call, write: Put) -> None:
    path = write("f", b"aaa\n")
    result = await call(**one("aa", "b"))
    assert result.error_code == "EDIT_NOT_UNIQUE"
    assert result.error == "old_string occurs at places that overlap in f (line 1): which one is meant? Add context"
    assert (await call(**one("aa", "b", replace_all=True))).success
    assert path.read_bytes() == b"ba\n"


@pytest.mark.parametrize("more", [{"replace_all": True}, {"expected_replacements": 2}])
async def test_one_place_and_all_of_them_are_not_asked_for_at_once(
    call: Call, write: Put, more: dict[str, Any]
) -> None:
    path = write("f", b"a\na\n")
    result = await call(**one("a", "b", near_line=2, **more))
    assert (result.error_code, path.read_bytes()) == ("VALIDATION_ERROR", b"a\na\n")
