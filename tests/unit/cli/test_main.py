"""The list of commands, exit codes, and errors that never become tracebacks."""

import json
import os
import re
import shlex
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from forge_tools import __version__
from forge_tools.cli import main
from forge_tools.cli.face import FAILED, Face, exit_code
from forge_tools.cli.main import Commands, threads_told
from forge_tools.errors import (
    ConfigurationError,
    DatabaseUnavailableError,
    ExecutionNotFoundError,
    ForgeError,
    InvalidToolError,
    StackError,
)
from tests.migrated import migrated


def run(*words: str) -> int:
    """Run a command in this process; return its exit code."""
    try:
        return main(words)
    except SystemExit as end:
        return int(end.code or 0)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigurationError("x"), 78),
        (InvalidToolError("T", "x"), 78),
        (DatabaseUnavailableError("x"), 69),
        (StackError("x"), 69),
        (ExecutionNotFoundError("x"), 1),
        (ForgeError("x"), 1),
    ],
)
def test_each_kind_of_error_has_its_exit_code(error: ForgeError, code: int) -> None:
    assert exit_code(error) == code


def test_help_lists_every_command_and_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in Commands.summaries)
    assert all(str(code) in shown for code in (0, 1, 2, 69, 78, 130))
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize("name", [name for name in Commands.summaries if name != "worker"])
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(name, "--help") == 0
    shown = capsys.readouterr().out
    assert f"forge-tools {name}" in shown
    assert not re.search(r"\w\.\.\.$", shown, re.MULTILINE), "a sentence in a list of commands is cut"


def test_a_folder_that_cannot_be_made_is_named_and_no_bug_of_ours(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("init", "/proc/project") == 1
    assert capsys.readouterr().err == "Error: /proc/project: No such file or directory.\n"


def test_the_usage_of_a_command_shows_its_arguments_as_they_are_typed(capsys: pytest.CaptureFixture[str]) -> None:
    run("tools", "diff", "--help")
    assert "forge-tools tools diff [OPTIONS] {name} [A] [B]" in capsys.readouterr().out


def test_help_loads_no_heavy_library() -> None:
    probe = (
        "import sys; from forge_tools.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'celery', 'sqlalchemy', 'alembic', 'redis', 'pydantic_settings', 'langchain_core'} & sys.modules.keys()\n"
        "sys.exit(f'loaded: {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0
    assert capsys.readouterr().out == f"forge-tools {__version__}\n"


def test_a_closed_output_is_no_mistake_of_the_program(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert run("--version") == run("--help") == 0
    assert capsys.readouterr().err == ""
    assert run("worker", "--help") == FAILED
    assert capsys.readouterr().err == "Error: Standard output is closed.\n"


def test_an_unknown_command_is_a_usage_error_with_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("histroy") == 2
    assert "No such command: histroy. Did you mean history?" in capsys.readouterr().err


def test_a_command_name_with_control_characters_is_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("no\x1b[2Jpe") == 2
    complaint = capsys.readouterr().err
    assert "no\\x1b[2Jpe" in complaint
    assert "\x1b" not in complaint


def test_an_unexpected_error_is_one_line_and_the_way_to_more(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Commands, "summaries", {"broken": "Break."})
    assert run("broken") == 1
    complaint = capsys.readouterr().err
    assert "ModuleNotFoundError" in complaint
    assert "forge-tools --debug" in complaint
    assert "Traceback" not in complaint
    assert run("--debug", "broken") == 1
    assert "import_module" in capsys.readouterr().err


def test_a_machine_that_gives_no_more_threads_is_no_mistake_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORGE_DATABASE_URL", migrated(f"sqlite:///{tmp_path}/forge.db"))
    before = threading.stack_size(1 << 45)  # no machine has room for that
    try:
        assert run("history") == 1
    finally:
        threading.stack_size(before)
    complaint = capsys.readouterr().err
    assert "can't start new thread: this process gets no more processes and threads (ulimit -u is " in complaint
    assert "Raise the limit" in complaint


def test_an_error_in_a_thread_of_ours_is_one_line_and_one_of_an_authors_shows_where(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(threading, "excepthook", threading.__excepthook__)  # not that of these tests
    for name, tracebacks in (("forge-ready", 0), ("Thread-1", 1)):
        with threads_told(Face()):
            (thread := threading.Thread(target=os.close, args=(-1,), name=name)).start()
            thread.join()
        complaint = capsys.readouterr().err
        assert "Bad file descriptor" in complaint
        assert complaint.count("Traceback") == tracebacks


def test_a_database_that_cannot_be_opened_is_one_line(tmp_path: Path) -> None:
    path = tmp_path.joinpath(*["x" * 200] * 3)
    path.mkdir(parents=True)
    environment = {**os.environ, "FORGE_DATABASE_URL": f"sqlite:///{path}/forge.db"}
    command = [sys.executable, "-P", "-m", "forge_tools.cli", "db", "upgrade"]
    for _ in range(4):  # a thread of the driver's may or may not have ended by then
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 69
        assert "its path no longer than 500 bytes" in done.stderr
        assert "Traceback" not in done.stderr


def test_a_configuration_error_is_json_for_programs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORGE_LEASE", "3")
    assert run("--output", "json", "history") == 78
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "CONFIGURATION_ERROR"


def test_the_output_may_be_chosen_before_or_after_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: object
) -> None:
    monkeypatch.setenv("FORGE_HOME", f"{tmp_path}/nothing")
    for words in (("-o", "json", "stats"), ("stats", "-o", "json")):
        assert run(*words) == 69
        assert "error" in json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("words", ["-o json stats", "stats", "history", "tools", "keys list"])
@pytest.mark.parametrize(("opened", "said"), [("> /dev/full", "No space left on device"), (">&-", "is closed")])
def test_an_output_that_takes_nothing_is_said_to(tmp_path: Path, words: str, opened: str, said: str) -> None:
    """Errors in JSON are told on the error stream then."""
    migrated(f"sqlite:///{tmp_path}/forge.db")
    home = {**os.environ, "FORGE_HOME": str(tmp_path)}
    command = f"{shlex.quote(sys.executable)} -m forge_tools.cli {words} {opened}"
    done = subprocess.run(command, shell=True, env=home, capture_output=True, text=True, check=False)
    assert done.returncode == FAILED
    assert done.stderr.startswith("Error: Standard output ")
    assert said in done.stderr
    assert "Traceback" not in done.stderr


THREADS_IN_STATEMENTS = """
import asyncio, sys, threading
from sqlalchemy.util import await_only, greenlet_spawn
from forge_tools.cli.__main__ import program

async def nothing(): pass

def work():
    while True:
        await_only(nothing())

for _ in range(4):
    threading.Thread(target=asyncio.run, args=(greenlet_spawn(work),), daemon=True).start()
sys.argv[1:] = ["--version"]
sys.exit(program())
"""


def test_a_thread_that_still_reads_the_database_does_not_crash_the_end() -> None:
    for _ in range(5):
        done = subprocess.run(
            [sys.executable, "-c", THREADS_IN_STATEMENTS], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, f"forge-tools {__version__}\n", "")
