"""BashOutput: any number of readers, none of whom misses or breaks anything."""

import asyncio
import json
import os
import shutil
import signal
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from forge_tools.model.places import ShellRecord, ShellStatus
from forge_tools.sandbox.shells.host import find
from forge_tools.tools.execution import bash_output
from forge_tools.tools.file import ripgrep
from tests.unit.tools.shell_session import Book, Session
from tests.waiting import within


def record_of(handle: str, hostname: str, status: ShellStatus, session_id: str = "s1") -> ShellRecord:
    return ShellRecord(
        id=handle, hostname=hostname, command="npm start", cwd=".", status=status, kernel="k", pid=1, start_ticks=1,
        started_at=datetime.now(UTC), session_id=session_id,
    )  # fmt: skip


async def test_reading_again_gives_the_same_until_the_reader_moves_on(calls: Session) -> None:
    handle = await calls.start("echo one; echo two; exit 3")
    first = await calls.ended(handle)
    assert first.output.startswith("one\ntwo\n[exited with exit code 3 after ")
    assert (await calls.output(handle)).output == first.output
    facts = first.metadata
    assert (facts["next_cursor"], facts["size"], facts["exit_code"], facts["dropped_bytes"]) == (8, 8, 3, 0)
    assert facts["runtime_s"] > 0
    assert facts["last_output_age_s"] >= 0
    assert (await calls.output(handle, since=4)).output.startswith("two\n[exited")
    assert (await calls.output(handle)).output.startswith("two\n[exited")
    assert (await calls.other(agent_id="a2").output(handle)).output == first.output
    assert (await calls.output(handle, since=8)).output.startswith("(no new output)\n[exited")


async def test_a_cursor_behind_the_end_or_before_the_start_is_said(calls: Session) -> None:
    handle = await calls.start("echo one")
    await calls.ended(handle)
    result = await calls.output(handle, since=99)
    assert "[since=99 is past the end: 4 bytes were written]" in result.output
    assert result.metadata["next_cursor"] == 4
    assert (await calls.output(handle, since=-1)).error == "Value for since is below minimum: 0"
    assert (await calls.output(handle, since=1 << 62)).success
    assert "since exceeds maximum" in (await calls.output(handle, since=1 << 64)).error


async def test_an_emoji_that_comes_byte_by_byte_is_never_half(calls: Session, tmp_path: Path) -> None:
    parts = ["a", "\\xf0", "\\x9f", "\\x98", "\\x80", "b"]
    steps = "; ".join(f"printf '{part}'; until [ -e {n} ]; do sleep 0.01; done" for n, part in enumerate(parts))
    handle = await calls.start(steps)
    seen, since = [], 0
    for n in range(len(parts)):
        time_left = within(60, "it puts nothing out")
        while next(time_left) and (await calls.output(handle)).metadata["size"] <= n:
            await asyncio.sleep(0.005)
        result = await calls.output(handle, since=since)
        seen.append(result.output.partition("\n")[0])
        since = result.metadata["next_cursor"]
        (tmp_path / "ws" / str(n)).touch()
    assert seen == ["a", "(no new output)", "(no new output)", "(no new output)", "😀", "b"]


async def test_bytes_that_are_not_text_are_shown_all_the_same(calls: Session) -> None:
    handle = await calls.start(r"printf '\xff\xf0\x9f\n\xf0\x9f\x98'; printf '\033[31mred\033[0m\n10%%\r99%%\n\0\033['")
    result = await calls.ended(handle)
    assert result.output.startswith("\ufffd\ufffd\n\ufffdred\n99%\n\\x00\\x1b[\n[exited")


async def test_a_title_that_nobody_ends_hides_no_line(calls: Session) -> None:
    handle = await calls.start(r"printf '\033]0;title\nshown\nhalf \033[3'; sleep 61")
    await calls.output(handle, wait_for="shown")
    result = await calls.output(handle, wait_for="half")
    assert "\nshown\nhalf \n" in result.output


