"""Whatever bytes a file holds, an edit changes only those that it names."""

import asyncio
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forge_tools.model import ExecutionContext, ToolResult
from forge_tools.tools.file.edit import Edit
from forge_tools.tools.file.write import Write

usual = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])

lines = st.lists(
    st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0"), max_size=12), min_size=1, max_size=8
)
ends = st.lists(st.sampled_from(["\n", "\r\n"]), min_size=8, max_size=8)


def edit(**arguments: object) -> ToolResult:
    return asyncio.run(Edit().execute(ExecutionContext(working_dir="."), file_path="f", **arguments))


@usual
@given(st.binary(max_size=60), st.binary(max_size=60), st.text("abc \n", max_size=9))
def test_random_bytes_around_an_edit_stay(ws: Path, before: bytes, after: bytes, new: str) -> None:
    def plain(data: bytes) -> bytes:
        return data.replace(b"\0", b"?").replace(b"\r", b"?")

    before, after = b"text to edit: " + plain(before), plain(after)
    (ws / "f").write_bytes(before + b"<MARK>" + after)
    result = edit(old_string="<MARK>", new_string=new)
    if result.error_code == "BINARY_FILE":
        assert (ws / "f").read_bytes() == before + b"<MARK>" + after
        return
    assert result.success, result.error
    assert (ws / "f").read_bytes() == before + new.encode() + after


@usual
@given(lines, ends, st.integers(0, 7), st.booleans(), st.booleans())
def test_line_ends_elsewhere_stay_whatever_their_mix(
    ws: Path, texts: list[str], eols: list[str], at: int, has_mark: bool, has_end: bool
) -> None:
    at %= len(texts)
    texts[at] = "<MARK>"
    pieces = [text + eol for text, eol in zip(texts, eols, strict=False)]
    if not has_end:
        pieces[-1] = texts[-1]
    mark = "\ufeff" if has_mark else ""
    (ws / "f").write_bytes((mark + "".join(pieces)).encode())
    assert edit(old_string="<MARK>", new_string="changed").success
    pieces[at] = pieces[at].replace("<MARK>", "changed")
    assert (ws / "f").read_bytes() == (mark + "".join(pieces)).encode()


@usual
@given(lines, st.sampled_from(["utf-8", "utf-16-le", "utf-16-be", "utf-32-le"]), st.sampled_from(["\n", "\r\n"]))
def test_several_lines_are_found_in_every_encoding_and_line_end(
    ws: Path, texts: list[str], codec: str, eol: str
) -> None:
    body = eol.join([*texts, "<ONE>", "<TWO>", *texts])
    (ws / "f").write_bytes(("\ufeff" + body).encode(codec))
    result = edit(old_string="<ONE>\n<TWO>", new_string="one\ntwo\nthree")
    assert result.success, result.error
    expected = eol.join([*texts, "one", "two", "three", *texts])
    assert (ws / "f").read_bytes() == ("\ufeff" + expected).encode(codec)


@usual
@given(st.text("ab\n", min_size=1, max_size=40), st.text("ab\n", min_size=1, max_size=3), st.text("abc\n", max_size=3))
def test_replacing_all_is_what_replace_does(ws: Path, text: str, old: str, new: str) -> None:
    (ws / "f").write_bytes(text.encode())
    result = edit(old_string=old, new_string=new, replace_all=True)
    expected = text.replace(old, new)
    assert result.success == (old in text and expected != text), result.error
    assert (ws / "f").read_bytes() == expected.encode()


@usual
@given(st.text(st.characters(codec="utf-8"), max_size=60), st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-32"]))
def test_what_is_written_is_what_was_given(ws: Path, content: str, codec: str) -> None:
    (ws / "f").unlink(missing_ok=True)
    context = ExecutionContext(working_dir=".")
    result = asyncio.run(Write().execute(context, file_path="f", content=content, encoding=codec))
    assert result.success, result.error
    text = content if content.startswith("\ufeff") or codec == "utf-8" else f"\ufeff{content}"
    exact = {"utf-8-sig": "utf-8", "utf-16": "utf-16-le", "utf-32": "utf-32-le"}.get(codec, codec)
    assert (ws / "f").read_bytes() == text.encode(exact)


@pytest.mark.parametrize("size", [1 << 20, (1 << 20) + 1])
def test_large_files_stay_whole(ws: Path, size: int) -> None:
    data = bytes(range(1, 256)) * (size // 255 + 1)
    data = b"text\n" * 2000 + data.replace(b"\r", b"?")[:size]
    (ws / "f").write_bytes(data + b"<MARK>" + data)
    result = edit(old_string="<MARK>", new_string="x")
    assert result.success, result.error
    assert (ws / "f").read_bytes() == data + b"x" + data
