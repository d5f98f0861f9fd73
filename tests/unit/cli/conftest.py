"""Commands of the command line on a database of their own, in this process."""

from collections.abc import Callable
from pathlib import Path

import pytest

from forge_tools.cli import main
from tests.migrated import migrated

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run a command on an empty database; returns its exit code and what it printed."""
    url = f"sqlite:///{tmp_path / 'forge.db'}"
    monkeypatch.setenv("FORGE_DATABASE_URL", url)
    migrated(url)

    def run(*words: str) -> tuple[int, str, str]:
        try:
            code = main(words)
        except SystemExit as end:
            code = int(end.code or 0)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run