async def test_half_a_character_in_half_a_title_shows_nothing_of_it(calls: Session) -> None:
    handle = await calls.start(r"printf 'shown\n\033]0;title \303'; sleep 61")
    for _ in within(60, "it puts nothing out"):
        result = await calls.output(handle)
        if result.metadata["size"] == 17:
            break
        await asyncio.sleep(0.01)

    assert "title" not in result.output
    assert result.metadata["next_cursor"] == 6


async def test_a_prompt_without_a_line_end_is_seen(calls: Session) -> None:
    handle = await calls.start("printf 'Password: '; sleep 61")
    assert (await calls.output(handle, wait_ms=5000)).output.startswith("Password: \n[running")


async def test_pages_fit_together_and_into_their_budget(calls: Session) -> None:
    handle = await calls.start('for i in $(seq 1 400); do printf "line $i %*s\\n" $((i % 90)) é; done')
    whole = (await calls.ended(handle)).output.partition("[exited")[0]
    narrow = calls.other(max_output_size=700)
    pages, since, more = [], 0, True
    time_left = within(60, "the pages do not end")
    while more and next(time_left):
        result = await narrow.output(handle, since=since)
        assert len(result.output) <= 700
        text, note = result.output.rsplit("\n", 1)
        pages.append(f"{text}\n")
        since, more = result.metadata["next_cursor"], result.metadata["truncated"]
        assert (f"more follows with since={since}]" in note) == more
        assert (result.metadata.get("next") == {"bash_id": handle, "since": since}) == more
    assert "".join(pages) == whole


async def test_a_line_that_is_longer_than_the_page_is_read_in_parts(calls: Session) -> None:
    handle = await calls.start("printf 'é%.0s' $(seq 1 3000); echo; echo end")
    await calls.ended(handle)
    narrow = calls.other(max_output_size=1000)
    text, since, more = "", 0, True
    time_left = within(60, "the pages do not end")
    while more and next(time_left):
        result = await narrow.output(handle, since=since)
        text += result.output.rpartition("\n")[0].removesuffix("\n")
        since, more = result.metadata["next_cursor"], result.metadata["truncated"]
    assert text.replace("\n", "") == "é" * 3000 + "end"


@pytest.mark.parametrize("size", [0, 1, 64])
async def test_any_budget_gets_an_answer(calls: Session, size: int) -> None:
    handle = await calls.start("seq 1 100")
    await calls.ended(handle)
    result = await calls.other(max_output_size=size).output(handle)
    assert result.success
    assert 0 < result.metadata["next_cursor"] < 292
    assert result.output.startswith("1")


async def test_only_the_last_lines_are_shown_if_asked(calls: Session) -> None:
    handle = await calls.start("seq 1 30000; printf end")
    await calls.ended(handle)
    assert (await calls.output(handle, tail_lines=3)).output.startswith("29999\n30000\nend\n[exited")
    assert (await calls.output(handle, tail_lines=5000)).output.startswith("25002\n")
    assert (await calls.output(handle, tail_lines=2, filter="9$")).output.startswith("29989\n29999\n[exited")
    assert (await calls.output(handle, since=168888, tail_lines=50)).output.startswith("30000\nend\n[exited")
    narrow = (await calls.other(max_output_size=200).output(handle, tail_lines=5000)).output
    assert "30000\nend\n[exited" in narrow
    assert len(narrow) < 250


