"""NotebookRead: the cells of a notebook and their outputs, including images, within a budget."""

import base64
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from forge_tools.artifacts.media import IMAGES, media_type
from forge_tools.errors import InvalidCallError, SandboxError
from forge_tools.model import Image, ToolCategory, ToolResult
from forge_tools.model.content import human
from forge_tools.sandbox.paths.confinement import Handle
from forge_tools.sandbox.paths.files import KEPT_BYTES, etag_of
from forge_tools.sandbox.paths.refusals import TOO_LARGE
from forge_tools.sandbox.paths.workspace import Workspace
from forge_tools.sandbox.processes.streams import plain
from forge_tools.tools.builtin import PATH, Deadline, LookingTool, counted, option, room_for_records
from forge_tools.tools.file.text import visible
from forge_tools.tools.notebook.document import Notebook, source_of

_CHUNK_BYTES = 1 << 20
_MAX_CELLS = 10_000
MOST_IMAGES = 10
_MAX_IMAGE_CHARS = (4 << 20) * 4 // 3  # of Base64
_TEXTS = ("text/plain", "text/markdown", "text/latex", "text/html", "application/json")
_WIDGET = "application/vnd.jupyter.widget-view+json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    notebook_path: str = option(
        "Notebook (.ipynb) to read, relative to the working directory or absolute.",
        aliases=("file_path", "path"), **PATH,
    )  # fmt: skip
    cell_id: str | None = option("Read only the cell with this id.", None, min_length=1, max_length=256)
    cell_index: int | None = option("Read only the cell with this index; the first is 0.", None, minimum=0)
    include_outputs: bool = option("Show the outputs of code cells.", default=True)
    max_output_chars: int = option(
        "Maximum number of characters shown of the outputs of one cell.", 2000, minimum=0, maximum=1_000_000
    )
    include_images: bool = option(f"Show the images among the outputs, {MOST_IMAGES} at most.", default=True)
    offset: int = option("Index of the first cell to read.", 0, minimum=0)
    limit: int = option("Maximum number of cells to read.", 1000, minimum=1, maximum=_MAX_CELLS)


class NotebookRead(LookingTool):
    """Read the cells of a Jupyter notebook with their ids, indexes and outputs; images are returned as parts, other media are named."""

    name = "NotebookRead"
    aliases = ("notebook_read",)
    category = ToolCategory.NOTEBOOK
    options = Wish

    def _answer(self, wish: Wish, workspace: Workspace, deadline: Deadline, max_chars: int) -> ToolResult:
        if wish.cell_id is not None and wish.cell_index is not None:
            raise InvalidCallError("Pass cell_id or cell_index, not both")
        with workspace.open_file(wish.notebook_path) as file:
            return shown_cells(file, wish, deadline, max_chars)


def shown_cells(file: Handle, wish: Wish, deadline: Deadline, max_chars: int) -> ToolResult:
    """Show cells of an open notebook."""
    data = _whole(file, deadline)
    notebook, shown = Notebook.of(data, file.name), file.name
    first, limit, room = wish.offset, wish.limit, room_for_records(max_chars)
    if wish.cell_id is not None or wish.cell_index is not None:
        first, limit = notebook.find(wish.cell_id, wish.cell_index, shown), 1
    blocks, used, total = list[str](), 0, len(notebook.cells)
    for index in range(first, min(total, first + limit)):
        block = _block(index, notebook.cells[index].value, wish)
        if blocks and used + len(block) > room:  # a single cell that is too long is truncated later, like any output
            break
        blocks.append(block)
        used += len(block) + 1
    end = first + len(blocks)
    facts = _facts(notebook, data) | {"shown_cells": len(blocks), "truncated": end < total and limit > 1}
    notes = []
    if facts["truncated"]:
        facts["next"] = {"offset": end}
        notes.append(f"[cells {first}-{end - 1} of {total:,}; continue with NotebookRead, offset={end}]")
    if not blocks:
        notes.append(f"[no cells from offset {first} on: {shown} has {counted(total, 'cell')}]")
    if doubles := facts.get("duplicate_ids"):
        notes.append(f"[several cells have the id {', '.join(doubles)}: pass cell_index for them]")
    images = list(_images(notebook, range(first, end))) if wish.include_outputs and wish.include_images else []
    if len(images) > MOST_IMAGES:
        notes.append(f"[{counted(len(images) - MOST_IMAGES, 'more image')}: read their cells one at a time]")
    text = "\n".join([*blocks, *notes])
    return ToolResult.ok([text, *images[:MOST_IMAGES]] if images else text, **facts)


