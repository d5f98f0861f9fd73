"""Processes that a body leaves running are found whatever it did to hide them, and nothing else is touched."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from forge_tools.sandbox.processes import endings
from forge_tools.sandbox.processes.endings import ProcessHandle, end
from forge_tools.sandbox.processes.environment import attempt_mark, instance_mark
from tests.fleet import ROOT, warm_worker
from tests.rogue_tools import LONG, SHAPES, noted
from tests.waiting import is_alive, wait_until
from tests.warm import Forked

BODY = """
import os, sys, time
from forge_tools.sandbox.processes.environment import Marking
from forge_tools.sandbox.processes.trees import adopt_orphans
from tests.rogue_tools import start
notes, *shapes = sys.argv[1:]
os.setsid()
marking = Marking()
adopt_orphans()
for number, shape in enumerate(shapes, 1):
    marking.put(notes, number)
    start(shape, notes)
print("started", flush=True)
time.sleep(300)
"""

Start = Callable[..., Forked]


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    return tmp_path / "notes"


@pytest.fixture
def body(notes: Path) -> Iterator[Start]:
    """Start a process that runs one body after the other, each leaving one process behind."""
    roots = []

    def begin(*shapes: str) -> Forked:
        environment = {**os.environ, "FORGE_INSTANCE": f"instance-{notes}"}
        to_read, to_write = os.pipe()
        with os.fdopen(to_read) as said, os.fdopen(to_write) as theirs:
            words = ["-c", BODY, str(notes), *shapes]
            root = warm_worker().start(words, cwd=ROOT, env=environment, stdout=theirs, stderr=2)
            roots.append(root)
            theirs.close()
            assert said.readline() == "started\n"
        count = len(shapes) + shapes.count("grandchild")
        wait_until(lambda: len(noted(notes)) == count, 60, f"only {noted(notes)} of {count} were started")
        return root

    yield begin
    for pid in filter(is_alive, noted(notes)):
        os.kill(pid, signal.SIGKILL)
    for root in roots:
        root.kill()
        root.wait()


@pytest.mark.parametrize("shape", [*SHAPES, "clean daemon"])
def test_whatever_a_living_body_started_ends_with_it(body: Start, notes: Path, shape: str) -> None:
    root = body(shape)
    handle = ProcessHandle(root.pid)

    ended = end(attempt_mark(str(notes), 1), root=handle)

    handle.close()
    assert ended == 1 + len(noted(notes))
    assert not [pid for pid in (root.pid, *noted(notes)) if is_alive(pid)]


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if "clean" not in shape])
def test_what_a_dead_body_started_is_known_by_its_mark(body: Start, notes: Path, shape: str) -> None:
    root = body(shape)
    root.kill()
    root.wait()

    end(attempt_mark(str(notes), 1))

    assert not [pid for pid in noted(notes) if is_alive(pid)]


def test_what_another_attempt_left_lives_on(body: Start, notes: Path) -> None:
    root = body("session", "forked daemon", "daemon")
    handle = ProcessHandle(root.pid)

    end(attempt_mark(str(notes), 2), root=handle)

    handle.close()
    alive = [is_alive(pid) for pid in (root.pid, *noted(notes))]
    assert alive.count(True) == 2
    assert not alive[0]


def test_a_body_that_is_over_is_cleared_without_its_process(body: Start, notes: Path) -> None:
    root = body("session", "forked daemon")

    end(attempt_mark(str(notes), 1), spare=(root.pid,))

    assert is_alive(root.pid)
    assert sum(is_alive(pid) for pid in noted(notes)) == 1


def test_the_mark_of_a_worker_finds_all_that_its_bodies_left(body: Start, notes: Path) -> None:
    root = body("session", "forked daemon", "daemon", "fork")

    end(instance_mark(f"instance-{notes}"))

    assert not [pid for pid in (root.pid, *noted(notes)) if is_alive(pid)]


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each look at all processes of the machine."""
    looks: list[int] = []
    table = endings.process_table
    monkeypatch.setattr(endings, "process_table", lambda: looks.append(1) or table())
    return looks


@pytest.mark.parametrize("is_doomed", [True, False])
def test_below_a_process_that_adopts_nothing_else_of_the_machine_is_looked_at(
    body: Start, notes: Path, looks: list[int], is_doomed: bool
) -> None:
    root = body("session", "daemon")
    with closing(ProcessHandle(root.pid)) as hold:
        spare = () if is_doomed else (root.pid,)
        end(attempt_mark(str(notes), 2), root=hold if is_doomed else None, within=hold, spare=spare)

    assert (looks, is_alive(root.pid)) == ([], not is_doomed)
    assert not is_alive(noted(notes)[-1])


def test_where_a_whole_machine_is_looked_at_for_nothing_one_look_is_enough(looks: list[int]) -> None:
    def count() -> int:
        looks.clear()
        assert end(attempt_mark("nobody's", 1)) == 0
        return len(looks)

    assert 1 in (count() for _ in range(20)), "more than one even where no process is just executing a program"


def test_a_process_that_kept_nothing_but_its_group_or_its_parent_is_found(notes: Path) -> None:
    script = f"sleep {LONG} & echo $! >> {notes}; env -i sleep {LONG} & echo $! >> {notes}; setsid env -i sh -c 'echo $$ >> {notes}; sleep {LONG}' & wait"
    environment = {"PATH": os.environ["PATH"], "FORGE_EXECUTION": f"{notes}.1"}
    with subprocess.Popen(["/bin/sh", "-c", script], env=environment, start_new_session=True) as shell:
        wait_until(lambda: len(noted(notes)) == 3, 30, "they did not start")
        ended = end(attempt_mark(str(notes), 1))

    assert ended >= 4
    assert not [pid for pid in (shell.pid, *noted(notes)) if is_alive(pid)]


def test_a_mark_that_only_begins_alike_is_another(body: Start, notes: Path) -> None:
    root = body("session")

    assert end(instance_mark(f"instance-{notes}"[:-1])) == 0
    assert end(attempt_mark(str(notes)[:-1], 1)) == 0
    assert is_alive(root.pid)


def test_a_process_that_forks_without_end_is_ended_too(tmp_path: Path) -> None:
    """Each lives for a moment and starts the next in a session of its own, so that no list of them is ever complete."""
    script = tmp_path / "hydra"
    script.write_text(f"#!/bin/sh\necho $$ >> {tmp_path}/heads\nsleep 0.1\nsetsid {script} &\n")
    script.chmod(0o755)
    mark = instance_mark(str(tmp_path))
    environment = {"PATH": os.environ["PATH"], "FORGE_INSTANCE": str(tmp_path)}
    subprocess.run([str(script)], env=environment, check=True)
    heads = tmp_path / "heads"
    wait_until(lambda: len(noted(heads)) > 5, 60, "it does not grow")

    end(mark)

    count = len(noted(heads))
    with pytest.raises(AssertionError, match="it ended"):
        wait_until(lambda: len(noted(heads)) > count, 1, "it ended")


def test_a_quarry_whose_number_is_anothers_by_now_gets_no_signal() -> None:
    process = subprocess.Popen(["sleep", str(LONG)])
    handle = ProcessHandle(process.pid)
    assert handle.send(0)
    process.kill()
    process.wait()

    assert not handle.send(signal.SIGKILL)
    again = handle.again()
    assert not again.send(signal.SIGKILL)
    again.close()
    handle.close()
    handle.close()
    assert not handle.send(signal.SIGKILL)
