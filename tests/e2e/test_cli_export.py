"""`export` to every destination: files, devices and pipes, terminals, and none because it was interrupted."""

import asyncio
import csv
import os
import pty
import shlex
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from forge_tools.storage import open_store
from tests.contract.calls import call, submitted
from tests.e2e.cli_driver import COMMAND, Cli, in_the_background
from tests.e2e.terminal import read_to_the_end
from tests.migrated import migrated
from tests.waiting import wait_until, within

NASTY = '{"text":"\\u009b31m, \\"quoted\\"\\nsecond line"}'


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Cli:
    folder = tmp_path_factory.mktemp("exports")
    url = f"sqlite:///{folder / 'forge.db'}"
    migrated(url)

    async def fill() -> None:
        async with await open_store(url) as store:
            await store.queue.submit_many([call(parameters=NASTY, session_id="few") for _ in range(3)])
            await store.queue.submit_many([call() for _ in range(20_000)])
            for _ in range(3):
                await store.transitions.cancel(await submitted(store, session_id="over"), actor="ada", reason="enough")

    asyncio.run(fill())
    return Cli(folder, FORGE_DATABASE_URL=url)


def test_a_pipe_is_written_to_and_stays_a_pipe(cli: Cli, tmp_path: Path) -> None:
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.extend(pipe.read_text().splitlines()))
    reader.start()
    assert cli.run("export", "--session", "few", "--to", str(pipe)).returncode == 0
    reader.join(30)
    assert (len(read), pipe.is_fifo()) == (3, True)


def test_what_cannot_be_written_is_named_with_the_reason(cli: Cli, tmp_path: Path) -> None:
    for path, reason in ((tmp_path, "Is a directory"), (tmp_path / "no" / "file", "No such file or directory")):
        done = cli.run("export", "--session", "few", "--to", str(path))
        assert (done.returncode, done.stderr.split()) == (1, f"Error: {path} cannot be written: {reason}.".split())
    (tmp_path / "full").symlink_to("/dev/full")
    full = cli.run("export", "--session", "few", "--to", str(tmp_path / "full"))
    assert (full.returncode, full.stderr.endswith("cannot be written: No space left on device.\n")) == (1, True)
    assert (tmp_path / "full").is_char_device()


@pytest.mark.parametrize(
    ("redirected", "reason"), [(">/dev/full", "cannot be written: No space left on device."), (">&-", "is closed.")]
)
def test_a_standard_output_that_takes_nothing_is_named(cli: Cli, redirected: str, reason: str) -> None:
    command = shlex.join([*COMMAND, "export", "--session", "few"])
    done = subprocess.run(
        f"{command} {redirected}", shell=True, cwd=cli.folder, env=cli.environment(), capture_output=True, text=True
    )
    assert (done.returncode, f"Error: Standard output {reason}" in done.stderr) == (1, True)