async def test_lines_can_be_left_out(calls: Session) -> None:
    handle = await calls.start("for i in 1 2 3; do echo out $i; echo WARN $i; done; printf 'last WARN'")
    await calls.ended(handle)
    for pattern in ("WARN", "WARN( \\d)?", "(?=WARN).*$"):
        result = await calls.output(handle, filter=pattern)
        assert result.output.startswith("WARN 1\nWARN 2\nWARN 3\nlast WARN\n[exited")
        assert result.metadata["next_cursor"] == result.metadata["size"]
    assert (await calls.output(handle, filter="^x")).output.startswith("(no new output)\n[exited")
    assert (await calls.output(handle, since=8, filter="-x|WARN 2")).output.startswith("WARN 2\n[exited")
    page = await calls.other(max_output_size=20).output(handle, since=0, filter="WARN")
    assert page.output.startswith("WARN 1\n[")
    rest = await calls.output(handle, since=page.metadata["next_cursor"], filter="WARN")
    assert rest.output.startswith("WARN 2\n")


async def test_a_filter_that_explodes_holds_nobody_up(calls: Session) -> None:
    handle = await calls.start("printf 'a%.0s' $(seq 1 40); echo '!'; echo aaa")
    await calls.ended(handle)
    started = time.monotonic()
    assert (await calls.output(handle, filter="(a+)+$")).output.startswith("aaa\n[exited")
    assert time.monotonic() - started < 20


