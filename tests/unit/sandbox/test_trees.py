"""Process trees: who belongs to one, and who does not."""

import os
import signal
import subprocess
from collections.abc import Callable

from forge_tools.sandbox import trees


def test_the_process_table_of_ps_agrees_with_proc() -> None:
    ours = next(p for p in trees._process_table() if p.pid == os.getpid())
    assert ours.parent == os.getppid()
    assert ours in set(trees._process_table_of_ps())


def test_a_shell_that_outlives_its_call_belongs_to_nobody_but_its_own_supervisor(
    marker: str, sleepers: Callable[[], list[int]], until: Callable[..., bool]
) -> None:
    script = f"sleep {marker} & FORGE_SHELL=sh_a bash -c 'sleep {marker} & env -i sleep {marker} & wait' & wait"
    with subprocess.Popen(["bash", "-c", script], start_new_session=True) as root:
        assert until(lambda: len(sleepers()) == 3)
        shell = next(p for p in trees.descendants(root.pid, with_shells=True) if trees.shell_of(p.pid))
        assert len(trees.descendants(root.pid)) == 1
        assert len(trees.descendants(root.pid, with_shells=True)) == 4
        assert len(trees.descendants(shell.pid)) == 2
        os.killpg(root.pid, signal.SIGKILL)


def test_a_process_has_one_moment_at_which_it_started() -> None:
    assert trees.start_ticks(os.getpid()) == trees.start_ticks(os.getpid()) > 0
    assert trees.start_ticks(1 << 22) == 0
