"""ListShells: a session's own shells, with their usage on this host, from the records on others."""

import re
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from forge_tools.errors import DatabaseUnavailableError
from forge_tools.model.places import ShellRecord, ShellStatus
from tests.shell_hosts import processes_of
from tests.unit.tools.shell_session import Book, Session
from tests.waiting import wait_until


async def test_a_session_without_shells_is_told_so(calls: Session) -> None:
    await calls.other(session_id="s2").start("sleep 61")
    result = await calls.shells()
    assert result.output == "No shell has been started in this session"
    assert (result.metadata["shells"], result.metadata["total"]) == ([], 0)


async def test_what_is_here_is_shown_with_what_it_uses(calls: Session) -> None:
    over = await calls.start("echo hi; exit 3")
    await calls.ended(over)
    running = await calls.start("sleep 61 & echo up; wait", description="a server")
    await calls.output(running, wait_for="up")
    wait_until(lambda: len(processes_of({running})) == 2)
    result = await calls.shells()
    first, second = result.output.splitlines()
    assert first.startswith(f"{over}  echo hi; exit 3; exited with exit code 3; since 2")
    assert first.endswith("; 3 bytes written")
    assert second.startswith(f"{running}  a server; running; since 2")
    assert "; 3 bytes written; 2 processes; " in second
    facts = result.metadata["shells"]
    assert [(f["id"], f["status"], f["host"], f.get("processes")) for f in facts] == [
        (over, "exited", "h1", None),
        (running, "running", "h1", 2),
    ]
    assert facts[1]["rss_bytes"] > 100_000
    assert (result.metadata["running"], result.metadata["total"]) == (1, 2)


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="only Linux says who listens where")
async def test_the_ports_that_a_shell_listens_on_are_shown(calls: Session) -> None:
    server = "import socket,time; a=socket.create_server(('127.0.0.1',0)); b=socket.socket(); b.bind(('127.0.0.1',0))"
    said = f"{server}; print('port', a.getsockname()[1], flush=True); time.sleep(61)"
    shell = await calls.start(f'{sys.executable} -c "{said}" & wait')
    await calls.start("sleep 61")
    output = (await calls.output(shell, wait_for="port")).output
    port = int(re.search(r"port (\d+)", output)[1])
    result = await calls.shells()
    first, second = result.output.splitlines()
    assert first.endswith(f"; listens on {port}")  # what is only bound listens on nothing
    assert "listens" not in second
    assert [facts.get("listening") for facts in result.metadata["shells"]] == [[port], None]


async def test_shells_of_other_hosts_come_from_the_book(calls: Session, book: Book) -> None:
    here = await calls.start("exit 0")
    await calls.ended(here)
    elsewhere = ShellRecord(
        id="sh_h2_000000000000", hostname="h2", command="npm start", cwd=".", status=ShellStatus.LOST, kernel="k", pid=1,
        start_ticks=1, started_at=datetime.now(UTC) - timedelta(days=1), session_id="s1", size=1234,
    )  # fmt: skip
    await book.record(elsewhere)
    await book.record(replace(elsewhere, id="sh_h2_111111111111", session_id="s2"))
    lines = (await calls.shells()).output.splitlines()
    assert [line.split()[0] for line in lines] == ["sh_h2_000000000000", here]
    assert "npm start; lost: its supervisor disappeared" in lines[0]
    assert "; exited with exit code 0; " in lines[1]  # the book still has it as running


async def test_a_book_that_cannot_be_read_costs_only_what_is_elsewhere(
    calls: Session, book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_: object) -> None:
        raise DatabaseUnavailableError("The database is gone")

    handle = await calls.start("sleep 61")
    monkeypatch.setattr(book, "of_session", fail)
    result = await calls.shells()
    first, last = result.output.splitlines()
    assert first.startswith(handle)
    assert last == "[the shells of other hosts are not known: The database is gone]"
    assert (await calls.output("sh_h1_000000000000")).error_code == "SHELL_NOT_FOUND"


async def test_a_dry_run_lists_as_well(calls: Session) -> None:
    result = await calls.other(dry_run=True).shells()
    assert result.output == "[Dry Run] No shell has been started in this session"
