"""Python finds what ripgrep finds: many expressions, every way to ignore, every form of the answer."""

import asyncio
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from forge_tools.records import ExecutionContext, ToolResult
from forge_tools.sandbox.environment import child_environment
from forge_tools.sandbox.programs import find_beside_python
from forge_tools.sandbox.reach import REACH, Reach
from forge_tools.tools.file.fallback import TYPES
from forge_tools.tools.file.grep import Grep

RIPGREP = Path(str(find_beside_python("rg")))

FILES: dict[str, bytes] = {
    "a.py": b"import os\nclass Foo(Bar):\n    def run(self) -> int:\n        return 42  # foo\n\n",
    "src/b.py": b"from x import y\nfoo = foo_bar + food\nFOO\n\nend",
    "src/deep/c.ts": "const naïve = 'é😀';\r\nexport {a, b};\r\n\tfoo()\r\n".encode(),
    ".hidden/h.py": b"hidden foo\n",
    "build/o.py": b"built foo\n",
    "gen_x.py": b"generated foo 123\n",
    "keep.log": b"kept foo\nERROR: 12:30 user@example.org\n",
    "x.log": b"WARNING foo\n",
    "latin.txt": b"caf\xe9 foo\nplain\n",
    "utf16.txt": "foo über\nzwei".encode("utf-16"),
    "bom.txt": b"\xef\xbb\xbffoo first\nsecond\n",
    "binary.bin": b"foo\0bar\n",
    "late.bin": b"foo early\n" + b"x" * 200_000 + b"\n\0foo late\n",
    "empty": b"",
    "blank": b"\n\n  \n",
    "long.js": b"a" * 3000 + b"foo" + b"b" * 3000 + b"\nfoo\n",
    "cr.txt": b"foo\rbar\r\nbaz\n",
    "sp ace/[x] {y}.md": b"# foo\n- item\n\n```\nfoo {bar} [baz]\n```\n",
    "new\nline.txt": b"foo in an odd place\n",
    "bad\udcff.txt": b"foo in another\n",
    ".env": b"SECRET=foo\n",
    "deploy/id_rsa": b"foo key\n",
    "node_modules/m/index.js": b"foo module\n",
    "node_modules/m/.gitignore": b"!*\n",
}
IGNORING = b"gen_*\nbuild/\n*.log\n!keep.log\nnode_modules\n"

PATTERNS = [
    "foo", "FOO", "Foo|Bar", "fo+", "f.o", "^foo", "foo$", "^$", "^", "$", ".", ".*", "o{2}", "(fo){1,2}o?", "f[aeiou]+", "[^a-z]foo",
    "[[:digit:]]+", r"\d{2}:\d{2}", r"\w+@\w+\.\w+", r"\bfoo\b", r"\Boo\B", r"\s+foo", r"\S{10,}", r"foo\(\)", r"\[baz\]", r"\{bar\}",
    "(?i)error", "x(?i)Y|FOO", "(?:import|from) [a-z]+", "(?P<kind>class|def) (?P<name>\\w+)", "é", "😀", "[à-ü]", r"\u{e9}", r"\x66oo",
    "na.ve", "foo|", "a{3000}foo", "[]x]", "[\\w.-]+", r"[\s\S]foo", "-> int", "--", "# foo", r"\t", r"\<foo\>", "nothing at all",
    "user|über|second", "f(o|(o))b", "(^|[^o])foo($|[^d_])",
]  # fmt: skip
SETTINGS = [
    {"output_mode": "content"},
    {"output_mode": "content", "respect_ignore": False, "ignore_case": True, "-C": 1},
    {"output_mode": "count", "respect_ignore": False, "hidden": False},
    {"output_mode": "files_with_matches", "glob": "**/*.{py,txt,log}", "word": True},
    {"output_mode": "content", "max_per_file": 1, "-B": 2, "path": "src", "type": "py"},
]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("engines")
    for name, content in {**FILES, ".gitignore": IGNORING, ".git/HEAD": b"foo"}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


