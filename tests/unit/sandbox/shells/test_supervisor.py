"""Shells under their supervisors: they outlive their starter, and end completely."""

import contextlib
import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from forge_tools.errors import SandboxError
from forge_tools.model import ExecutionContext
from forge_tools.model.places import ShellStatus
from forge_tools.sandbox.processes.endings import ProcessHandle, end, has_unmarked_descendants
from forge_tools.sandbox.processes.environment import attempt_mark, instance_mark
from forge_tools.sandbox.processes.spawner import Spawner
from forge_tools.sandbox.processes.trees import descendants
from forge_tools.sandbox.reach import Reach
from forge_tools.sandbox.shells import host
from forge_tools.sandbox.shells.host import KEEPER, hostname_of, shells_folder
from tests.shell_hosts import UNWALLED, has_ended, output_of, run_shell, shell_host
from tests.waiting import wait_until

ROOT = Path(__file__).parents[4]
STARTER = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(ROOT)!r})
from tests.shell_hosts import run_shell
shell = run_shell(Path(sys.argv[1]), sys.argv[2])
print(shell.id, flush=True)
sys.stdin.read()
"""
SPARING = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from forge_tools.sandbox.processes.launcher import serve, spawn
serve((), spawn, spares_shells=True)
"""


@pytest.fixture
def folder(tmp_path: Path, marker: str) -> Iterator[Path]:
    with shell_host(tmp_path / "shells") as made:
        yield made


@pytest.fixture
def starter(tmp_path: Path) -> list[str]:
    """The command line of a program that starts a shell in the folder it is given, tells its id, and waits."""
    program = tmp_path / "starter.py"
    program.write_text(STARTER)
    return [sys.executable, str(program)]


@pytest.mark.parametrize(
    ("script", "facts"),
    [
        ("exit 0", {"state": "exited", "exit_code": 0}),
        ("exit 7", {"state": "exited", "exit_code": 7}),
        ("kill -9 $$", {"state": "exited", "signal": 9}),
        ("sleep 0.05 & exit 3", {"state": "exited", "exit_code": 3}),
        ("(sleep 0.1; kill -CONT $$) & kill -STOP $$; exit 2", {"state": "exited", "exit_code": 2}),
    ],
)
def test_how_a_shell_ended_is_written_down(folder: Path, script: str, facts: dict[str, object]) -> None:
    with run_shell(folder, script) as shell:
        wait_until(lambda: has_ended(shell))
        assert facts.items() <= shell.facts().items()


def test_both_streams_are_kept_in_their_order(folder: Path) -> None:
    with run_shell(folder, "for i in 1 2 3; do echo out $i; echo err $i >&2; done; printf end") as shell:
        wait_until(lambda: has_ended(shell))
        assert output_of(shell) == b"out 1\nerr 1\nout 2\nerr 2\nout 3\nerr 3\nend"
        assert shell.facts()["size"] == len(output_of(shell))


def test_nobody_else_may_look(folder: Path) -> None:
    with run_shell(folder, "echo hi; sleep 61") as shell:
        wait_until(lambda: shell.size == 3)
        modes = {path.name: path.lstat().st_mode & 0o777 for path in (folder / shell.id).iterdir()}
        assert set(modes.values()) == {0o600}
        assert (folder / shell.id).stat().st_mode & 0o777 == 0o700


def test_what_a_shell_leaves_running_belongs_to_it(
    folder: Path, marker: str, sleepers: Callable[[], list[int]]
) -> None:
    with run_shell(folder, f"(setsid sleep {marker} &) ; exit 4") as shell:
        wait_until(lambda: shell.facts().get("exit_code") == 4)
        wait_until(sleepers)
        assert shell.record().status is ShellStatus.RUNNING
        assert shell.order("TERM", 2)
        wait_until(lambda: has_ended(shell))
        assert (shell.record().status, shell.record().exit_code) == (ShellStatus.KILLED, 4)


@pytest.mark.parametrize(
    "script",
    [
        "sleep {0}",
        "sleep {0} & disown; sleep {0}",
        "setsid sleep {0} & wait",
        "(setsid bash -c 'sleep {0} & sleep {0}' &) ; sleep {0}",
        "trap '' TERM; setsid sleep {0} & while :; do sleep 0.05; done",
        "nohup sleep {0} & nohup setsid sleep {0} & wait",
        "env -i sleep {0} & env -i setsid sleep {0} & wait",
        "sleep {0} & sleep 0.1; kill -STOP $!; kill -STOP $$",
        "trap '' TERM INT; yes & sleep {0}; wait",
        "f() {{ sleep {0} & f2; }}; f2() {{ sleep 0.01; f; }}; f",
    ],
)
def test_a_shell_ends_with_all_it_started(
    folder: Path, script: str, marker: str, sleepers: Callable[[], list[int]]
) -> None:
    with run_shell(folder, script.format(marker)) as shell:
        wait_until(sleepers)
        ordered = time.monotonic()
        assert shell.order("TERM", 0.3)
        wait_until(lambda: has_ended(shell))
        assert time.monotonic() - ordered < 20
        facts = shell.facts()
        assert (facts["state"], facts["ended_by"], facts.get("left")) == ("killed", "kill", None)
        assert facts["processes"] >= 1
        assert not sleepers()


