"""Child processes that are kept running, and stopped."""

import fcntl
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from forge_tools.embedded import supervision
from forge_tools.embedded.supervision import SupervisedProcess
from forge_tools.sandbox.processes.spawner import Spawner
from tests.waiting import is_alive, wait_until

ROOT = Path(__file__).parents[3]
FORKS = """
import os, time
from forge_tools.sandbox.processes.launcher import serve, spawn

def start(*request):  # a copy of this process has no session of its own at first
    if os.path.exists(__file__ + ".served"):
        if not (child := os.fork()):
            time.sleep(60)
        return child
    open(__file__ + ".served", "w").close()
    return spawn(*request)

serve((), start)
"""


@pytest.fixture
def supervised(tmp_path: Path) -> Iterator[Callable[..., SupervisedProcess]]:
    made: list[SupervisedProcess] = []
    spawner = Spawner()  # its own: another test may just have killed what forks for this process

    def make(code: str, stdin: int | None = None, spawner: Spawner = spawner) -> SupervisedProcess:
        argv, environment = [sys.executable, "-S", "-c", code], {"WORD": "hello"}
        made.append(
            SupervisedProcess(
                "thing",
                argv,
                log=tmp_path / "thing.log",
                environment=environment,
                grace=0.3,
                spawner=spawner,
                stdin=stdin,
            )
        )
        return made[-1]

    yield make
    for process in made:
        process.kill()
    spawner.close()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the supervision takes for the time."""
    moved = [time.monotonic()]
    monkeypatch.setattr(supervision, "time", SimpleNamespace(monotonic=lambda: moved[0], sleep=time.sleep))
    return moved


def test_output_goes_to_the_log(supervised: Callable[..., SupervisedProcess]) -> None:
    process = supervised("import os, sys; print(os.environ['WORD'], flush=True); sys.exit('bye')")
    process.start()
    wait_until(lambda: not process.is_alive)
    process.forget()
    assert process.last_words() == "hello\nbye"
    assert process.status().last_exit == "exit code 1"
    assert process.log.stat().st_mode & 0o777 == 0o600


def test_the_pid_is_the_commands_own(supervised: Callable[..., SupervisedProcess]) -> None:
    process = supervised("import os, time; print(os.getpid(), flush=True); time.sleep(60)")
    assert process.pid is None
    process.start()
    wait_until(process.last_words)
    assert process.status().pid == int(process.last_words())
    assert process.status().state == "running"


def test_a_process_that_was_asked_to_end_stays_ended(supervised: Callable[..., SupervisedProcess]) -> None:
    process = supervised("import time; time.sleep(60)")
    process.start()
    wait_until(lambda: process.pid)
    process.terminate()
    wait_until(lambda: not process.is_alive)
    process.forget()
    process.tend()
    assert process.status().state == "stopped"
    assert process.status().last_exit == "killed by SIGTERM"


def test_one_that_ignores_being_asked_is_killed_after_the_grace(supervised: Callable[..., SupervisedProcess]) -> None:
    process = supervised(
        "import signal, time; signal.signal(15, signal.SIG_IGN); print('on', flush=True); time.sleep(60)"
    )
    process.start()
    wait_until(process.last_words)
    process.terminate()
    wait_until(lambda: not process.is_alive)


def test_kill_ends_children_too(supervised: Callable[..., SupervisedProcess]) -> None:
    process = supervised(
        "import subprocess, sys; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True); p.wait()"
    )
    process.start()
    wait_until(process.last_words)
    process.kill()
    grandchild = int(process.last_words())
    wait_until(lambda: not is_alive(grandchild))
    assert process.status().state == "stopped"


def test_killing_a_command_that_has_just_been_forked_kills_no_other(
    supervised: Callable[..., SupervisedProcess], tmp_path: Path
) -> None:
    program = tmp_path / "forks.py"
    program.write_text(f"import sys; sys.path.append({str(ROOT)!r})\n{FORKS}")
    spawner = Spawner(program=(str(program),))
    serving, newborn = (supervised("import time; time.sleep(60)", spawner=spawner) for _ in range(2))
    serving.start()
    wait_until(lambda: serving.pid)
    newborn.start()
    wait_until(lambda: newborn.pid)

    newborn.kill()
    assert serving.is_alive
    spawner.close()


def test_the_pause_before_a_restart_grows_and_shrinks_again(
    supervised: Callable[..., SupervisedProcess], clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    process = supervised("")
    process.start()
    for lifetime in (0, 0, 0, supervision.STEADY_SECONDS + 1):
        clock[0] += lifetime
        wait_until(lambda: not process.is_alive)
        process.tend()
        assert process.status().state == "restarting"
        clock[0] += supervision.LONGEST_DELAY
        process.tend()
    pauses = [record.__dict__["restart_in"] for record in caplog.records]
    assert pauses == [0.5, 1.0, 2.0, 0.5]
    assert process.status().restarts == 4


def test_a_log_that_has_grown_large_is_put_aside_at_the_start(
    supervised: Callable[..., SupervisedProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "MAX_LOG_BYTES", 10)
    process = supervised("print('new')")
    process.log.write_text("old " * 10)
    process.start()
    wait_until(lambda: not process.is_alive)
    assert process.last_words() == "new"
    assert process.log.with_name("thing.log.1").read_text() == "old " * 10


def test_nothing_of_ours_is_open_in_the_process(supervised: Callable[..., SupervisedProcess]) -> None:
    secret = os.open("/etc/hostname", os.O_RDONLY)
    os.set_inheritable(secret, True)
    process = supervised("import os; print(sorted(int(fd) for fd in os.listdir('/proc/self/fd'))[:-1])")
    process.start()
    wait_until(lambda: not process.is_alive)
    os.close(secret)
    assert process.last_words() == "[0, 1, 2]"


def test_a_lock_that_is_its_standard_input_is_held_as_long_as_it_lives(
    supervised: Callable[..., SupervisedProcess], tmp_path: Path
) -> None:
    lock, other = (os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT) for _ in range(2))
    fcntl.flock(lock, fcntl.LOCK_EX)
    process = supervised("import time; print('on', flush=True); time.sleep(60)", stdin=lock)
    process.start()
    wait_until(process.last_words)
    os.close(lock)
    assert not can_take(other)
    process.kill()
    wait_until(lambda: can_take(other))
    os.close(other)


def can_take(lock: int) -> bool:
    with suppress(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def test_a_restart_that_fails_is_tried_again(supervised: Callable[..., SupervisedProcess], clock: list[float]) -> None:
    process = supervised("")
    process.start()
    wait_until(lambda: not process.is_alive)
    process.tend()
    process.log.unlink()
    process.log.mkdir()
    clock[0] += supervision.LONGEST_DELAY
    process.tend()
    assert process.status().state == "restarting"
    assert process.status().last_exit == "cannot start: Is a directory"
    process.log.rmdir()
    clock[0] += supervision.LONGEST_DELAY
    process.tend()
    assert process.status().state != "restarting"
