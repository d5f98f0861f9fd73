"""Edits of files with very many places: in little memory, and over as soon as nobody waits."""

import time
import tracemalloc
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from forge_tools.errors import SandboxError
from forge_tools.sandbox.paths.files import take_snapshot
from forge_tools.sandbox.paths.workspace import Workspace
from forge_tools.tools.file.edit import Editing
from forge_tools.tools.file.write import Change

Put = Callable[[str, bytes], Path]


def plan(ws: Path, check: Callable[[], None] = lambda: None, **options: Any) -> Change:
    with closing(Workspace(ws)) as workspace, workspace.place("f") as place:
        return Editing(file_path="f", **options).plan(place, take_snapshot(place, lambda: None), check)


@pytest.mark.parametrize(
    ("data", "options", "kibibytes"),
    [
        (b"\n" * (1 << 16), {"old_string": "\n", "new_string": "x"}, 1792),
        (b"\n" * (1 << 16), {"old_string": "\n", "new_string": "x", "near_line": 50_000}, 1792),
        (b"\n" * (1 << 16), {"old_string": "\n", "new_string": "x", "replace_all": True}, 1792),
        (b"\r\n" * (1 << 14), {"old_string": "\n\n", "new_string": "x", "replace_all": True}, 2560),
        (
            b"a \n" * (1 << 12),
            {"old_string": "a\n", "new_string": "b\n", "match": "whitespace", "replace_all": True},
            2560,
        ),
    ],
)
def test_very_many_places_take_a_few_times_the_file(
    ws: Path, write: Put, data: bytes, options: dict[str, Any], kibibytes: int
) -> None:
    """A MiB is what each plan takes; beyond that there are few bytes for each place."""
    write("f", data)
    tracemalloc.start()
    try:
        if options.keys() & {"replace_all", "near_line"}:
            assert plan(ws, **options).data != data
        else:
            with pytest.raises(SandboxError, match=r"occurs 65,536 times in f \(lines 1, 2, 3"):
                plan(ws, **options)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < kibibytes << 10, f"{peak >> 10} KiB"


@pytest.mark.parametrize(
    ("data", "options"),
    [
        (b"ab\n" * (1 << 20), {"old_string": "b", "new_string": "x", "replace_all": True}),
        (b"ab\n" * (1 << 20), {"old_string": "b\na", "new_string": "x", "replace_all": True}),
        (b"a\r\n" * (1 << 20), {"old_string": "a\na", "new_string": "x", "replace_all": True}),
        (b"\n" * (1 << 20), {"old_string": "\n\n\nx", "new_string": "x", "match": "whitespace"}),
    ],
)
def test_a_plan_ends_when_nobody_waits_any_more(ws: Path, write: Put, data: bytes, options: dict[str, Any]) -> None:
    write("f", data)
    asked = [0]

    def give_up_soon() -> None:
        asked[0] += 1
        if asked[0] == 3:
            raise TimeoutError

    started = time.process_time()
    with pytest.raises(TimeoutError):
        plan(ws, give_up_soon, **options)
    assert time.process_time() - started < 2