def test_a_shell_that_hears_a_signal_may_end_in_its_own_way(folder: Path) -> None:
    for name, code in (("TERM", 15), ("INT", 2)):
        with run_shell(folder, f"trap 'echo bye; exit {code}' {name}; echo up; while :; do sleep 0.02; done") as shell:
            wait_until(lambda: shell.size)
            assert shell.order(name, 10)
            wait_until(lambda: has_ended(shell))
            assert (shell.facts()["exit_code"], output_of(shell)[-4:]) == (code, b"bye\n")


def test_kill_asks_nobody(folder: Path, marker: str, sleepers: Callable[[], list[int]]) -> None:
    with run_shell(folder, f"trap 'echo asked' TERM; setsid sleep {marker} & wait; sleep {marker}") as shell:
        wait_until(sleepers)
        assert shell.order("KILL", 30)
        wait_until(lambda: has_ended(shell))
        assert (output_of(shell), shell.facts()["signal"]) == (b"", 9)


def test_a_second_order_may_be_sharper_and_never_milder(folder: Path, marker: str) -> None:
    with run_shell(folder, f"trap '' TERM; echo up; while :; do sleep {marker}; done") as shell:
        wait_until(lambda: shell.size)
        assert shell.order("TERM", 30)
        assert shell.order("KILL", 30)
        wait_until(lambda: has_ended(shell), 20)
        assert not shell.order("TERM", 1) or wait_until(lambda: not shell.order("TERM", 1))


def test_words_that_are_not_an_order_are_passed_over(folder: Path) -> None:
    with run_shell(folder, "sleep 61") as shell:
        fd = os.open(folder / shell.id / "orders", os.O_WRONLY | os.O_NONBLOCK)
        os.write(fd, b"\nHUH 3\nTERM\nTERM x\nTERM nan\n\xff\xfe 1 2 3\n")
        os.close(fd)
        time.sleep(0.05)  # nothing must come of it
        assert not has_ended(shell)


def test_forking_while_it_is_killed_saves_nothing(folder: Path, marker: str) -> None:
    script = f"f() {{ while :; do (setsid sleep {marker} &) ; done; }}; for i in 1 2 3; do f & done; echo up; wait"
    with run_shell(folder, f"ulimit -u 4000; {script}") as shell:
        wait_until(lambda: shell.size)
        assert shell.order("KILL", 0)
        wait_until(lambda: has_ended(shell))
        assert shell.facts().get("left") is None


def test_a_shell_outlives_the_process_that_started_it_by_kill_9(
    folder: Path, starter: list[str], marker: str, sleepers: Callable[[], list[int]]
) -> None:
    script = f"echo one; sleep {marker} & while [ ! -e {folder}/go ]; do sleep 0.01; done; echo two; wait"
    with started([*starter, str(folder), script]) as (process, handle):
        os.killpg(process.pid, signal.SIGKILL)
    (folder / "go").touch()
    with host.find(folder, handle) as shell:
        wait_until(lambda: output_of(shell) == b"one\ntwo\n")
        assert [record.status for record in host.survey(folder)] == [ShellStatus.RUNNING]
        assert shell.order("TERM", 2)
        wait_until(lambda: has_ended(shell))
    assert not sleepers()


def test_nothing_that_sweeps_up_after_workers_and_bodies_meets_a_shell(
    folder: Path, starter: list[str], marker: str, sleepers: Callable[[], list[int]]
) -> None:
    marks = {"FORGE_INSTANCE": "the-instance", "FORGE_EXECUTION": "the-execution.1"}
    script = f"sleep {marker} & env -i sleep {marker} & wait"
    with started([*starter, str(folder), script], env=os.environ | marks) as (process, handle):
        wait_until(lambda: len(sleepers()) == 2)
        assert not has_unmarked_descendants(process.pid)
        assert end(attempt_mark("the-execution", 1), root=ProcessHandle(process.pid)) == 1
        assert end(instance_mark("the-instance")) == 0
        process.wait(60)
    with host.find(folder, handle) as shell:
        assert len(sleepers()) == 2
        assert shell.record().status is ShellStatus.RUNNING
        assert {p.pid for p in descendants(shell.record().pid, with_shells=True)} >= set(sleepers())


def test_a_launcher_that_ends_its_tree_lets_shells_be(
    folder: Path, starter: list[str], marker: str, sleepers: Callable[[], list[int]]
) -> None:
    launchers = Spawner(program=("-c", SPARING))
    command = ["bash", "-c", f'setsid sleep {marker} & "$@"', "-", *starter, str(folder), f"sleep {marker}"]
    place, (into, said), (waits, told) = os.open(ROOT, os.O_RDONLY), os.pipe(), os.pipe()
    control = launchers.start(command, os.environ, folder=place, streams=(into, told, 2), grace=0.3)
    for handle in (place, into, told):
        os.close(handle)
    with os.fdopen(waits) as lines:
        handle = lines.readline().strip()
    wait_until(lambda: len(sleepers()) == 2)
    began = time.monotonic()
    control.close()
    wait_until(lambda: len(sleepers()) == 1)
    os.close(said)
    launchers.close()
    assert time.monotonic() - began < 20
    with host.find(folder, handle) as shell:
        assert len(sleepers()) == 1
        assert shell.record().status is ShellStatus.RUNNING