def _whole(file: Handle, deadline: Deadline) -> bytes:
    if file.stat.st_size > KEPT_BYTES:
        what = f"{file.name} is {file.stat.st_size:,} bytes; the limit for reading notebooks is {KEPT_BYTES:,}"
        way = (
            f"Clear its outputs (jupyter nbconvert --clear-output --inplace {file.name}), or look for a part with Grep"
        )
        raise SandboxError(f"{what}. {way}", TOO_LARGE)
    data = bytearray()
    while len(data) <= KEPT_BYTES and (chunk := os.pread(file.fd, _CHUNK_BYTES, len(data))):
        deadline.check()
        data += chunk
    return bytes(data)


def _images(notebook: Notebook, indexes: range) -> Iterator[Image]:
    """Yield the images among the outputs, named after cell and output; other media are only named in the text."""
    for index in indexes:
        outputs = notebook.cells[index].value.get("outputs")
        for number, output in enumerate(outputs if isinstance(outputs, list) else ()):
            data = output.get("data") if isinstance(output, dict) else None
            for mime, value in data.items() if isinstance(data, dict) else ():
                if mime in IMAGES and len(text := _joined(value)) <= _MAX_IMAGE_CHARS:
                    with suppress(ValueError):  # it is not Base64
                        if media_type(raw := base64.b64decode(text)) == mime:
                            yield Image(raw, f"cell-{index}-output-{number}.{mime.rpartition('/')[2]}")


def _block(index: int, cell: dict[str, Any], wish: Wish) -> str:
    marks = [f"id={json.dumps(cell['id'], ensure_ascii=False)}"] if "id" in cell else []
    marks += [f"index={index}", f"type={cell['cell_type']}"]
    if cell["cell_type"] == "code":
        marks.append(f"execution_count={json.dumps(cell.get('execution_count'))}")
    lines = [f"<cell {visible(' '.join(marks))}>", visible(source_of(cell))]
    if wish.include_outputs and (outputs := render_outputs(cell.get("outputs"), wish.max_output_chars)):
        lines += ["<outputs>", outputs, "</outputs>"]
    return "\n".join([*lines, "</cell>"])


def _facts(notebook: Notebook, data: bytes) -> dict[str, Any]:
    ids = [str(cell.value["id"]) for cell in notebook.cells if "id" in cell.value]
    known = notebook.metadata
    language = _inside(known, "kernelspec", "language") or _inside(known, "language_info", "name")
    facts: dict[str, Any] = {
        "total_cells": len(notebook.cells),
        "nbformat": f"4.{notebook.minor}",
        "language": language,
        "bytes": len(data),
        "etag": etag_of(data),
    }
    doubles = sorted({one for one in ids if ids.count(one) > 1}) if len(set(ids)) < len(ids) else []
    return facts | ({"duplicate_ids": doubles[:20]} if doubles else {})


def _inside(metadata: dict[str, Any], table: str, key: str) -> str | None:
    found = metadata.get(table)
    value = found.get(key) if isinstance(found, dict) else None
    return value if isinstance(value, str) else None


def render_outputs(outputs: Any, limit: int) -> str:
    """Render the outputs of a cell within `limit` characters: the head, how much was left out, and the tail."""
    if not isinstance(outputs, list):
        return ""
    texts = [text.rstrip("\n") for output in outputs for text in _texts(output)]
    return visible(clip("\n".join(text for text in texts if text), limit))


def clip(text: str, limit: int) -> str:
    """Keep 40 % of the limit from the head and 60 % from the tail."""
    if len(text) <= limit:
        return text
    head = limit * 2 // 5
    tail = limit - head
    omitted = len(text) - limit
    return f"{text[:head]}\n[... {omitted:,} characters left out; pass a larger max_output_chars ...]\n{text[-tail:]}"


def _texts(output: Any) -> Iterator[str]:
    kind = output.get("output_type") if isinstance(output, dict) else None
    if kind == "stream":
        yield plain(_joined(output.get("text")))
    elif kind == "error":
        trace = plain("\n".join(map(_joined, output.get("traceback") or ())))
        yield trace or plain(f"{output.get('ename')}: {output.get('evalue')}")
    elif kind in ("display_data", "execute_result") and isinstance(output.get("data"), dict):
        yield from _data(output["data"])
    else:
        yield f"[output of unknown type {str(kind)[:40]}]"


def _data(data: Mapping[str, Any]) -> Iterator[str]:
    """Yield the parts of one output that comes in several types: all media, and the plainest text."""
    if isinstance(widget := data.get(_WIDGET), dict):
        yield f"[widget {str(widget.get('model_id'))[:64]}]"
    for mime, value in data.items():
        if mime not in _TEXTS and mime != _WIDGET:
            text = _joined(value)
            yield f"[{mime} {human(len(text) if mime == 'image/svg+xml' else len(text) * 3 // 4)}]"
    for mime in [one for one in _TEXTS if one in data][:1]:
        value = data[mime]
        yield json.dumps(value, ensure_ascii=False) if mime == "application/json" else plain(_joined(value))


def _joined(value: Any) -> str:
    if isinstance(value, list):
        return "".join(map(str, value))
    return value if isinstance(value, str) else "" if value is None else json.dumps(value)
