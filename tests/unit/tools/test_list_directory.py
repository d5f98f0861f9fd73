"""ListDirectory on folders that are large, odd or hostile."""

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from forge_tools.model import ToolResult
from forge_tools.sandbox.paths import folders
from forge_tools.tools.file.list_directory import ListDirectory

Call = Callable[..., Awaitable[ToolResult]]
Put = Callable[[str, bytes], Path]


@pytest.fixture
def call(caller: Callable[[ListDirectory], Call]) -> Call:
    return caller(ListDirectory())


@pytest.fixture
def tree(write: Put, ws: Path) -> Path:
    for name, size in {"b.txt": 1, "Z.py": 3, "src/a.py": 2, "src/lib/x.pyc": 9, ".hidden": 0, "é": 5}.items():
        write(name, b"x" * size)
    return ws


async def test_folders_come_first_then_names_by_their_bytes(call: Call, tree: Path) -> None:
    result = await call()
    assert result.output == "src/\n.hidden\nZ.py\nb.txt\né\n(5 entries)"
    assert result.metadata["entries"][2].items() >= {"path": "Z.py", "type": "file", "size": 3, "mode": "0644"}.items()


async def test_a_depth_gives_a_tree_and_counts_where_it_ends(call: Call, tree: Path) -> None:
    assert (await call(depth=2, hidden=False)).output == "src/\n  lib/ (1 entry)\n  a.py\nZ.py\nb.txt\né\n(6 entries)"
    assert (await call(path="src", depth=9)).output == "lib/\n  x.pyc\na.py\n(3 entries)"


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"ignore": ["*.py", "src"]}, [".hidden", "b.txt", "é"]),
        ({"ignore": ["src/*.py", "*.pyc"], "depth": 3}, ["src", "src/lib", ".hidden", "Z.py", "b.txt", "é"]),
        ({"sort": "size", "ignore": ["src/"]}, ["é", "Z.py", "b.txt", ".hidden"]),
        ({"sort": "mtime", "ignore": ["src"]}, ["b.txt", ".hidden", "Z.py", "é"]),
        ({"limit": 2}, ["src", ".hidden"]),
        ({"ignore": ["Z.py/", "b.txt/", "src/"]}, [".hidden", "Z.py", "b.txt", "é"]),
        ({"ignore": ["/src/**", "/*.txt", "a.py"], "depth": 3}, ["src", ".hidden", "Z.py", "é"]),
        ({"ignore": ["*", "!src", "!{Z,a}.py"], "depth": 2}, ["src", "src/a.py", "Z.py"]),
    ],
)
async def test_what_is_shown_can_be_chosen(call: Call, tree: Path, options: dict[str, Any], names: list[str]) -> None:
    for name in (".hidden", "Z.py", "é"):
        os.utime(tree / name, (1_000_000, 1_000_000))
    result = await call(**options)
    assert [entry["path"] for entry in result.metadata["entries"]] == names


async def test_what_is_left_out_is_said(call: Call, tree: Path) -> None:
    result = await call(limit=2)
    assert result.output.endswith("(5 entries, 2 shown. Pass a larger limit, ignore, or the path of a folder in it)")
    assert (result.metadata["truncated"], result.metadata["total_entries"]) == (True, 5)
    assert (await call(depth=2, limit=2)).output.splitlines()[-1].startswith("(more than")


async def test_links_say_where_they_lead_but_not_outside(call: Call, ws: Path, write: Put) -> None:
    write("d/f", b"")
    links = {"in": "d/f", "absolute": f"{ws}/d", "gone": "nope", "out": "../secret", "far": "/etc/passwd", "up": ".."}
    for name, target in {**links, "no": "../no-such", "loop": "loop"}.items():
        (ws / name).symlink_to(target)
    shown = dict(line.split(" -> ") for line in (await call(depth=10)).output.splitlines() if "->" in line)
    outside = dict.fromkeys(("out", "far", "up", "no"), "[outside]")
    assert shown == {"in": "d/f", "absolute": "d", "gone": "nope", "loop": "loop", **outside}


async def test_odd_names_are_shown_in_one_line(call: Call, ws: Path) -> None:
    for name in ("new\nline", "\x1b[31mred", "rtl\u202etxt", "\udcff\udcfe", "-rf"):
        (ws / name).write_text("")
    result = await call()
    assert result.output == "\\x1b[31mred\n-rf\nnew\\nline\nrtl\\u202etxt\n\\xff\\xfe\n(5 entries)"
    assert [entry["path"] for entry in result.metadata["entries"]] == result.output.splitlines()[:-1]


async def test_details_are_mode_size_and_time(call: Call, tree: Path) -> None:
    os.utime(tree / "b.txt", (1_000_000_000, 1_000_000_000))
    result = await call(details=True, ignore=["src", ".*", "Z.py", "é"])
    assert result.output == "rw-r--r--            1 2001-09-09T01:46:40Z  b.txt\n(1 entry)"


async def test_what_is_not_a_folder_or_protected_is_refused(call: Call, tree: Path) -> None:
    (tree / ".ssh").mkdir()
    assert (await call(path="b.txt")).error == "b.txt is a file; pass the path of a directory"
    assert (await call(path=".ssh")).error_code == "PATH_PROTECTED"
    assert "\n.ssh/ [protected]\n" in f"\n{(await call(depth=2)).output}"
    assert (await call(path="sr")).error == "File not found: sr. Similar: src"


async def test_what_cannot_be_read_is_said_and_the_rest_shown(call: Call, tree: Path, as_nobody: Any) -> None:
    as_nobody(tree / "src")
    (tree / "src").chmod(0)
    result = await call(depth=2)
    alone = await call(path="src")
    (tree / "src").chmod(0o755)
    assert result.output.startswith("src/ [unreadable]\n.hidden\n")
    assert alone.error_code == "PERMISSION_DENIED"


async def test_special_files_and_empty_folders(call: Call, ws: Path) -> None:
    assert (await call()).output == "(0 entries)"
    os.mkfifo(ws / "fifo")
    assert (await call()).output == "fifo [fifo]\n(1 entry)"


async def test_what_vanishes_meanwhile_is_said_to_be_gone(
    call: Call, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = folders.scan

    def scan_then_delete(folder: Any) -> Any:
        found = real(folder)
        (tree / "b.txt").unlink()
        os.mkfifo(tree / "b.txt")
        return found

    monkeypatch.setattr("forge_tools.tools.file.list_directory.scan", scan_then_delete)
    result = await call(details=True)
    assert result.success


async def test_a_large_folder_is_listed_within_the_output_limit(call: Call, ws: Path) -> None:
    for number in range(3000):
        (ws / f"{number:05}").touch()
    result = await call({"max_output_size": 2000}, limit=10_000)
    assert len(result.output) <= 2000
    assert result.metadata["shown_entries"] == len(result.metadata["entries"]) == 300
    assert result.metadata["total_entries"] == 3000


async def test_without_time_it_returns_what_it_has(call: Call, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forge_tools.tools.builtin.Deadline.is_over", True)
    result = await call()
    assert (result.success, result.metadata["partial"]) == (True, True)
    assert result.output == "(0 entries shown: the call's time ran out)"


@pytest.mark.parametrize("glob", ["[a", "{a,b", "a\nb"])
async def test_what_to_leave_out_has_to_be_a_glob(call: Call, tree: Path, glob: str) -> None:
    assert (await call(ignore=[glob])).error_code == "INVALID_GLOB"
