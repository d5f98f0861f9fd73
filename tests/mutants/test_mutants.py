"""The mutants themselves: what is changed, what a seed selects, and how tests react."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.mutants.__main__ import Hunt
from tests.mutants.changes import choose, mutants_of
from tests.mutants.reach import Reach, files_about
from tests.mutants.record import record, recorded_score
from tests.mutants.trees import KILLED, SURVIVED, Tree
from tests.waiting import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
SIZES = """
def is_large(size: int) -> bool:
    return size > 10


def is_small(size: int) -> bool:
    return size < 3


def is_empty(size: int) -> bool:
    return size == 0
"""
TESTS = """
from forge_tools.sizes import is_large, is_small


def test_ten_is_not_large():
    assert not is_large(10)
    assert is_large(11)


def test_two_is_small():
    assert is_small(2)
"""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x < 3 and y", {"x <= 3 and y", "x < 4 and y", "x < 3 or y"}),
        ("f(x, 'y')", {"f('y', x)", "f(x, 'y mutant')"}),
        ("not x", {"x"}),
        ("x if y else z", {"x if not y else z"}),
        ("logger.info('x')", set()),
        ("f'{x + 1}'", set()),
    ],
)
def test_an_expression_has_these_mutants(before: str, after: set[str]) -> None:
    source = f"x = {before}".encode() if "logger" not in before else before.encode()

    mutated = {mutant.applied(source).decode().removeprefix("x = ") for mutant in mutants_of(source, "a.py")}

    assert {text.replace("(", "").replace(")", "") for text in mutated} == {
        text.replace("(", "").replace(")", "") for text in after
    }


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("return x", "return None"),
        ("f()", "pass"),
        ("self.x = y", "pass"),
        ("x += y", "pass"),
        ("raise ValueError('x')", "pass"),
        ("break", "continue"),
    ],
)
def test_a_statement_has_this_mutant(before: str, after: str) -> None:
    source = f"def f(self, x, y):\n    while x > y:\n        {before}\n".encode()

    assert f"        {after}\n" in [
        mutant.applied(source).decode().split("\n", 2)[2] for mutant in mutants_of(source, "a.py")
    ]


def test_code_that_moves_keeps_its_mutants(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/one.py").write_text(SIZES)
    before = {(each.function, each.after) for each in choose(tmp_path, "a", 2, seed=1)}

    (tmp_path / "a/one.py").rename(tmp_path / "a/two.py")
    (tmp_path / "a/two.py").write_text("\n\n\n" + SIZES)

    after = choose(tmp_path, "a", 2, seed=1)
    assert {(each.function, each.after) for each in after} == before
    assert {each.file for each in after} == {"a/two.py"}


def test_a_seed_chooses_lines(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("".join(f"a{number} = {number}\n" for number in range(100)))

    chosen = [[each.line for each in choose(tmp_path, ".", 5, seed)] for seed in (1, 1, 2)]

    assert chosen[0] == chosen[1] != chosen[2]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of this one with a package that is hardly tested, and nothing else to test; with what is compiled of it."""
    root = tmp_path / "project"
    shutil.copytree(ROOT / "forge_tools", root / "forge_tools", ignore=shutil.ignore_patterns("*.pyc.*"))
    shutil.copytree(ROOT / "tests/mutants", root / "tests/mutants", ignore=shutil.ignore_patterns("test_*", "*.pyc.*"))
    (root / "tests/__pycache__").mkdir()
    for file in (*ROOT.glob("tests/*.py"), *ROOT.glob("tests/__pycache__/*.pyc"), ROOT / "pyproject.toml"):
        shutil.copy2(file, root / file.relative_to(ROOT))
    for suite in ("unit", "spec", "contract"):
        (root / "tests" / suite).mkdir()
        (root / "tests" / suite / "conftest.py").touch()
    (root / "forge_tools/sizes.py").write_text(SIZES)
    (root / "tests/unit/test_sizes.py").write_text(TESTS)
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    return root


def test_what_a_test_notices_is_killed_and_what_none_notices_is_named(project: Path, tmp_path: Path) -> None:
    tree = Tree(project, tmp_path / "tree", PATIENCE)
    files = files_about(project, "forge_tools/sizes.py")
    tree.measure(files, tmp_path / "traces", untraced="")
    source = (project / "forge_tools/sizes.py").read_bytes()
    boundaries = [each for each in mutants_of(source, "forge_tools/sizes.py") if "=" in each.after]

    verdicts = Hunt([tree], Reach(project, files, tmp_path / "traces")).verdicts(boundaries)

    assert {each.mutant.function: (each.ended, each.executed) for each in verdicts} == {
        "is_large": (KILLED, True),
        "is_small": (SURVIVED, True),
        "is_empty": (SURVIVED, False),
    }
    record(tmp_path / "MUTANTS.md", "forge_tools/sizes.py", 1, verdicts, "abc")
    told = (tmp_path / "MUTANTS.md").read_text()
    assert "- `forge_tools/sizes.py:7` is_small: `size < 3` → `(size <= 3)`\n" in told
    assert "- `forge_tools/sizes.py:11` is_empty: `size == 0` → `(size != 0)` (not executed)\n" in told
    assert recorded_score(tmp_path / "MUTANTS.md", "forge_tools/sizes.py", 1, 3) == 33
    assert (tree.folder / "forge_tools/sizes.py").read_bytes() == source
