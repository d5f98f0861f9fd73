"""Every problem around the command line is one clear error: the thing, the way out, a documented exit code."""

import fcntl
import os
import pwd
import signal
import sqlite3
import sys
import termios
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from forge_tools.storage.tables import SCHEMA_REVISION
from tests.e2e.cli_driver import TOOLS, Cli
from tests.waiting import wait_until

COMMANDS = (
    ("history",),
    ("stats",),
    ("run", "Read", "file_path=x", "--background"),
    ("show", "01a20085-ebef"),
    ("tools",),
)
AWAY = "postgresql://ada:secret@127.0.0.1:1/forge"


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path)


def database(cli: Cli) -> Path:
    cli.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    return cli.home / "forge.db"


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_without_a_stack_there_is_a_line_to_type(cli: Cli, words: tuple[str, ...]) -> None:
    done = cli.run(*words)
    assert done.returncode == 69
    assert "forge-tools up" in done.stderr
    assert not (cli.folder / ".forge").exists()
    assert not cli.state.exists()


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_database_that_is_down_is_named_without_its_password(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = Cli(tmp_path, FORGE_DATABASE_URL=AWAY).run(*words)
    assert done.returncode == 69
    assert "postgresql://ada:***@127.0.0.1:1/forge" in done.stderr
    assert "secret" not in done.stderr


def test_a_database_that_is_down_is_json_for_programs(tmp_path: Path) -> None:
    failure = Cli(tmp_path, FORGE_DATABASE_URL=AWAY).json("stats", code=69)
    assert failure["error"]["code"] == "STORAGE_UNAVAILABLE"


@pytest.mark.parametrize("words", [*COMMANDS, ("up",), ("db", "current"), ("db", "upgrade")], ids=" ".join)
def test_a_file_that_is_not_a_database_is_said_to_be_damaged(cli: Cli, words: tuple[str, ...]) -> None:
    database(cli).write_bytes(b"This is no database. " * 500)
    done = cli.run(*words)
    assert done.returncode == 69
    assert "is damaged or not a database" in done.stderr


@pytest.mark.parametrize("words", [*COMMANDS, ("up",), ("db", "upgrade")], ids=" ".join)
def test_a_database_newer_than_the_code_is_refused(cli: Cli, words: tuple[str, ...]) -> None:
    file = database(cli)
    assert cli.run("db", "upgrade").returncode == 0
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    done = cli.run(*words)
    assert done.returncode == 69
    assert "9999" in done.stderr
    assert "Install a newer forge-tools" in done.stderr


def test_a_folder_that_belongs_to_somebody_else_is_refused(cli: Cli) -> None:
    if os.getuid() == 0:
        folder = cli.folder / "theirs"
        folder.mkdir(mode=0o700)
        os.chown(folder, pwd.getpwnam("nobody").pw_uid, -1)
    else:
        folder = Path("/etc")
    done = Cli(cli.folder, FORGE_HOME=str(folder)).run("up")
    assert done.returncode == 69
    assert f"{folder} belongs to user " in done.stderr
    assert "FORGE_HOME" in done.stderr


@pytest.mark.parametrize("words", [("up",), ("run", "Read", "--local"), ("tools", "--local")], ids=" ".join)
def test_a_tools_reference_that_is_wrong_ends_before_anything_starts(cli: Cli, words: tuple[str, ...]) -> None:
    done = cli.run(*words, "--tools", "mytools:TOOLS")
    assert done.returncode == 78
    assert "there is no module 'mytools'" in done.stderr
    assert not (cli.folder / ".forge").exists()
    assert not cli.state.exists()


def test_a_module_that_ends_the_process_is_named_before_anything_starts(cli: Cli) -> None:
    (cli.folder / "mytools.py").write_text("import os\nos._exit(7)\n")
    done = cli.run("up", "--tools", "mytools")
    assert done.returncode == 78
    assert "Loading your tools (mytools) ended the process that tried it (exit code 7)" in done.stderr
    assert not cli.state.exists()


@pytest.mark.parametrize("words", [("up",), ("run", "Read", "--local"), ("tools", "--local")], ids=" ".join)
def test_what_a_module_prints_while_it_is_imported_is_beside_the_document(cli: Cli, words: tuple[str, ...]) -> None:
    (cli.folder / "mytools.py").write_text("print('loading')\n1 / 0\n")
    assert "division by zero" in cli.json(*words, "--tools", "mytools", code=78)["error"]["message"]


def test_a_setting_that_is_wrong_is_named(tmp_path: Path) -> None:
    done = Cli(tmp_path, FORGE_LEASE="3").run("up")
    assert done.returncode == 78
    assert "FORGE_LEASE" in done.stderr


def test_the_doctor_reports_settings_that_are_wrong(tmp_path: Path) -> None:
    report = Cli(tmp_path, FORGE_LEASE="3", FORGE_LEESE="30").json("doctor", code=1)
    said = [(one["subject"], one["said"], one["way_out"]) for one in report["findings"]]
    assert said[0] == ("settings", "nothing reads FORGE_LEESE", "Did you mean FORGE_LEASE?")
    assert said[1][1].startswith("FORGE_LEASE: Input should be greater")


def test_the_doctor_names_every_problem_of_a_broken_place(tmp_path: Path) -> None:
    cli = Cli(tmp_path, FORGE_DATABASE_URL=AWAY, FORGE_BROKER_URL="redis://:secret@127.0.0.1:1/0")
    report = cli.json("doctor", code=1)
    problems = {finding["subject"] for finding in report["findings"] if finding["level"] == "problem"}
    assert {"broker", "database"} <= problems
    assert "secret" not in str(report)


def test_a_tool_runs_in_this_process_without_a_stack(cli: Cli) -> None:
    (cli.folder / "mytools.py").write_text(TOOLS)
    assert cli.json("run", "--local", "--tools", "mytools:TOOLS", "Add", "a=1", "b=2")["output"] == 3
    assert "Login" in cli.run("tools", "--tools", "mytools:TOOLS").stdout
    assert not (cli.folder / ".forge").exists()
    assert not cli.state.exists()


def test_a_tool_that_blocks_in_this_process_is_interrupted(cli: Cli) -> None:
    (cli.folder / "mytools.py").write_text(TOOLS)
    failure = cli.json("run", "--local", "--tools", "mytools:TOOLS", "Block", "--timeout", "0.5", code=1)
    assert failure["error_code"] == "TIMEOUT"


@pytest.mark.parametrize("seconds", ["nan", "-100"])
def test_a_timeout_that_is_none_is_refused_in_this_process_too(cli: Cli, seconds: str) -> None:
    done = cli.run("run", "--local", "Glob", "pattern=*", "--timeout", seconds)
    assert f"Error: Invalid timeout: {seconds}s. Give a number of seconds above 0." in done.stderr
    assert done.returncode == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_command_that_reads_a_pipe_ends_when_it_is_told_to(tmp_path: Path, number: signal.Signals) -> None:
    cli = Cli(tmp_path, FORGE_BROKER_URL="redis://127.0.0.1:1/0")
    database(cli)
    assert cli.run("db", "upgrade").returncode == 0
    os.mkfifo(tmp_path / "pipe")
    with cli.start("run", "Read", "file_path=@pipe") as process:
        writer = os.open(tmp_path / "pipe", os.O_WRONLY)
        try:
            os.write(writer, b"begun")
            wait_until(lambda: is_drained(writer) and psutil.Process(process.pid).status() == psutil.STATUS_SLEEPING)
            process.send_signal(number)
            assert process.wait(60) == 130
        finally:
            os.close(writer)
            process.kill()


def is_drained(pipe: int) -> bool:
    return not int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def test_a_call_in_this_process_has_no_queue(cli: Cli) -> None:
    done = cli.run("run", "--local", "--background", "Read")
    assert done.returncode == 2
    assert "has no queue" in done.stderr


def test_going_back_a_version_needs_a_yes(cli: Cli) -> None:
    database(cli)
    cli.run("db", "upgrade")
    assert cli.json("db", "downgrade", "base", "--yes") == {"before": SCHEMA_REVISION, "after": None}
    assert "not migrated; this code needs" in cli.run("db", "current").stdout
    assert "forge-tools db upgrade" in cli.run("history").stderr


def test_a_database_that_newer_code_migrated_is_used_where_this_code_can(cli: Cli) -> None:
    file = database(cli)
    cli.run("db", "upgrade")
    with closing(sqlite3.connect(file, isolation_level=None)) as newer:
        newer.execute(f"UPDATE alembic_version SET version_num = '9001_from_{SCHEMA_REVISION}'")
    said = f"9001_from_{SCHEMA_REVISION}"
    assert f"{said}; this code is at {SCHEMA_REVISION}, and works with it" in cli.run("db", "current").stdout
    assert f"Nothing to do: {said}" in cli.run("db", "upgrade").stdout
    assert cli.run("history").returncode == 0


def test_a_user_that_tools_cannot_run_as_is_one_sentence_before_anything_starts(tmp_path: Path) -> None:
    done = Cli(tmp_path, FORGE_RUN_AS="no-such-user").run("up")
    assert (done.returncode, done.stderr) == (78, "Error: FORGE_RUN_AS: this host has no user 'no-such-user'.\n")
