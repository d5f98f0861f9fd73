"""NotebookRead: cells as blocks, their outputs bounded, and invalid notebooks refused with the line."""

import base64
import gzip
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from forge_tools.model import ToolResult
from forge_tools.sandbox.paths.files import etag_of
from forge_tools.tool.base import BaseTool
from forge_tools.tools.notebook.read import NotebookRead
from tests.part_tools import png
from tests.unit.tools.notebook.notebooks import code, notebook, stream, text, written

Call = Callable[..., Awaitable[ToolResult]]
Put = Callable[[str, bytes], Path]


@pytest.fixture
def read(caller: Callable[[BaseTool], Call], write: Put) -> Call:
    call = caller(NotebookRead())

    async def of(data: bytes | dict[str, Any], context: dict[str, Any] | None = None, **options: Any) -> ToolResult:
        write("n.ipynb", data if isinstance(data, bytes) else written(data))
        return await call(context, notebook_path="n.ipynb", **options)

    return of


async def test_cells_are_blocks_with_what_names_them(read: Call) -> None:
    book = notebook(text(["# One\n", "two"]), code("1 + 1", outputs=[stream(["2\n", "3\n"])]))
    seen = await read(book)
    assert seen.output == (
        '<cell id="7e87" index=0 type=markdown>\n# One\ntwo\n</cell>\n'
        '<cell id="c0de" index=1 type=code execution_count=7>\n1 + 1\n<outputs>\n2\n3\n</outputs>\n</cell>'
    )
    assert seen.metadata["etag"] == etag_of(written(book))
    assert (seen.metadata["total_cells"], seen.metadata["nbformat"], seen.metadata["truncated"]) == (2, "4.5", False)


async def test_outputs_lose_colours_and_what_was_written_over(read: Call) -> None:
    outputs = [
        stream("\x1b[31mred\x1b[0m\n10%\r50%\r100%\nend\r\n"),
        {"output_type": "error", "ename": "E", "evalue": "v", "traceback": ["\x1b[0;31mE\x1b[0m: v"]},
        {"output_type": "error", "ename": "Bare", "evalue": "v", "traceback": []},
        {"output_type": "strange"},
    ]
    seen = await read(notebook(code(outputs=outputs)))
    _, _, shown = seen.output.partition("<outputs>\n")
    assert shown == "red\n100%\nend\nE: v\nBare: v\n[output of unknown type strange]\n</outputs>\n</cell>"


async def test_media_are_named_and_of_texts_the_plainest_is_shown(read: Call) -> None:
    data = {
        "image/png": "A" * 65536,
        "text/html": "<b>t</b>",
        "text/plain": ["<Fig", "ure>"],
        "image/svg+xml": "<svg/>",
    }
    widget = {"application/vnd.jupyter.widget-view+json": {"model_id": "m1"}}
    table = {"text/html": "<table>1</table>"}
    outputs = [{"output_type": "display_data", "data": one, "metadata": {}} for one in (data, widget, table)]
    seen = await read(notebook(code(outputs=outputs)))
    assert "[image/png 49 kB]\n[image/svg+xml 6 bytes]\n<Figure>\n[widget m1]\n<table>1</table>\n" in seen.output
    assert "<b>" not in seen.output


async def test_images_are_parts_of_the_result(read: Call) -> None:
    said = base64.encodebytes(png()).decode().splitlines(keepends=True)
    damaged = {"image/png": "no image", "image/gif": "!", "image/jpeg": said[0]}
    outputs = [{"output_type": "display_data", "data": one, "metadata": {}} for one in (damaged, {"image/png": said})]

    shown = await read(notebook(text("# T"), code(outputs=outputs)), cell_index=1)
    without = await read(notebook(code(outputs=outputs)), include_outputs=False)

    seen, image = shown.output
    assert "[image/png 6 bytes]" in seen
    assert (image.type, image.name, image.data) == ("image", "cell-1-output-1.png", png())
    assert isinstance(without.output, str)


async def test_images_are_parts_and_only_ten_of_them(read: Call) -> None:
    data = [
        base64.b64encode(png()).decode(),
        base64.encodebytes(png()).decode().splitlines(keepends=True),
        "no image",
        7,
    ]
    plots = [{"output_type": "display_data", "data": {"image/png": one}, "metadata": {}} for one in data]
    _, *images = (await read(notebook(text("#"), code(outputs=plots)))).output
    assert [(image.name, image.data) for image in images] == [
        ("cell-1-output-0.png", png()),
        ("cell-1-output-1.png", png()),
    ]
    assert isinstance((await read(notebook(code(outputs=plots)), include_images=False)).output, str)
    said, *many = (await read(notebook(code(outputs=plots * 6)))).output
    assert len(many) == 10
    assert "[2 more images: read their cells one at a time]" in said


async def test_outputs_are_bounded_for_each_cell(read: Call) -> None:
    book = notebook(code(outputs=[stream("a" * 3_000_000 + "z" * 3_000_000)]), code("2"))
    seen = await read(book, max_output_chars=100)
    assert f"{'a' * 40}\n[... 5,999,900 characters left out" in seen.output
    assert f"{'z' * 60}\n</outputs>" in seen.output
    assert "<outputs>" not in (await read(book, include_outputs=False)).output


