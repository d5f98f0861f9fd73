"""NotebookEdit: a cell replaced, inserted or deleted, and everything else byte for byte as it was."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forge_tools.model import ExecutionContext, ToolResult
from forge_tools.sandbox.paths.files import etag_of
from forge_tools.tool.base import BaseTool
from forge_tools.tools.notebook.document import Notebook, source_of
from forge_tools.tools.notebook.edit import NotebookEdit
from tests.unit.tools.notebook.notebooks import code, notebook, stream, text, written

Call = Callable[..., Awaitable[ToolResult]]
usual = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)

LAYOUTS: dict[str, dict[str, Any]] = {
    "jupyter": {},
    "four": {"indent": 4, "ensure_ascii": True},
    "tab": {"indent": "\t"},
    "line": {"indent": None},
    "dense": {"indent": None, "separators": (",", ":"), "ensure_ascii": True},
    "airy": {"indent": 2, "separators": (",", " : ")},
}


def run(ws: Path, data: bytes, **options: Any) -> tuple[ToolResult, bytes]:
    """Edit a notebook of these bytes; return what was said and the bytes after it."""
    (ws / "n.ipynb").write_bytes(data)
    result = asyncio.run(NotebookEdit().execute(ExecutionContext(working_dir="."), notebook_path="n.ipynb", **options))
    return result, (ws / "n.ipynb").read_bytes()


def sources(data: bytes) -> list[str]:
    return [source_of(cell) for cell in json.loads(data.decode("utf-8-sig"))["cells"]]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_edit_reads_as_if_the_same_program_had_written_it(ws: Path, layout: str) -> None:
    how = LAYOUTS[layout]
    cells = [text(["é\n", "b"], id="a"), code(["1\n", "2"], outputs=[stream("é")]), text("c", id="c")]
    book = notebook(*cells, metadata={"k": [1, {}]})
    changed = notebook(cells[0], code(["ü\n", "n"], execution_count=None), cells[2], metadata={"k": [1, {}]})
    result, data = run(ws, written(book, **how), cell_id="c0de", new_source="ü\nn")
    assert result.success, result.error
    assert data == written(changed, **how)
    result, data = run(ws, written(book, **how), cell_index=1, edit_mode="insert", cell_type="raw", new_source="ü")
    new = {"cell_type": "raw", "id": result.metadata["cell_id"], "metadata": {}, "source": ["ü"]}
    assert data == written(notebook(*cells[:2], new, cells[2], metadata={"k": [1, {}]}), **how)
    for index in range(3):
        _, data = run(ws, written(book, **how), cell_index=index, edit_mode="delete")
        assert data == written(notebook(*cells[:index], *cells[index + 1 :], metadata={"k": [1, {}]}), **how)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_first_cell_of_an_empty_notebook_and_the_last_one_gone(ws: Path, layout: str) -> None:
    how = LAYOUTS[layout]
    empty = written(notebook(minor=4), **how)
    _, data = run(ws, empty, edit_mode="insert", cell_type="code", new_source="1\n")
    cell = {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": ["1\n"]}
    assert data == written(notebook(cell, minor=4), **how)
    assert run(ws, data, edit_mode="delete", cell_index=0)[1] == empty


def test_cells_are_put_at_the_start_after_one_or_at_the_end(ws: Path) -> None:
    data = written(notebook(code("a", id="a"), code("b", id="b")))
    for where, expected in (
        ({}, ["x", "a", "b"]),
        ({"position": "end"}, ["a", "b", "x"]),
        ({"cell_id": "a"}, ["a", "x", "b"]),
        ({"cell_index": 1}, ["a", "b", "x"]),
    ):
        result, after = run(ws, data, edit_mode="insert", cell_type="markdown", new_source="x", **where)
        assert sources(after) == expected
        assert json.loads(after)["cells"][result.metadata["cell_index"]]["id"] == result.metadata["cell_id"]


def test_what_frames_a_cell_stays_byte_for_byte(ws: Path) -> None:
    before = '\ufeff{"nbformat":4 ,\r\n "x": 1e-7, "y": NaN, "z": 1.50, "big": ' + "7" * 5000 + ',\r\n "cells" : [ {'
    cell = '"cell_type":"code" , "metadata": {"\\u00e9":1}, "source": "old","source":\t"older" }'
    after = ' , {"cell_type": "raw"}\r\n],"x": 2, "nbformat_minor": 4 }'
    result, data = run(ws, (before + cell + after).encode(), cell_index=0, new_source="new", clear_outputs=False)
    assert result.success, result.error
    assert data == (before + cell.replace('"older"', '"new"') + after).encode()


def test_outputs_go_with_the_source_that_they_came_from(ws: Path) -> None:
    data = written(notebook(code("a", outputs=[stream("o")])))
    cleared = json.loads(run(ws, data, cell_index=0, new_source="b")[1])["cells"][0]
    assert (cleared["outputs"], cleared["execution_count"]) == ([], None)
    kept = json.loads(run(ws, data, cell_index=0, new_source="b", clear_outputs=False)[1])["cells"][0]
    assert kept == code("b", outputs=[stream("o")])


def test_another_type_keeps_metadata_and_id(ws: Path) -> None:
    data = written(notebook(code("a", outputs=[stream("o")], metadata={"m": 1}), text("t", attachments={"i": {}})))
    result, after = run(ws, data, cell_index=0, new_source="a", cell_type="markdown")
    assert json.loads(after)["cells"][0] == text("a", id="c0de", metadata={"m": 1})
    result, after = run(ws, after, cell_index=1, new_source="t", cell_type="code")
    assert json.loads(after)["cells"][1] == code("t", id="7e87", execution_count=None)
    assert result.metadata["dropped"] == ["attachments"]
    _, after = run(ws, data, cell_index=1, new_source="u")
    assert json.loads(after)["cells"][1]["attachments"] == {"i": {}}


def test_nothing_to_change_changes_nothing(ws: Path) -> None:
    data = written(notebook(code("a", execution_count=None)), indent=3)
    result, after = run(ws, data, cell_index=0, new_source="a")
    assert (after, result.metadata["changed"]) == (data, False)


def test_what_nbformat_refuses_is_said(ws: Path) -> None:
    result, _ = run(ws, written(notebook(code("a", strange=1))), cell_index=0, new_source="b")
    assert "strange" in result.metadata["warnings"][0]
    result, _ = run(ws, written(notebook(code("a"))), cell_index=0, new_source="b")
    assert "warnings" not in result.metadata


def test_no_id_is_made_where_the_format_has_none(ws: Path) -> None:
    _, after = run(ws, written(notebook(minor=4)), edit_mode="insert", cell_type="raw", new_source="x")
    assert "id" not in json.loads(after)["cells"][0]
    assert json.loads(after)["nbformat_minor"] == 4


@pytest.mark.parametrize(
    ("options", "code_"),
    [
        ({"new_source": "x"}, "VALIDATION_ERROR"),
        ({"cell_index": 0, "cell_id": "c0de", "new_source": "x"}, "VALIDATION_ERROR"),
        ({"cell_index": 0}, "VALIDATION_ERROR"),
        ({"edit_mode": "insert", "new_source": "x"}, "VALIDATION_ERROR"),
        ({"edit_mode": "delete", "cell_index": 0, "position": "end"}, "VALIDATION_ERROR"),
        ({"cell_index": -1, "new_source": "x"}, "VALIDATION_ERROR"),
        ({"cell_index": 5, "new_source": "x"}, "CELL_NOT_FOUND"),
        ({"cell_id": "c0d", "new_source": "x"}, "CELL_NOT_FOUND"),
        ({"cell_index": 0, "new_source": "\ud800"}, "ENCODING_ERROR"),
        ({"cell_index": 0, "new_source": "x", "if_match": "b2:00"}, "STALE_FILE"),
        ({"cell_index": 0, "new_source": "x", "notebook_path": "no.ipynb"}, "FILE_NOT_FOUND"),
        ({"cell_index": 0, "new_source": "x", "notebook_path": "../secret"}, "PATH_OUTSIDE_WORKSPACE"),
        ({"cell_index": 0, "new_source": "x", "notebook_path": "broken.ipynb"}, "NOTEBOOK_INVALID"),
    ],
)
async def test_what_cannot_be_done_touches_nothing(
    ws: Path, caller: Callable[[BaseTool], Call], options: dict[str, Any], code_: str
) -> None:
    data = written(notebook(code("a")))
    (ws / "n.ipynb").write_bytes(data)
    (ws / "broken.ipynb").write_bytes(data[:-9])
    for context in ({"dry_run": True}, {}):
        refused = await caller(NotebookEdit())(context, **({"notebook_path": "n.ipynb"} | options))
        assert refused.error_code == code_
    assert ((ws / "n.ipynb").read_bytes(), (ws / "broken.ipynb").read_bytes()) == (data, data[:-9])


async def test_a_dry_run_says_what_then_happens(ws: Path, caller: Callable[[BaseTool], Call]) -> None:
    data, call = written(notebook(code("a"))), caller(NotebookEdit())
    (ws / "n.ipynb").write_bytes(data)
    asked = {"notebook_path": "n.ipynb", "edit_mode": "insert", "cell_type": "code", "new_source": "x"}
    dry = await call({"dry_run": True}, **asked)
    assert dry.output.startswith("[Dry Run] Would insert cell 0 (code, id ")
    assert (ws / "n.ipynb").read_bytes() == data
    real = await call({"execution_id": "0197"}, if_match=dry.metadata["etag_before"], **asked)
    assert real.metadata["etag"] == dry.metadata["etag"] == etag_of((ws / "n.ipynb").read_bytes())
    again = await call({"execution_id": "0197"}, if_match=dry.metadata["etag_before"], **asked)
    assert again.metadata["replayed"]
    assert sources((ws / "n.ipynb").read_bytes()) == ["x", "a"]


async def test_writers_at_one_time_lose_nothing(ws: Path, caller: Callable[[BaseTool], Call]) -> None:
    (ws / "n.ipynb").write_bytes(written(notebook()))
    asked = {"notebook_path": "n.ipynb", "edit_mode": "insert", "cell_type": "raw"}
    done = await asyncio.gather(*(caller(NotebookEdit())(new_source=f"{one}", **asked) for one in range(20)))
    assert all(one.success for one in done)
    book = json.loads((ws / "n.ipynb").read_bytes())
    assert sorted(map(int, sources((ws / "n.ipynb").read_bytes()))) == list(range(20))
    assert len({cell["id"] for cell in book["cells"]}) == 20


words = st.text(st.characters(codec="utf-8"), max_size=12)
lines = st.one_of(words, st.lists(words, max_size=3))
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), words),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(words, inner, max_size=3)),
    max_leaves=5,
)
cells = st.builds(
    lambda kind, source, extra: extra | {"cell_type": kind, "metadata": {}, "source": source},
    st.sampled_from(["code", "markdown", "raw"]),
    lines,
    st.dictionaries(st.sampled_from(["id", "outputs", "more", "é"]), values, max_size=3),
)
books = st.builds(
    lambda cells, more, minor: more | {"cells": cells, "nbformat_minor": minor, "nbformat": 4},
    st.lists(cells, min_size=1, max_size=4),
    st.dictionaries(words, values, max_size=3),
    st.integers(0, 6),
)
layouts = st.sampled_from(list(LAYOUTS.values()))


@usual
@given(books, layouts, st.data())
def test_a_replaced_source_is_the_only_difference(
    ws: Path, book: dict[str, Any], how: Any, data: st.DataObject
) -> None:
    index, new = data.draw(st.integers(0, len(book["cells"]) - 1)), data.draw(words)
    before = written(book, **how)
    result, after = run(ws, before, cell_index=index, new_source=new, clear_outputs=False)
    assert result.success, result.error
    old = Notebook.of(before, "").cells[index]
    left, right = Notebook.of(before, "").text[: old.start], Notebook.of(before, "").text[old.end :]
    assert after.decode().startswith(left)
    assert after.decode().endswith(right)
    expected = old.value | ({"source": new} if source_of(old.value) != new else {})
    found = Notebook.of(after, "").cells[index].value
    assert source_of(found) == new
    assert repr(found | {"source": ""}) == repr(expected | {"source": ""})


@usual
@given(books, layouts, st.booleans(), words)
def test_what_is_put_in_and_taken_out_leaves_no_trace(
    ws: Path, book: dict[str, Any], how: Any, at_end: bool, new: str
) -> None:
    before = written(book, **how)
    result, after = run(
        ws, before, edit_mode="insert", cell_type="raw", new_source=new, position="end" if at_end else "start"
    )
    assert result.success, result.error
    assert sources(after)[-1 if at_end else 0] == new
    assert run(ws, after, edit_mode="delete", cell_index=result.metadata["cell_index"])[1] == before


@usual
@given(st.binary(max_size=40), st.integers(0, 200))
def test_no_damage_breaks_more_than_the_call(ws: Path, noise: bytes, at: int) -> None:
    whole = written(notebook(code("a"), text("b")))
    data = whole[:at] + noise + whole[at + len(noise) // 2 :]
    result, after = run(ws, data, edit_mode="insert", cell_type="raw", new_source="x")
    assert result.success or result.error_code == "NOTEBOOK_INVALID"
    assert result.success or after == data
