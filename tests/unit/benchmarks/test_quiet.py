"""What counts as others' load: every process except this one and those that it started."""

import os
import subprocess
import sys
import time

from benchmarks.processes import cpu_seconds
from benchmarks.quiet import Watch

BUSY = "import time; end = time.process_time() + 0.5\nwhile time.process_time() < end: pass"


def test_the_time_of_a_child_counts_as_ours_when_it_has_ended_too() -> None:
    before = cpu_seconds([os.getpid()])

    subprocess.run([sys.executable, "-c", BUSY], check=True)

    assert cpu_seconds([os.getpid()]) - before >= 0.45


def test_others_use_no_more_than_the_whole_machine_and_never_less_than_nothing() -> None:
    watch = Watch()

    time.sleep(0.05)

    assert 0.0 <= watch.others() <= 1.0
    assert watch.seconds() >= 0.05


def test_a_process_that_is_gone_costs_nothing() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()

    assert cpu_seconds([ended.pid]) == 0.0
