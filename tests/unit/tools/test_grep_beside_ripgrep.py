"""Grep finds what plain ripgrep finds in a tree of odd names, encodings and rules, but no secrets."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from forge_tools.model import ExecutionContext
from forge_tools.sandbox.processes.commands import find_beside_python
from forge_tools.sandbox.processes.environment import child_environment
from forge_tools.sandbox.reach import REACH, Reach
from forge_tools.tools.file.grep import Grep

RIPGREP = str(find_beside_python("rg"))

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


@pytest.mark.parametrize("pattern", ["foo", r"\w+ing?", "^$", "e$", "é|ü"])
async def test_it_finds_what_ripgrep_finds_by_itself(tree: Path, pattern: str) -> None:
    command = [RIPGREP, "--no-config", "--crlf", "--hidden", "--no-require-git", "--glob=!.git", "--glob=!.env", "--glob=!id_rsa",
               "--sort=path", "--null", "--count", "--no-ignore-global", "--no-ignore-parent", "-e", pattern, "--", "."]  # fmt: skip
    done = subprocess.run(command, cwd=tree, capture_output=True, env=child_environment(), check=True)
    expected = [line.replace(b"\0", b":")[2:] for line in done.stdout.split(b"\n./")]
    found = await Grep().execute(ExecutionContext(working_dir="."), pattern=pattern, output_mode="count")
    shown = [line for line in found.output.split("\n") if not line.startswith("[")]
    assert len(shown) == len(expected) > 0
    assert [line.rpartition(":")[2] for line in shown] == [
        line.rstrip().rpartition(b":")[2].decode() for line in expected
    ]


async def test_secrets_are_not_searched() -> None:
    found = await Grep().execute(ExecutionContext(working_dir="."), pattern="SECRET|foo key", respect_ignore=False)
    assert found.output.startswith("No matches")
    assert "[left out: 2 that may hold secrets]" in found.output
