"""A process shows whose it is, and so does everything it forks or executes."""

import os
import signal
import subprocess
import sys
from ast import literal_eval
from pathlib import Path

import pytest

from forge_tools.sandbox.processes.endings import end
from forge_tools.sandbox.processes.environment import Marking, attempt_mark, child_environment, instance_mark
from forge_tools.sandbox.processes.spawner import Spawner
from forge_tools.sandbox.processes.trees import INSTANCE, marks_of
from forge_tools.sandbox.walls.privileges import drop_capabilities
from tests.fleet import ROOT
from tests.waiting import is_alive, wait_until
from tests.walled import in_child

PROGRAM = """
import os, subprocess, sys
from pathlib import Path
from forge_tools.sandbox.processes.environment import Marking
from forge_tools.sandbox.processes.trees import marks_of
before = dict(os.environ)
marking = Marking()
marking.put("id", 1)
marking.put("id", 2)
print(sorted(marks_of(os.getpid())))
print(b"hunter2" in Path("/proc/self/environ").read_bytes())
marks = {n: os.environ.pop(n) for n in ("FORGE_EXECUTION",)}
print(dict(os.environ) == before, subprocess.check_output(["sh", "-c", "echo $SECRET"], text=True).strip())
os.environ.update(marks)
print(subprocess.check_output(["sh", "-c", "echo $FORGE_INSTANCE $FORGE_EXECUTION"], text=True).strip())
marking.clear()
print(sorted(marks_of(os.getpid())), os.environ.get("FORGE_EXECUTION"))
"""


def outputs(**environment: str) -> list[str]:
    argv = [sys.executable, "-c", PROGRAM]
    return subprocess.check_output(argv, env={"PYTHONPATH": str(ROOT), **environment}, text=True).splitlines()


def test_a_marked_process_shows_its_marks_and_hides_what_its_environment_held() -> None:
    given = {"PATH": os.environ["PATH"], "SECRET": "hunter2", "PADDING": "x" * 200}

    said = outputs(FORGE_INSTANCE="instance-1", **given)

    assert said == [
        "[b'FORGE_EXECUTION=id.2', b'FORGE_INSTANCE=instance-1']",
        "False",
        "True hunter2",
        "instance-1 id.2",
        "[b'FORGE_INSTANCE=instance-1'] None",
    ]


def test_where_the_marks_do_not_fit_what_is_executed_is_marked_all_the_same() -> None:
    said = outputs(PATH="/usr/bin:/bin", FORGE_INSTANCE="b", SECRET="x")[3]

    assert said == "b id.2"


def test_a_process_that_is_gone_has_no_marks() -> None:
    assert marks_of(2**22 + 1) == frozenset()


def test_marks_are_handed_on_to_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORGE_INSTANCE", "instance-1")
    monkeypatch.setenv("FORGE_EXECUTION", "id.2")

    environment = child_environment({"CI": "1"})

    process = subprocess.Popen(["sleep", "60"], env=environment)
    try:
        marks = {instance_mark("instance-1"), attempt_mark("id", 2)}
        wait_until(lambda: marks_of(process.pid) == marks, 60, "it is not marked")
    finally:
        process.kill()
        process.wait()


def test_a_system_without_proc_is_no_reason_to_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setenv("FORGE_EXECUTION", "of another")
    before = Path("/proc/self/environ").read_bytes()

    marking = Marking()
    marking.put("id", 1)

    assert os.environ["FORGE_EXECUTION"] == "id.1"
    assert Path("/proc/self/environ").read_bytes() == before
    marking.clear()
    assert "FORGE_EXECUTION" not in os.environ


def test_a_launcher_whose_environment_is_closed_is_found_by_who_is_not_root(tmp_path: Path) -> None:
    def orphaned() -> tuple[int, bool]:
        drop_capabilities()
        os.environ[INSTANCE] = "walled"
        spawner = Spawner()
        read, write = os.pipe()
        with spawner.start(
            ["sleep", "300"], child_environment(), folder=os.open(tmp_path, os.O_RDONLY), streams=(read,) * 3, grace=1
        ):
            wait_until(lambda: _is_refused(spawner.pid))
            os.kill(spawner.pid, signal.SIGSTOP)  # it does not even see that we are gone
            os.close(write)
            return end(instance_mark("walled")), is_alive(spawner.pid)

    ended, is_left = literal_eval(in_child(orphaned))

    assert (ended > 0, is_left) == (True, False)


def _is_refused(pid: int) -> bool:
    try:
        Path(f"/proc/{pid}/environ").read_bytes()
    except PermissionError:
        return True
    return False
