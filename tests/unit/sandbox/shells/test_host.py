"""The shells of a host, surveyed, renewed and forgotten; those whose supervisor vanished are lost."""

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from forge_tools.model.places import ShellStatus
from forge_tools.sandbox.processes.trees import start_ticks
from forge_tools.sandbox.shells.folder import ShellFolder
from forge_tools.sandbox.shells.host import each, find, forget, renew, survey, usage_of
from tests.shell_hosts import has_ended, is_alive, processes_of, run_shell, shell_host
from tests.waiting import wait_until


@pytest.fixture
def folder(tmp_path: Path, marker: str) -> Iterator[Path]:
    with shell_host(tmp_path / "shells") as made:
        yield made


def rewrite(shell: ShellFolder, folder: Path, **facts: Any) -> None:
    path = folder / shell.id / "status.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | facts))


def test_a_survey_tells_what_was_asked_and_how_it_goes(folder: Path) -> None:
    asked = {"description": "count", "session_id": "s", "agent_id": "a", "execution_id": "e"}
    with run_shell(folder, "echo hello; exit 3", **asked) as shell, run_shell(folder, "sleep 61"):
        wait_until(lambda: has_ended(shell))
        first, second = survey(folder)
    assert (first.id, first.hostname, first.command, first.cwd) == (shell.id, "h1", "echo hello; exit 3", ".")
    assert (first.status, first.exit_code, first.signal, first.size) == (ShellStatus.EXITED, 3, None, 6)
    assert {name: getattr(first, name) for name in asked} == asked
    assert first.started_at < second.started_at
    assert first.started_at <= first.ended_at
    assert (second.status, second.ended_at) == (ShellStatus.RUNNING, None)
    assert start_ticks(second.pid) == second.start_ticks > 0


def test_what_is_over_is_read_once_and_again_when_it_is_written_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with run_shell(folder, "exit 3") as shell, run_shell(folder, "sleep 61"):
        wait_until(lambda: has_ended(shell))
        before, opened = survey(folder), []
        real = os.open
        monkeypatch.setattr(
            os, "open", lambda path, *more, **how: opened.append(Path(path)) or real(path, *more, **how)
        )
        assert [record.status for record in survey(folder)] == [record.status for record in before]
        assert len([path for path in opened if path.parent == folder]) == 1
        assert folder / shell.id not in opened
        rewrite(shell, folder, exit_code=44)
        assert survey(folder)[0].exit_code == 44
    shutil.rmtree(folder / shell.id)
    assert len(survey(folder)) == 1


def test_a_shell_whose_supervisor_was_killed_is_lost_and_swept(
    folder: Path, marker: str, sleepers: Callable[[], list[int]]
) -> None:
    script = f"setsid sleep {marker} & env -i setsid sleep {marker} & trap '' TERM HUP; sleep {marker}; :"
    with run_shell(folder, script) as shell:
        wait_until(lambda: len(sleepers()) == 3)
        os.kill(shell.record().pid, signal.SIGKILL)
        wait_until(lambda: survey(folder)[0].status is ShellStatus.LOST)
        assert not processes_of({shell.id})
        assert not sleepers()
        record = survey(folder)[0]
        assert (record.exit_code, record.signal) == (None, None)
        assert record.ended_at is not None
        assert not shell.order("TERM", 1)
        assert survey(folder) == [record]


@pytest.mark.parametrize(
    "changed", [{"kernel": "before the host was started again"}, {"start_ticks": 1}, {"pid": 1}, {"pid": 0}]
)
def test_another_process_with_the_number_of_a_supervisor_is_none(folder: Path, changed: dict[str, Any]) -> None:
    with run_shell(folder, "sleep 0.1; exit 5") as shell:
        wait_until(lambda: has_ended(shell))
        innocent = run_shell(folder, "sleep 61")
        me = innocent.record()
        facts = {"state": "running", "pid": me.pid, "start_ticks": me.start_ticks, "child": innocent.facts()["child"]}
        rewrite(shell, folder, **facts)
        assert shell.record().status is ShellStatus.RUNNING
        rewrite(shell, folder, **(facts | changed))
        assert shell.record().status is ShellStatus.LOST
        assert is_alive(me.pid)
        assert is_alive(innocent.facts()["child"])
        innocent.close()


