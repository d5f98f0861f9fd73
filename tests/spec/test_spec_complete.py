"""Every requirement has a test, or says why it needs none."""

import ast
import re
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

HERE = Path(__file__).parent
REQUIREMENTS = HERE.parents[1] / "docs" / "requirements.md"
ITEM = re.compile(r"- \*\*(S\d-[\d.]+)\*\* (.+)")
DIGESTS = HERE / "items.sha256"
OURS = re.compile(r"( \*differs: [^*]+\*)?( \[[PXL]: [^\]]+\])?$")
"""What stands behind the words of an item."""

EXEMPTION = re.compile(r"\[[PXL]: [^\]]{10,}\]$")


def expanded(numbers: str) -> list[str]:
    """Spell out `S3-061..070`."""
    group, _, digits = numbers.partition("-")
    first, _, last = digits.partition("..")
    return [f"{group}-{number:0{len(first)}d}" for number in range(int(first), int(last or first) + 1)]


def listed() -> Iterator[tuple[str, str]]:
    for line in REQUIREMENTS.read_text().splitlines():
        if found := ITEM.fullmatch(line):
            yield from ((number, found[2]) for number in expanded(found[1]))


def cited() -> set[str]:
    """Collect what `@spec(...)` and `@pytest.mark.spec(...)` on the tests of this folder name."""
    numbers: set[str] = set()
    for path in HERE.glob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                numbers.update(_numbers(node))
    return numbers


def _numbers(test: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    for mark in test.decorator_list:
        if isinstance(mark, ast.Call) and ast.unparse(mark.func) in {"spec", "pytest.mark.spec"}:
            for argument in mark.args:
                yield from expanded(ast.literal_eval(argument))


def test_every_requirement_is_listed_once() -> None:
    numbers = [number for number, _ in listed()]

    assert len(numbers) == len(set(numbers)) == 452


def test_every_requirement_has_the_words_that_it_was_given() -> None:
    lines = filter(None, map(ITEM.fullmatch, REQUIREMENTS.read_text().splitlines()))

    digests = [f"{line[1]} {sha256(OURS.sub('', line[2]).encode()).hexdigest()[:16]}" for line in lines]

    assert digests == DIGESTS.read_text().splitlines()


def test_every_requirement_has_a_test_or_a_reason() -> None:
    tested = cited()

    untested = [number for number, text in listed() if number not in tested and not EXEMPTION.search(text)]

    assert untested == []


def test_no_requirement_has_both_a_test_and_an_exemption() -> None:
    tested = cited()

    assert [number for number, text in listed() if number in tested and EXEMPTION.search(text)] == []


def test_tests_cite_only_requirements_that_exist() -> None:
    assert cited() - {number for number, _ in listed()} == set()