def test_a_file_needs_no_standard_output(cli: Cli, tmp_path: Path) -> None:
    command = shlex.join([*COMMAND, "export", "--session", "few", "--to", str(tmp_path / "file")])
    done = subprocess.run(
        f"{command} >&-", shell=True, cwd=cli.folder, env=cli.environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert len((tmp_path / "file").read_text().splitlines()) == 3


def test_a_link_leads_to_the_file_that_is_replaced(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "file")
    cli.run("export", "--session", "few", "--to", str(tmp_path / "link"))
    assert len((tmp_path / "file").read_text().splitlines()) == 3
    assert (tmp_path / "link").is_symlink()


def test_csv_names_its_columns_even_without_rows_and_keeps_lines_and_quotes(cli: Cli, tmp_path: Path) -> None:
    for session, count in (("none", 0), ("few", 3)):
        file = tmp_path / session
        cli.run("export", "--session", session, "--format", "csv", "--to", str(file))
        with file.open(newline="") as stream:
            header, *rows = csv.reader(stream)
        assert (header[0], header[-1], len(rows)) == ("id", "queue_wait_ms", count)
        assert {row[header.index("parameters")] for row in rows} <= {'{"text": "\x9b31m, \\"quoted\\"\\nsecond line"}'}


@pytest.mark.parametrize("format", ["jsonl", "csv"])
def test_a_terminal_sees_no_control_characters(cli: Cli, format: str) -> None:
    ours, theirs = pty.openpty()
    process = cli.start("export", "--session", "few", "--format", format, stdout=theirs)
    os.close(theirs)
    seen = read_to_the_end(ours)
    process.communicate(timeout=30)
    assert (process.returncode, "\x9b" in seen, seen.count("\\x9b31m")) == (0, False, 3)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_export_leaves_nothing(cli: Cli, tmp_path: Path, number: signal.Signals) -> None:
    file = tmp_path / "all.jsonl"
    code, time_left = 0, within(120, "every export is over before the signal")
    while code == 0 and next(time_left):  # it may have been over before the signal came
        file.unlink(missing_ok=True)
        export = cli.start("export", "--to", str(file))
        wait_until(lambda: any(tmp_path.iterdir()), 30, lambda: "it does not begin")
        export.send_signal(number)
        export.communicate(timeout=30)
        code = export.returncode
    assert (code, list(tmp_path.iterdir())) == (130, [])


def test_an_export_in_the_background_of_a_script_is_ended_as_well(cli: Cli, tmp_path: Path) -> None:
    """Shells start those without Ctrl-C."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with in_the_background():
        export = cli.start("export", "--to", str(pipe))
    with pipe.open("rb") as reader:
        assert reader.read(1)
        export.terminate()
        time_left = within(60, "it goes on writing")
        while next(time_left) and reader.read(65536):
            pass
    export.communicate(timeout=30)
    assert export.returncode == 130


@pytest.mark.parametrize(("of", "first"), [("attempts", "execution_id"), ("events", "id")])
def test_attempts_and_events_are_listed_in_pages_and_exported_whole(
    cli: Cli, tmp_path: Path, of: str, first: str
) -> None:
    newest = cli.lines("history", "--of", of, "--session", "over", "--limit", "2")
    cursor = newest[-1]["id"] if of == "events" else f"{newest[-1]['execution_id']}:{newest[-1]['attempt']}"
    (oldest,) = cli.lines("history", "--of", of, "--session", "over", "--status", "cancelled", "--before", str(cursor))
    lines = cli.lines("export", "--of", of, "--session", "over")
    ids = [row["execution_id"] for row in (*newest, oldest)]
    assert [line["execution_id"] for line in lines] == ids[::-1]
    assert cli.json("export", "--of", of, "--format", "csv", "--to", str(tmp_path / "file"))[of] == 3
    with (tmp_path / "file").open(newline="") as stream:
        header, *rows = csv.reader(stream)
    assert (header, header[0], len(rows)) == (list(lines[0]), first, 3)
    assert f"--of {of} --limit 2 --before {cursor}" in cli.run("history", "--of", of, "--limit", "2").stderr


def test_a_terminal_sees_a_bar_that_fills(cli: Cli, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    process = cli.start("export", "--to", str(tmp_path / "all"), stderr=theirs)
    os.close(theirs)
    seen = read_to_the_end(ours)
    process.communicate(timeout=30)
    assert process.returncode == 0
    assert "%" in seen
    assert "20,0" in seen
    assert "executions, to 20" in seen


def test_the_bar_fills_though_nothing_is_found(cli: Cli, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    process = cli.start("export", "--slower-than", "5", "--to", str(tmp_path / "none"), stderr=theirs)
    os.close(theirs)
    seen = read_to_the_end(ours)
    process.communicate(timeout=30)
    assert process.returncode == 0
    assert "0 executions, to 20" in seen


def test_filters_between_which_nothing_lies_are_usage_errors(cli: Cli) -> None:
    for words in (("--since", "1h", "--until", "2h"), ("--slower-than", "5", "--faster-than", "1")):
        for command in ("history", "export"):
            done = cli.run(command, *words)
            assert done.returncode == 2
            assert "so nothing can match" in done.stderr