async def test_a_filter_that_does_not_end_is_ended(
    calls: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = tmp_path / "rg"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setattr(ripgrep, "find_beside_python", lambda _: str(slow))
    monkeypatch.setattr(bash_output, "MAX_SEARCH_SECONDS", 0.5)
    handle = await calls.start("echo aaa")
    await calls.ended(handle)
    assert (await calls.output(handle, filter="^a")).error == "Searching for ^a took more than 0.5s"


@pytest.mark.parametrize("name", ["filter", "wait_for"])
async def test_what_is_not_an_expression_is_refused(calls: Session, name: str) -> None:
    handle = await calls.start("echo one")
    await calls.ended(handle)
    result = await calls.output(handle, **{name: "(one"})
    assert (result.error_code, result.error) == ("INVALID_REGEX", "Invalid pattern, unclosed group: (one")


async def test_waiting_ends_with_the_next_output(calls: Session, tmp_path: Path) -> None:
    handle = await calls.start("echo one; until [ -e go ]; do sleep 0.05; done; echo two; sleep 61")
    first = await calls.output(handle, wait_ms=5000)
    started = time.monotonic()
    waiting = asyncio.ensure_future(calls.output(handle, since=first.metadata["next_cursor"], wait_ms=20_000))
    await asyncio.sleep(0.05)  # it is to wait already
    (tmp_path / "ws/go").touch()
    second = await waiting
    assert second.output.startswith("two\n")
    assert time.monotonic() - started < 15
    third = await calls.output(handle, since=second.metadata["next_cursor"], wait_ms=100)
    assert third.output.startswith("(no new output)\n[running for ")


async def test_waiting_ends_with_the_shell(calls: Session) -> None:
    handle = await calls.start("sleep 0.2; exit 9")
    result = await calls.output(handle, wait_ms=30_000)
    assert result.output.startswith("(no new output)\n[exited with exit code 9")


@pytest.mark.parametrize("pattern", ["listening on", "listening on \\d+", "^listening.*80$"])
async def test_it_waits_for_a_line(calls: Session, pattern: str) -> None:
    script = "echo starting; sleep 0.1; printf 'listen'; sleep 0.1; printf '\\033[1ming on 80'; sleep 61"
    handle = await calls.start(script)
    result = await calls.output(handle, wait_for=pattern)
    assert (result.metadata["matched"], result.metadata["matched_line"]) == (True, "listening on 80")
    assert result.output.startswith("starting\nlistening on 80\n[found: listening on 80]\n[running")
    again = await calls.output(handle, wait_for=pattern)
    assert again.metadata["matched"]


async def test_a_line_that_never_comes_is_waited_for_as_long_as_asked(calls: Session) -> None:
    handle = await calls.start("echo one; sleep 61")
    await calls.output(handle, wait_for="one")
    started = time.monotonic()
    result = await calls.output(handle, wait_for="t[w]o", wait_ms=300)
    assert 0.3 <= time.monotonic() - started < 20
    assert result.metadata["matched"] is False
    assert "one\n[no line has matched wait_for]\n[running" in result.output
    over = await calls.start("echo one; echo two; exit 1")
    result = await calls.output(over, wait_for="three")
    assert (result.metadata["matched"], result.metadata["exit_code"]) == (False, 1)


async def test_it_answers_before_the_call_itself_is_timed_out(calls: Session) -> None:
    handle = await calls.start("echo one; sleep 61")
    await calls.output(handle, wait_for="one")
    result = await calls.other(timeout=1.0).output(handle, wait_for="two", wait_ms=60_000)
    assert result.success
    assert result.output.startswith("one\n")


async def test_two_readers_of_a_fast_writer_see_the_same(calls: Session) -> None:
    handle = await calls.start("for i in $(seq 1 60); do seq $((i * 1000)) $((i * 1000 + 999)); done")

    async def read(agent: str) -> str:
        reader, text, since = calls.other(agent_id=agent), "", 0
        for _ in within(60, "the pages do not end"):
            result = await reader.output(handle, since=since, wait_ms=2000)
            text += result.output.rpartition("\n")[0].removesuffix("(no new output)")
            since = result.metadata["next_cursor"]
            if result.metadata["status"] != "running" and not result.metadata["truncated"]:
                break
        return text

    texts = await asyncio.gather(read("a1"), read("a2"))
    for text in texts:
        assert text.replace("\n", "") == "".join(str(n) for n in range(1000, 61_000))


async def test_what_was_dropped_is_said_where_it_is_missing(calls: Session) -> None:
    handle = await calls.start("seq 1 1000; sleep 61")
    await calls.output(handle, wait_for="^1000$")
    files = sorted((calls.folder / handle).glob("*.out"))
    (calls.folder / handle / f"{5000:015d}.out").write_text("after\n")
    result = await calls.output(handle)
    assert "\n1000\n[1,107 bytes are no longer kept]\nafter\n" in result.output
    assert result.metadata["dropped_bytes"] == 1107
    assert "[1,107 bytes are no longer kept" in (await calls.output(handle, filter="^after$")).output
    assert len(files) == 1


@pytest.mark.parametrize("how", ["removed", "a link", "cut"])
async def test_a_spool_that_somebody_took_away_is_no_reason_to_fail(calls: Session, tmp_path: Path, how: str) -> None:
    handle = await calls.start("echo secretless; exit 1")
    await calls.ended(handle)
    (path,) = (calls.folder / handle).glob("*.out")
    path.unlink()
    (tmp_path / "secret").write_text("secret")
    if how == "a link":
        path.symlink_to(tmp_path / "secret")
    if how == "cut":
        path.write_text("sec")
    result = await calls.output(handle)
    missing = 8 if how == "cut" else 11
    assert f"[{missing} bytes are no longer kept]\n[exited with exit code 1" in result.output
    assert (result.metadata["dropped_bytes"], result.metadata["next_cursor"]) == (missing, 11)


async def test_another_sessions_shell_looks_like_none(calls: Session) -> None:
    handle = await calls.start("sleep 61", description="serve")
    stranger = calls.other(session_id="s2")
    for session_id in ("s2", None):
        stranger = calls.other(session_id=session_id)
        own = await stranger.output(handle)
        none = await stranger.output(f"{handle[:-1]}{'0' if handle[-1] != '0' else '1'}")
        assert own.error_code == none.error_code == "SHELL_NOT_FOUND"
        assert own.error == f"No shell {handle} in this session. None is running"
        assert own.error.replace(handle, "") == none.error.replace(none.error.split()[2], "")
        assert own.metadata == none.metadata
    missing = await calls.output("sh_h1_000000000000")
    assert missing.error == f"No shell sh_h1_000000000000 in this session. Running: {handle} (serve)"


@pytest.mark.parametrize(
    "handle", ["x", "../../etc", "sh_h1_../../x", "sh_h1_00000000000g", "a\nb", "é" * 100, "sh_h1_0\0"]
)
async def test_what_is_not_a_handle_is_not_found(calls: Session, handle: str) -> None:
    result = await calls.output(handle)
    assert result.error_code == "SHELL_NOT_FOUND"
    assert len(result.error) < 400
    assert "\n" not in result.error


async def test_a_shell_of_another_host_is_refused_with_its_name(calls: Session, book: Book) -> None:
    handles = [f"sh_h2_{n:012d}" for n in range(4)]
    await book.record(record_of(handles[0], "h2", ShellStatus.RUNNING))
    await book.record(record_of(handles[1], "h2", ShellStatus.LOST))
    await book.record(record_of(handles[2], "h2", ShellStatus.RUNNING, "s2"))
    running, lost, strangers, unknown = [await calls.output(handle) for handle in handles]
    assert running.error_code == lost.error_code == "SHELL_HOST_UNAVAILABLE"
    assert running.error == (
        f"{handles[0]} (npm start) is on host h2; this call reached h1. Send it to a worker on h2: the queue is host.h2"
    )
    assert "is lost with its output: host h2 is gone" in lost.error
    assert strangers.error_code == unknown.error_code == "SHELL_NOT_FOUND"


async def test_a_shell_that_was_forgotten_here_is_said_to_be(calls: Session) -> None:
    handle = await calls.start("exit 0")
    await calls.ended(handle)
    shutil.rmtree(calls.folder / handle)
    result = await calls.output(handle)
    assert result.error_code == "SHELL_NOT_FOUND"
    said, _, known = result.error.partition("; its last known status: ")
    assert said.endswith("on host h1 is gone")
    assert known.rstrip(".") in {"running", "exited"}, "its end may have been noted before"


async def test_a_shell_whose_supervisor_was_killed_is_lost_with_what_it_had_written(calls: Session) -> None:
    handle = await calls.start("echo before; sleep 61; sleep 61")
    await calls.output(handle, wait_for="before")
    waiting = asyncio.ensure_future(calls.output(handle, wait_for="after"))
    await asyncio.sleep(0.05)
    with find(calls.folder, handle) as shell:
        os.kill(shell.record().pid, signal.SIGKILL)
    result = await waiting
    assert (result.metadata["status"], result.metadata["exit_code"], result.metadata["runtime_s"]) == (
        "lost",
        None,
        None,
    )
    assert result.output.startswith("before\n[no line has matched wait_for]\n[lost: its supervisor disappeared")


async def test_a_host_that_was_started_again_has_lost_its_shells(calls: Session) -> None:
    handle = await calls.start("echo before")
    await calls.ended(handle)
    path = calls.folder / handle / "status.json"
    facts = json.loads(path.read_text())
    path.write_text(json.dumps(facts | {"state": "running", "kernel": "another", "pid": os.getpid()}))
    result = await calls.output(handle, wait_ms=30_000)
    assert result.metadata["status"] == "lost"
    assert result.output.startswith("before\n[lost")


async def test_reading_says_that_somebody_cares(calls: Session) -> None:
    handle = await calls.start("sleep 61")
    os.utime(calls.folder / handle / "lease", (0, 0))
    await calls.output(handle)
    assert (calls.folder / handle / "lease").stat().st_mtime > 0


async def test_a_dry_run_reads_as_well(calls: Session) -> None:
    handle = await calls.start("echo one")
    await calls.ended(handle)
    dry = calls.other(dry_run=True)
    assert (await dry.output(handle, since=2)).output.startswith("[Dry Run] e\n")
    assert (await dry.output(handle)).output.startswith("[Dry Run] one\n")
    assert (await dry.output("sh_h1_000000000000")).error_code == "SHELL_NOT_FOUND"
