"""Pages of the documentation run as their readers would run them."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.e2e.cli_driver import MODULE, warm_command

DOCS = Path(__file__).resolve().parents[2] / "docs"

PAGES: Mapping[str, str | None] = {
    "debugging.md": None,
    "progress.md": "stack",
    "schemas.md": "versions",
    "tools.md": None,
}
"""Each with the name of a fixture for variables of the environment, or None.

Every `python` block of a page begins with the name of a file, `# name.py`. All are written to one folder; tests are run
with pytest, other files with Python. Each line `$ command` of a `console` block is run there after that, and prints the
lines that follow it.
"""

_BLOCK = re.compile(r"^```(?P<kind>python|console)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# (?P<name>[a-z_]+\.py)\n")


def blocks(page: str, kind: str) -> list[str]:
    return [found["text"] for found in _BLOCK.finditer((DOCS / page).read_text()) if found["kind"] == kind]


def files(page: str) -> dict[str, str]:
    """The files of a page by name."""
    named = [(_FILE.match(text), text) for text in blocks(page, "python")]
    assert all(found for found, _ in named), "a python block begins with `# name.py`"
    return {found["name"]: text for found, text in named if found}


def commands(page: str) -> list[tuple[str, str]]:
    """Each command of a page, and what it prints."""
    parts = [part for text in blocks(page, "console") for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]]
    return [(command, output) for command, _, output in (part.partition("\n") for part in parts)]


def variables(folder: Path, environment: Mapping[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FORGE_", "COV_"))}
    return {**kept, "PYTHONPATH": f"{folder}:{DOCS.parent}", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **environment}


def fork(words: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
    done = warm_command().run(words, cwd=folder, env=variables(folder, environment))
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("page", PAGES)
def test_a_page_does_what_it_says(page: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    fixture = PAGES[page]
    environment: Mapping[str, str] = request.getfixturevalue(fixture) if fixture else {}
    for name, text in files(page).items():
        (tmp_path / name).write_text(text)

    tests = [name for name in files(page) if name.startswith("test_")]
    for name, text in files(page).items():
        if name not in tests:
            fork(["-c", text], tmp_path, environment)
    if tests:
        fork(["pytest", "-q", "-p", "no:cacheprovider", "-p", "pytest_asyncio.plugin", *tests], tmp_path, environment)
    for command, output in commands(page):
        done = warm_command().shell(command, MODULE, cwd=tmp_path, env=variables(tmp_path, environment), timeout=90)
        assert (done.returncode, done.stdout) == (0, output), (command, done.stderr)


def test_every_file_and_command_of_a_page_is_found() -> None:
    assert [*files("tools.md")] == [
        "mytools.py",
        "remotely.py",
        "counting.py",
        "service.py",
        "notes.py",
        "forecast.py",
        "louder.py",
        "test_mytools.py",
    ]
    assert len(commands("tools.md")) == 5