def test_the_shell_knows_no_secret_and_has_no_handle_of_ours(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    KEEPER.close()
    monkeypatch.setenv("FORGE_DATABASE_URL", "canary")
    monkeypatch.setenv("OPENAI_API_KEY", "canary")
    with run_shell(folder, "env; tr '\\0' '\\n' </proc/$PPID/environ; ls /proc/$$/fd; :", env={"A": "b c"}) as shell:
        wait_until(lambda: has_ended(shell))
        text = output_of(shell).decode()
    assert "canary" not in text
    assert "\nA=b c\n" in text
    assert text.endswith("\n0\n1\n2\n")
    assert "b c" not in (folder / shell.id / "record.json").read_text()
    KEEPER.close()


def test_a_terminal_that_goes_away_takes_no_shell_along(folder: Path) -> None:
    with run_shell(folder, "ps -o tty=,sid= -p $$; sleep 61") as shell:
        wait_until(lambda: b"\n" in output_of(shell))
        tty, session = output_of(shell).split()
        assert tty == b"?"
        assert int(session) not in (os.getsid(0), shell.record().pid)


def test_the_same_deed_starts_one_shell(folder: Path, marker: str, sleepers: Callable[[], list[int]]) -> None:
    shells = []

    def once() -> None:
        shells.append(run_shell(folder, f"sleep {marker}", execution_id="one"))

    threads = [threading.Thread(target=once) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({shell.id for shell in shells}) == 1
    wait_until(sleepers)
    assert len(sleepers()) == 1
    with run_shell(folder, f"sleep {marker}.", execution_id="one") as other:
        assert other.id != shells[0].id
    for shell in shells:
        shell.close()


def test_one_that_cannot_be_started_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fd = os.open("/", os.O_RDONLY)
    new = host.NewShell(command="x", cwd=".", context=ExecutionContext(working_dir="."))
    with monkeypatch.context() as without:
        without.setattr(host, "find_shell", lambda: ["/no/such/program"])
        with pytest.raises(SandboxError, match="No such file"):
            host.start(folder, "h1", new, place=fd, stdin=b"", around=UNWALLED)
    monkeypatch.setattr(KEEPER, "request", _fails)
    with pytest.raises(SandboxError, match="Too many open files"):
        host.start(folder, "h1", new, place=fd, stdin=b"", around=UNWALLED)
    os.close(fd)
    assert list(folder.iterdir()) == []


def test_a_supervisor_that_is_told_to_stop_ends_its_shell(folder: Path, marker: str) -> None:
    with run_shell(folder, f"sleep {marker}") as shell:
        os.kill(shell.record().pid, signal.SIGTERM)
        wait_until(lambda: has_ended(shell))
        assert shell.facts()["ended_by"] == "stop"


def test_a_shell_that_nobody_cares_for_ends(folder: Path, marker: str, sleepers: Callable[[], list[int]]) -> None:
    with (
        run_shell(folder, f"sleep {marker}", lease_seconds=0.4) as alone,
        run_shell(folder, f"sleep {marker}", lease_seconds=60) as cared_for,
    ):
        wait_until(lambda: has_ended(alone))
        assert alone.facts()["ended_by"] == "lease"
        assert not has_ended(cared_for)


def test_a_shell_whose_folder_is_gone_ends(tmp_path: Path, marker: str, sleepers: Callable[[], list[int]]) -> None:
    with shell_host(tmp_path / "lost") as folder, run_shell(folder, f"sleep {marker}", lease_seconds=0.4) as shell:
        wait_until(sleepers)
        (folder / shell.id).rename(tmp_path / "elsewhere")
        for path in (tmp_path / "elsewhere").iterdir():
            path.unlink()
        wait_until(lambda: not sleepers())


def test_the_name_of_a_host_fits_into_an_id() -> None:
    assert hostname_of(Reach(hostname="node-1.example")) == "node-1.example"
    assert hostname_of(Reach(hostname="a b/ü")) == "a-b--"
    assert hostname_of(Reach())


def test_the_folder_of_shells_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    made = shells_folder(Reach(hostname="h1"), is_made=True)
    assert made == tmp_path / "home/.local/state/forge-tools/shells/h1"
    assert made.stat().st_mode & 0o777 == 0o700
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "link").symlink_to(made)
    (tmp_path / "file").touch()
    for name in ("open", "link", "file", "file/below"):
        with pytest.raises(SandboxError, match=r"folder for shells"):
            shells_folder(Reach(shells=tmp_path / name), is_made=True)


def _fails(*_: object) -> None:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


@contextlib.contextmanager
def started(command: list[str], **options: Any) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a starter; return it with the id of the shell that it has started."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, start_new_session=True, **pipes, **options) as process:
        yield process, process.stdout.readline().strip()
