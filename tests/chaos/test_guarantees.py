"""The page of guarantees is up to date, and the tests that it names exist."""

import ast
from functools import cache

import pytest

from tests.chaos.controls import CONTROLS
from tests.chaos.guarantees import GUARANTEES, PAGE, page, rules
from tests.fleet import ROOT

NAMED = sorted({test for guarantee in GUARANTEES for test in guarantee.tests})


@cache
def functions(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text())
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), "write it again: python -m tests.chaos.guarantees"


@pytest.mark.parametrize("test", NAMED)
def test_every_test_that_the_page_names_is_there(test: str) -> None:
    path, _, name = test.partition("::")

    assert name in functions(path)


def test_every_rule_of_the_checker_holds_a_promise() -> None:
    assert {rule for guarantee in GUARANTEES for rule in guarantee.rules} == rules()


def test_every_negative_control_belongs_to_a_promise() -> None:
    named = {control for guarantee in GUARANTEES for control in guarantee.controls}

    assert named == {control.protection for control in CONTROLS}


def test_what_a_control_breaks_is_a_rule_of_a_promise_it_belongs_to() -> None:
    for control in CONTROLS:
        promised = {rule for one in GUARANTEES if control.protection in one.controls for rule in one.rules}
        assert control.broken <= promised
