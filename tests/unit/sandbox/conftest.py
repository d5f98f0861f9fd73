"""Workspaces to break out of, and processes to find."""

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from forge_tools.sandbox.paths import confinement
from tests.waiting import wait_until

_numbers = itertools.count()


@pytest.fixture
def ws(tmp_path: Path) -> Path:
    """A workspace folder beside a folder of almost the same name."""
    for name in ("ws/src", "ws-evil"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "ws/src/foo.py").write_text("inside")
    (tmp_path / "ws-evil/secret").write_text("outside")
    return tmp_path / "ws"


@pytest.fixture(params=["kernel", "walk"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How opens are confined; both ways must agree on everything."""
    if request.param == "walk":
        monkeypatch.setattr(confinement, "kernel_confines", lambda: False)
    elif not confinement.kernel_confines():
        pytest.fail("this kernel has no openat2; run the tests on Linux 5.6 or later")
    return str(request.param)


@pytest.fixture
def marker() -> Iterator[str]:
    """A number of seconds to sleep that no other process sleeps; nothing may sleep it in the end."""
    text = f"61.{os.getpid()}{next(_numbers):04}"
    yield text
    wait_until(lambda: not sleeping(text), 30, lambda: f"left behind: {sleeping(text)}")


@pytest.fixture
def sleepers(marker: str) -> Callable[[], list[int]]:
    """Find the processes that sleep the marker."""
    return lambda: sleeping(marker)


def sleeping(seconds: str) -> list[int]:
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and (folder / "cmdline").read_bytes() == f"sleep\0{seconds}\0".encode():
                found.append(int(folder.name))
        except OSError:
            continue
    return found
