"""A body's changes to its process end with it."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from workers.lanes.process_state import Surroundings


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Surroundings]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KEPT", "as it was")
    made = Surroundings()
    yield made
    made.restore()


def mask() -> int:
    found = os.umask(0o022)
    os.umask(found)
    return found


def variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}


@pytest.mark.parametrize(
    ("change", "look"),
    [
        (lambda: os.chdir("/"), os.getcwd),
        (lambda: os.umask(0o777), mask),
        (os.environ.clear, variables),
        (lambda: os.environ.update(KEPT="changed", NEW="x"), variables),
        (sys.path.clear, lambda: list(sys.path)),
        (lambda: sys.setrecursionlimit(5000), sys.getrecursionlimit),
        (lambda: sys.setswitchinterval(1.0), sys.getswitchinterval),
    ],
    ids=["folder", "mask", "no variables", "other variables", "import path", "recursion limit", "switch interval"],
)
def test_what_a_body_changed_is_put_back(
    surroundings: Surroundings, change: Callable[[], Any], look: Callable[[], Any]
) -> None:
    before = look()
    change()
    assert look() != before

    surroundings.restore()

    assert look() == before


def test_a_folder_that_is_gone_keeps_nobody_from_serving_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.chdir(home)
    made = Surroundings()
    os.chdir("/")
    home.rmdir()

    made.restore()

    assert os.getcwd() == "/"


def test_variables_that_are_set_stay_and_those_of_the_running_body_do_not(
    surroundings: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCRATCH", "none")
    os.environ["MARK"] = "of a body"
    surroundings.set_variables(SCRATCH="/scratch")

    del os.environ["MARK"]  # as at the end of that body
    surroundings.restore()

    assert (os.environ["SCRATCH"], "MARK" in os.environ) == ("/scratch", False)
