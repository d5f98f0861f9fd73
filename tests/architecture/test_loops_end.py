"""No test waits for ever: every `while` in `tests/` has a deadline, or says on its line why it needs none."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
EXEMPT = re.compile(r"#\s*no deadline: \w+\s+\w")
TIMEOUTS = {"timeout", "timeout_at"}
CLOCKS = {"monotonic", "time"}
LEAVING = (ast.Raise, ast.Return, ast.Break)


def endless(source: str) -> Iterator[int]:
    """The lines of loops that may go on for ever."""
    lines = source.splitlines()
    for loop, has_timeout in _loops(ast.parse(source), has_timeout=False):
        if not (has_timeout or _has_deadline(loop) or EXEMPT.search(lines[loop.lineno - 1])):
            yield loop.lineno


def _loops(node: ast.AST, *, has_timeout: bool) -> Iterator[tuple[ast.While, bool]]:
    if isinstance(node, ast.While):
        yield node, has_timeout
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        has_timeout = False  # its body runs when it is called, which may be elsewhere
    has_timeout |= isinstance(node, ast.AsyncWith) and any(_calls(item.context_expr, TIMEOUTS) for item in node.items)
    for child in ast.iter_child_nodes(node):
        yield from _loops(child, has_timeout=has_timeout)


def _has_deadline(loop: ast.While) -> bool:
    """Whether it compares a clock with something and then ends, or asks for the time that is left (`within`)."""
    inside = [node for statement in loop.body for node in ast.walk(statement)]
    asserted = [node.test for node in inside if isinstance(node, ast.Assert)]
    left = [node.test for node in inside if isinstance(node, ast.If) and isinstance(node.body[-1], LEAVING)]
    asked = [node for node in (*ast.walk(loop.test), *inside) if isinstance(node, ast.Call)]
    return any(_compares_a_clock(test) for test in (loop.test, *asserted, *left)) or any(
        ast.unparse(call) == "next(time_left)" for call in asked
    )


def _compares_a_clock(test: ast.expr) -> bool:
    return any(isinstance(node, ast.Compare) and _calls(node, CLOCKS) for node in ast.walk(test))


def _calls(node: ast.AST, names: set[str]) -> bool:
    return any(
        isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) and each.func.attr in names
        for each in ast.walk(node)
    )


def test_every_loop_of_a_test_ends() -> None:
    found = [
        f"{path.relative_to(TESTS)}:{line}"
        for path in sorted(TESTS.rglob("*.py"))
        for line in endless(path.read_text())
    ]
    assert found == []


def test_exemptions_are_few() -> None:
    assert sum(len(EXEMPT.findall(path.read_text())) for path in TESTS.rglob("*.py")) <= 30


@pytest.mark.parametrize(
    "source",
    [
        "while not done(): sleep(1)",
        "while True:  # no deadline:\n    pass",
        "async def f():\n    async with asyncio.timeout(1):\n        def g():\n            while True: pass",
        "now = time.monotonic()\nwhile not done(): print(time.monotonic())",
        "while True:\n    if time.monotonic() > soon: again()",
        "async with session() as s:\n    while s.going: await s.more()",
    ],
)
def test_a_loop_without_a_deadline_is_found(source: str) -> None:
    assert list(endless(f"async def test():\n    {source.replace(chr(10), chr(10) + '    ')}"))


@pytest.mark.parametrize(
    "source",
    [
        "while time.monotonic() < deadline: pass",
        "while not done():\n    assert time.monotonic() < deadline",
        "while pages and next(time_left): pass",
        "async with db() as d, asyncio.timeout(60):\n    while not d.done(): await sleep(1)",
        "while True:  # no deadline: the test kills this process\n    pass",
    ],
)
def test_a_loop_with_a_deadline_is_left_alone(source: str) -> None:
    assert list(endless(f"async def test():\n    {source.replace(chr(10), chr(10) + '    ')}")) == []
