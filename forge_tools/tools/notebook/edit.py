"""NotebookEdit: replace, insert or delete one cell of a notebook without changing a byte of the others."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal, NamedTuple

from forge_tools.errors import InvalidCallError, SandboxError
from forge_tools.model import ToolCategory, ToolResult
from forge_tools.sandbox.paths.files import KEPT_BYTES, Snapshot
from forge_tools.sandbox.paths.places import Check, Place
from forge_tools.sandbox.paths.refusals import TOO_LARGE
from forge_tools.tools.builtin import PATH, option
from forge_tools.tools.file.text import Encoding, encode
from forge_tools.tools.file.write import Change, ChangingTool, facts_of, require_match, unified
from forge_tools.tools.notebook.document import Notebook, drop, parse_value, put, source_of

_MAX_CHARS = 10_000_000
_IDS_FROM_MINOR = 5  # nbformat 4.5 gave cells ids
_OF_CODE = ("outputs", "execution_count")
_DONE = {"replace": "Replaced", "insert": "Inserted", "delete": "Deleted"}


class _Edited(NamedTuple):
    """`text` is the whole notebook, `cell` the changed one; None if it was deleted."""

    text: str
    before: str
    after: str
    facts: dict[str, Any]
    cell: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Editing:
    notebook_path: str = option(
        "Notebook (.ipynb) to change, relative to the working directory or absolute.",
        aliases=("file_path", "path"), **PATH,
    )  # fmt: skip
    edit_mode: Literal["replace", "insert", "delete"] = option(
        "replace the source of a cell; insert a cell after the named one; delete a cell.", "replace"
    )
    cell_id: str | None = option("The cell with this id.", None, min_length=1, max_length=256)
    cell_index: int | None = option("The cell with this index instead; the first is 0.", None, minimum=0)
    new_source: str | None = option("New source of the cell; not for delete.", None, max_length=_MAX_CHARS)
    cell_type: Literal["code", "markdown", "raw"] | None = option(
        "Type of the cell. Needed to insert; by default a replaced cell keeps its own.", None
    )
    position: Literal["start", "end"] | None = option(
        "Where to insert if no cell is named; by default at the start.", None
    )
    clear_outputs: bool = option("Remove the outputs and the execution count of a replaced code cell.", default=True)
    if_match: str | None = option(
        "Edit only if the file still has this etag, which NotebookRead and the last write returned.",
        None,
        max_length=64,
    )

    def __post_init__(self) -> None:
        """Refuse options that contradict each other before any file is opened."""
        named = sum(value is not None for value in (self.cell_id, self.cell_index))
        if named > 1 or (not named and self.edit_mode != "insert"):
            raise InvalidCallError(f"Pass either cell_id or cell_index to {self.edit_mode} a cell")
        if self.edit_mode != "delete" and self.new_source is None:
            raise InvalidCallError(f"Pass new_source to {self.edit_mode} a cell")
        if self.edit_mode == "insert" and self.cell_type is None:
            raise InvalidCallError("Pass cell_type to insert a cell: code, markdown or raw")
        if self.position is not None and (named or self.edit_mode != "insert"):
            raise InvalidCallError("position says where to insert if no cell is named; leave it out, or name no cell")

    @property
    def file_path(self) -> str:
        return self.notebook_path

    def plan(self, place: Place, seen: Snapshot | None, check: Check) -> Change:
        require_match(place, seen, self.if_match)
        if seen is None:
            raise place.not_found()
        if seen.data is None:
            what = f"{place.shown} is {seen.status.st_size:,} bytes; the limit for editing notebooks is {KEPT_BYTES:,}"
            way = f"Clear its outputs first (jupyter nbconvert --clear-output --inplace {place.shown})"
            raise SandboxError(f"{what}. {way}", TOO_LARGE)
        encode(self.new_source or "", Encoding("utf-8"), place.shown, "new_source")  # refuses half surrogate pairs
        notebook = Notebook.of(seen.data, place.shown)
        check()
        edit = {"replace": self._replace, "insert": self._insert, "delete": self._delete}[self.edit_mode]
        return self._change(notebook, edit(notebook, place.shown), place, seen)

    def _replace(self, notebook: Notebook, shown: str) -> _Edited:
        index = notebook.find(self.cell_id, self.cell_index, shown)
        span = notebook.cells[index]
        old, text, style = span.value, notebook.text[span.start : span.end], notebook.style
        kind, new = self.cell_type or old["cell_type"], self.new_source or ""
        if kind != old["cell_type"]:
            text = put(text, "cell_type", kind, style)
            for key in _OF_CODE if kind != "code" else ():
                text = drop(text, key)
        if kind == "code" and (self.clear_outputs or kind != old["cell_type"]):
            text = put(put(text, "outputs", [], style), "execution_count", None, style)
        dropped = ["attachments"] if kind == "code" and "attachments" in old else []
        if dropped:
            text = drop(text, "attachments")
        if source_of(old) != new:
            text = put(text, "source", _source(new, like=[old]), style)
        facts = {"cell_type": kind, "cell_id": old.get("id"), "cell_index": index}
        facts |= {"dropped": dropped} if dropped else {}
        return _Edited(notebook.replaced(index, text), source_of(old), new, facts, parse_value(text, 0).value)

    def _insert(self, notebook: Notebook, shown: str) -> _Edited:
        index, count = 0, len(notebook.cells)
        if self.cell_id is not None or self.cell_index is not None:
            index = notebook.find(self.cell_id, self.cell_index, shown) + 1
        elif self.position == "end":
            index = count
        kind, new = self.cell_type or "code", self.new_source or ""
        near = [one.value for one in notebook.cells[max(0, index - 1) : index + 1]]
        cell: dict[str, Any] = {"cell_type": kind, "metadata": {}, "source": _source(new, like=near)}
        if kind == "code":
            cell |= {"execution_count": None, "outputs": []}
        if notebook.minor >= _IDS_FROM_MINOR:
            cell["id"] = _fresh_id(notebook, index, new)
        order = _order(near, sorted(cell))
        text = notebook.inserted(index, {key: cell[key] for key in order})
        facts = {"cell_type": kind, "cell_id": cell.get("id"), "cell_index": index}
        return _Edited(text, "", new, facts, cell)

    def _delete(self, notebook: Notebook, shown: str) -> _Edited:
        index = notebook.find(self.cell_id, self.cell_index, shown)
        cell = notebook.cells[index].value
        facts = {"cell_type": cell["cell_type"], "cell_id": cell.get("id"), "cell_index": index}
        return _Edited(notebook.deleted(index), source_of(cell), "", facts)

    def _change(self, notebook: Notebook, edited: _Edited, place: Place, seen: Snapshot) -> Change:
        data = notebook.data(edited.text)
        count = len(notebook.cells) + {"insert": 1, "delete": -1}.get(self.edit_mode, 0)
        facts = facts_of(seen, data) | edited.facts | {"total_cells": count}
        named = "" if facts["cell_id"] is None else f", id {facts['cell_id']}"
        what = f"cell {facts['cell_index']} ({facts['cell_type']}{named}) of {place.shown}"
        if data == seen.data:
            result = ToolResult.ok(f"Unchanged: {what} is already so", **facts)
            return Change(data=None, result=result, preview=f"Would change nothing: {what} is already so")
        diff = unified(edited.before, edited.after)
        told = [what, diff] if diff else [what]
        if "dropped" in facts:
            told.append("[warning: its attachments were removed: a code cell has none]")
        if edited.cell is not None and (problems := _problems(notebook.minor, edited.cell)):
            facts["warnings"] = problems
            told += [f"[warning: the cell is not valid nbformat: {problem}]" for problem in problems]
        text = "\n".join(told)
        result = ToolResult.ok(f"{_DONE[self.edit_mode]} {text}", **facts)
        return Change(data=data, result=result, preview=f"Would {self.edit_mode} {text}")


class NotebookEdit(ChangingTool):
    """Replace, insert or delete one cell of a Jupyter notebook; the rest of the file stays byte for byte as it was.

    Replacing the source of a code cell removes its outputs and execution count, which no longer belong to it.
    """

    name = "NotebookEdit"
    aliases = ("notebook_edit",)
    category = ToolCategory.NOTEBOOK
    options = _Editing


def _problems(minor: int, cell: Any) -> list[str]:
    """Return what nbformat, if installed, finds wrong with the changed cell."""
    try:
        from nbformat.validator import iter_validate
    except ImportError:
        return []
    alone = {"nbformat": 4, "nbformat_minor": minor, "metadata": {}, "cells": [cell]}
    validate: Callable[..., Iterable[Exception]] = iter_validate
    found = validate(alone, version=4, version_minor=minor)
    return [str(error).partition("\n")[0][:200] for error in found][:3]


def _source(text: str, *, like: Sequence[dict[str, Any]]) -> str | list[str]:
    """Return the source in the form that its neighbours use: one text or a list of lines."""
    if like and isinstance(like[0].get("source"), str):
        return text
    *lines, rest = text.split("\n")
    return [f"{line}\n" for line in lines] + ([rest] if rest else [])


def _order(near: Sequence[dict[str, Any]], keys: list[str]) -> list[str]:
    """Return the keys of a new cell: sorted, unless its neighbour has them in another order."""
    known = list(near[0]) if near else []
    if known == sorted(known):
        return keys
    return sorted(keys, key=lambda key: known.index(key) if key in known else len(known))


def _fresh_id(notebook: Notebook, index: int, source: str) -> str:
    """Return an unused id, always the same for the same edit, so that a dry run shows the right one."""
    taken, number = {str(cell.value.get("id")) for cell in notebook.cells}, 0
    while True:
        seed = f"{number}:{index}:{len(notebook.text)}:{source}".encode()
        made = blake2b(seed, digest_size=4).hexdigest()
        if made not in taken:
            return made
        number += 1