@pytest.fixture(autouse=True)
def _root(tree: Path) -> Iterator[None]:
    token = REACH.set(Reach(root=tree))
    yield
    REACH.reset(token)


async def both(monkeypatch: pytest.MonkeyPatch, **arguments: object) -> tuple[ToolResult, ToolResult]:
    monkeypatch.setattr("forge_tools.tools.file.grep.find_beside_python", lambda _: None)
    context = ExecutionContext(working_dir=".")
    one, other = await asyncio.gather(*(tool.execute(context, **arguments) for tool in (Grep(RIPGREP), Grep())))
    assert (one.success, other.success) == (True, True), (one.error, other.error)
    return one, other


def without_hint(result: ToolResult) -> str:
    """The answer alone: a hint is given only where there is time to look for one."""
    return re.sub(r" There are some with .*", "", result.output)


@pytest.mark.parametrize("pattern", PATTERNS)
async def test_both_engines_answer_alike(monkeypatch: pytest.MonkeyPatch, pattern: str) -> None:
    for setting in SETTINGS:
        one, other = await both(monkeypatch, pattern=pattern, **setting)
        assert without_hint(other) == without_hint(one), setting
        differing = {key for key in one.metadata | other.metadata if one.metadata.get(key) != other.metadata.get(key)}
        assert differing <= {"engine"}, setting


@pytest.mark.parametrize("pattern", ["foo", r"\w+ing?", "^$", "e$", "é|ü"])
async def test_both_find_what_ripgrep_finds_by_itself(
    monkeypatch: pytest.MonkeyPatch, tree: Path, pattern: str
) -> None:
    command = [str(RIPGREP), "--no-config", "--crlf", "--hidden", "--no-require-git", "--glob=!.git", "--glob=!.env", "--glob=!id_rsa",
               "--sort=path", "--null", "--count", "--no-ignore-global", "--no-ignore-parent", "-e", pattern, "--", "."]  # fmt: skip
    done = subprocess.run(command, cwd=tree, capture_output=True, env=child_environment(), check=True)
    expected = [line.replace(b"\0", b":")[2:] for line in done.stdout.split(b"\n./")]
    one, other = await both(monkeypatch, pattern=pattern, output_mode="count")
    assert one.output == other.output
    shown = [line for line in one.output.split("\n") if not line.startswith("[")]
    assert len(shown) == len(expected) > 0
    assert [line.rpartition(":")[2] for line in shown] == [
        line.rstrip().rpartition(b":")[2].decode() for line in expected
    ]


async def test_secrets_are_searched_by_neither(monkeypatch: pytest.MonkeyPatch) -> None:
    for result in await both(monkeypatch, pattern="SECRET|foo key", respect_ignore=False):
        assert result.output.startswith("No matches")
        assert "[left out: 2 binary files, 2 that may hold secrets]" in result.output


@pytest.mark.parametrize("name", ["a.py", "binary.bin", "utf16.txt", "empty"])
@pytest.mark.parametrize("mode", ["content", "count", "files_with_matches"])
async def test_single_files_are_searched_alike(monkeypatch: pytest.MonkeyPatch, name: str, mode: str) -> None:
    one, other = await both(monkeypatch, pattern="foo|bar", path=name, output_mode=mode)
    assert one.output == other.output


async def test_a_page_and_the_next_are_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    for offset in (0, 5, 10, 500):
        one, other = await both(monkeypatch, pattern="foo", output_mode="content", head_limit=5, offset=offset)
        assert one.output == other.output
        assert one.metadata.get("next") == other.metadata.get("next")


def test_the_types_that_python_knows_are_those_of_ripgrep() -> None:
    listed = subprocess.run([RIPGREP, "--no-config", "--type-list"], capture_output=True, text=True, check=True).stdout
    known = dict(line.split(": ") for line in listed.splitlines())
    assert {name: sorted(globs.split(",")) for name, globs in TYPES.items()} == {
        name: sorted(known[name].split(", ")) for name in TYPES
    }
