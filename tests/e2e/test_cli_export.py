"""`export` wherever it is sent to: files, what is no file, terminals, and nowhere because it was interrupted."""

import asyncio
import csv
import os
import pty
import signal
import threading
from pathlib import Path

import pytest

from forge_tools.storage import migrate, open_store
from tests.contract.calls import call
from tests.e2e.cli_driver import Cli, wait_until

NASTY = '{"text":"\\u009b31m, \\"quoted\\"\\nsecond line"}'


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Cli:
    folder = tmp_path_factory.mktemp("exports")
    url = f"sqlite:///{folder / 'forge.db'}"
    migrate.upgrade(url)

    async def fill() -> None:
        async with await open_store(url) as store:
            await store.queue.submit_many([call(parameters=NASTY, session_id="few") for _ in range(3)])
            await store.queue.submit_many([call() for _ in range(20_000)])

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
    seen = b""
    try:
        while chunk := os.read(ours, 65536):
            seen += chunk
    except OSError:  # how Linux says that the other end is closed
        pass
    os.close(ours)
    process.communicate(timeout=30)
    assert (process.returncode, "\x9b" in seen.decode(), seen.count(b"\\x9b31m")) == (0, False, 3)


def test_an_interrupted_export_leaves_nothing(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "all.jsonl"
    export = cli.start("export", "--to", str(file))
    wait_until(lambda: any(tmp_path.iterdir()), 30, lambda: "it does not begin")
    export.send_signal(signal.SIGINT)
    export.communicate(timeout=30)
    assert (export.returncode, list(tmp_path.iterdir())) == (130, [])


def test_filters_between_which_nothing_lies_are_usage_errors(cli: Cli) -> None:
    for words in (("--since", "1h", "--until", "2h"), ("--slower-than", "5", "--faster-than", "1")):
        for command in ("history", "export"):
            done = cli.run(command, *words)
            assert done.returncode == 2
            assert "Nothing lies between them" in done.stderr
