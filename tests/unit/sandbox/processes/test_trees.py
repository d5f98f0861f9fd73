"""Process trees: who belongs to one, and who does not."""

import os
import signal
import subprocess
from collections.abc import Callable

from forge_tools.sandbox.processes import trees
from forge_tools.sandbox.processes.endings import ProcessHandle, end, has_unmarked_descendants
from tests.waiting import wait_until


def test_the_process_table_of_ps_agrees_with_proc() -> None:
    ours = next(p for p in trees.process_table() if p.pid == os.getpid())
    assert ours.parent == os.getppid()
    assert ours._replace(ticks=0) in set(trees.process_table_of_ps())


def test_what_keeps_shells_belongs_to_nobody_and_what_only_says_that_it_is_of_one_does(
    marker: str, sleepers: Callable[[], list[int]]
) -> None:
    kept = f"FORGE_SHELL=keeper.a bash -c 'sleep {marker} & env -i sleep {marker} & wait'"
    script = f"sleep {marker} & env -i FORGE_SHELL=sh_a_000000000000 setsid sleep {marker} & {kept} & wait"
    with subprocess.Popen(["bash", "-c", script], start_new_session=True) as root:
        wait_until(lambda: len(sleepers()) == 4)
        assert len(trees.descendants(root.pid)) == 2
        assert len(trees.descendants(root.pid, with_shells=True)) == 5
        assert has_unmarked_descendants(root.pid)
        assert end(b"FORGE_EXECUTION=none", root=ProcessHandle(root.pid)) == 3
        assert len(sleepers()) == 2
        for pid in sleepers():
            os.kill(pid, signal.SIGKILL)


def test_a_process_has_one_moment_at_which_it_started() -> None:
    assert trees.start_ticks(os.getpid()) == trees.start_ticks(os.getpid()) > 0
    assert trees.start_ticks(1 << 22) == 0