async def test_pages_together_are_all_cells(read: Call) -> None:
    book = notebook(*(code(f"cell {number} {'x' * 50}", id=f"id{number}") for number in range(40)))
    whole = (await read(book)).output
    pages, following = list[str](), {"offset": 0}
    for _ in range(50):
        page = await read(book, {"max_output_size": 1000}, **following)
        assert len(page.output) <= 1000
        pages.append(page.output.partition("\n[cells")[0])
        following = page.metadata.get("next", {})
        if not following:
            break
    assert len(pages) > 3
    assert "\n".join(pages) == whole


async def test_one_cell_is_read_by_id_or_index(read: Call) -> None:
    book = notebook(code("one", id="a"), code("two", id="b"))
    assert "two" in (await read(book, cell_id="b")).output
    assert "one" not in (await read(book, cell_index=1)).output
    missing = [await read(book, cell_id="c"), await read(book, cell_index=2), await read(notebook(), cell_index=0)]
    assert {one.error_code for one in missing} == {"CELL_NOT_FOUND"}
    assert "0 to 1" in (missing[1].error or "")
    assert (await read(book, cell_index=-1)).error_code == "VALIDATION_ERROR"
    assert (await read(book, cell_index=0, cell_id="a")).error_code == "VALIDATION_ERROR"


async def test_double_ids_need_the_index(read: Call) -> None:
    book = notebook(code("one", id="a"), code("two", id="a"))
    refused = await read(book, cell_id="a")
    assert refused.error_code == "CELL_NOT_FOUND"
    assert "cell_index, one of 0, 1" in (refused.error or "")
    assert (await read(book)).metadata["duplicate_ids"] == ["a"]


@pytest.mark.parametrize("minor", [0, 1, 4, 5, 9])
async def test_every_minor_format_can_be_read(read: Call, minor: int) -> None:
    cell = code("one", extra={"k": [1e-7, 10**5000 if minor == 9 else 1]})
    data = written(notebook(cell, minor=minor)) if minor < 9 else written(notebook(code(), minor=9))
    assert (await read(data)).metadata["nbformat"] == f"4.{minor}"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b'{\n "cells": [\n', "line 3 (unexpected end)"),
        (b"", "line 1 (unexpected end)"),
        (b'{\n "cells": [],,\n}', "line 2"),
        (b'{"a": 1}\n\n{}', "line 3 (more after the end)"),
        (b"[]", "line 1 (expected an object)"),
        (b'{"cells": {}}', "expected a list"),
        (b'{\n1: 2}', "double quotes"),
        (b"{}", "no nbformat"),
        (b'{"nbformat": 4}', "no cells"),
        (b'{"cells": [], "nbformat": 4,\n "x": ' + b"[" * 200_000, "too deeply at line 2"),
        (b'{"cells": [],\n "nbformat": "\xff"}', "not UTF-8 at line 2"),
        (gzip.compress(b"{}"), "gzip archive"),
        (b'\xff\xfe{\0}\0', "not UTF-8"),
        (b'{"worksheets": [],\n "nbformat": 3}', "format 3 (line 2)"),
        (b'{"cells": [],\n "nbformat": 5}', "format 5 (line 2)"),
        (b'{"cells": [\n1], "nbformat": 4}', "cell 0 at line 2 is not an object"),
        (b'{"cells": [{"cell_type": "heading"}], "nbformat": 4}', "has no valid cell_type"),
        (b'{"cells": [{"cell_type": "raw", "source": [1]}], "nbformat": 4}', "not text"),
    ],
)  # fmt: skip
async def test_what_is_not_a_notebook_is_refused_with_its_line(read: Call, data: bytes, said: str) -> None:
    refused = await read(data)
    assert refused.error_code == "NOTEBOOK_INVALID"
    assert said in (refused.error or "")


async def test_odd_json_is_read_as_it_is(read: Call) -> None:
    digits = "9" * 5000
    cell = '{"cell_type": "raw", "source": "old", "source": "new", "metadata": {"n": NaN, "big": ' + digits + "}}"
    seen = await read(('\ufeff{"cells": [' + cell + '], "nbformat": 4}').encode())
    assert seen.output == "<cell index=0 type=raw>\nnew\n</cell>"


async def test_what_is_too_large_is_refused_unread(caller: Callable[[BaseTool], Call], ws: Path) -> None:
    with (ws / "big.ipynb").open("wb") as file:
        file.truncate(200 << 20)
    refused = await caller(NotebookRead())(notebook_path="big.ipynb")
    assert refused.error_code == "FILE_TOO_LARGE"
    assert "the limit for reading notebooks is 67,108,864" in str(refused.error)
    assert "jupyter nbconvert --clear-output --inplace" in str(refused.error)


async def test_a_notebook_outside_stays_unread(caller: Callable[[BaseTool], Call], ws: Path) -> None:
    (ws / "link.ipynb").symlink_to("../secret")
    for path in ("../secret", "link.ipynb"):
        refused = await caller(NotebookRead())(notebook_path=path)
        assert refused.error_code == "PATH_OUTSIDE_WORKSPACE"