def test_what_is_not_a_shell_is_passed_over(folder: Path, tmp_path: Path) -> None:
    with run_shell(folder, "exit 0") as shell:
        wait_until(lambda: has_ended(shell))
    shutil.copytree(folder / shell.id, tmp_path / "elsewhere", ignore=shutil.ignore_patterns("orders"))
    (folder / "sh_h1_aaaaaaaaaaaa").symlink_to(tmp_path / "elsewhere")
    (folder / "sh_h1_bbbbbbbbbbbb").write_text("a file")
    (folder / "sh_h1_cccccccccccc").mkdir()
    (folder / "notes").mkdir()
    assert [record.id for record in survey(folder)] == [shell.id]
    assert find(folder, "../elsewhere") is None
    assert find(folder, f"{shell.id}/.") is None
    assert survey(folder / "nothing") == []


@pytest.mark.parametrize(
    "content",
    [
        "", "{", "[]", "null", "[" * 100_000, '{"state": 3}', '{"state": "running", "pid": "x", "start_ticks": []}',
        '{"state": "running", "pid": -1}', '{"state": "lost", "ended_at": 1e300, "size": 1e400}',
        '{"state": "lost", "ended_at": NaN, "exit_code": 99999999999999999999999}',
    ],
)  # fmt: skip
def test_a_status_that_somebody_spoilt_is_no_reason_to_fail(folder: Path, content: str) -> None:
    with run_shell(folder, "exit 0") as shell:
        wait_until(lambda: has_ended(shell))
        (folder / shell.id / "status.json").write_text(content)
        assert [record.status for record in survey(folder)] in ([], [ShellStatus.LOST])
        renew(folder)


def test_leases_are_renewed(folder: Path, marker: str) -> None:
    with run_shell(folder, f"sleep {marker}", lease_seconds=4) as shell:
        path = folder / shell.id / "lease"
        os.utime(path, (0, 0))
        renew(folder)
        assert path.stat().st_mtime > 0
        with pytest.raises(AssertionError):  # in longer than a lease it does not end
            wait_until(lambda: renew(folder) or has_ended(shell), 6)
        wait_until(lambda: has_ended(shell))


def test_only_what_ended_long_ago_is_forgotten(folder: Path) -> None:
    with (
        run_shell(folder, "exit 0") as old,
        run_shell(folder, "exit 0") as young,
        run_shell(folder, "sleep 61") as going,
    ):
        wait_until(lambda: has_ended(old) and has_ended(young))
        rewrite(old, folder, ended_at=old.facts()["ended_at"] - 3600)
        assert forget(folder, 1800) == 1
        assert {shell.id for shell in each(folder)} == {young.id, going.id}
        assert forget(folder, 0) == 1
        assert {shell.id for shell in each(folder)} == {going.id}


def test_the_start_of_one_that_was_interrupted_is_forgotten_too(folder: Path) -> None:
    made = folder / "sh_h1_aaaaaaaaaaaa"
    made.mkdir()
    assert forget(folder, 0) == 0
    os.utime(made, (0, 0))
    assert forget(folder, 0) == 1
    assert not made.exists()


def test_two_hundred_shells_are_kept_apart(folder: Path, marker: str, sleepers: Callable[[], list[int]]) -> None:
    shells = [run_shell(folder, f"echo {n}; exec sleep {marker}", session_id=str(n)) for n in range(200)]
    wait_until(lambda: len(sleepers()) == 200)
    records = survey(folder)
    assert [record.session_id for record in records] == [str(n) for n in range(200)]
    assert {usage.processes for usage in usage_of(records).values()} == {1}
    wait_until(lambda: [shell.size for shell in shells] == [len(f"{n}\n") for n in range(200)])
    for shell in shells:
        assert shell.order("TERM", 2)
    wait_until(lambda: all(map(has_ended, shells)))
    assert not sleepers()
    for shell in shells:
        shell.close()


def test_what_a_shell_uses_is_counted(folder: Path, marker: str, sleepers: Callable[[], list[int]]) -> None:
    work = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done"
    with run_shell(folder, f"(setsid sleep {marker} &); {work}; ({work}); echo done; sleep {marker}; :") as shell:
        wait_until(lambda: shell.size and len(sleepers()) == 2)
        usage = usage_of(survey(folder))[shell.id]
    assert usage.processes == 3
    assert 1e6 < usage.rss_bytes < 1e9
    assert usage.cpu_s > 0
