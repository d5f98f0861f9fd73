"""The launcher: a process tree never outlives its owner."""

import errno
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from forge_tools.sandbox.processes import launcher
from forge_tools.sandbox.processes.launcher import packed
from tests.waiting import wait_until

SCRIPT = launcher.__file__


@pytest.mark.parametrize("module", ["processes.launcher", "shells.supervisor"])
def test_what_programs_of_their_own_load_is_little(module: str) -> None:
    root = SCRIPT.rpartition("/forge_tools/")[0]
    script = f"import sys; sys.path.append({root!r}); import forge_tools.sandbox.{module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, check=True)
    assert not set(done.stdout.split()) & {
        "typing",
        "pathlib",
        "dataclasses",
        "inspect",
        "asyncio",
        "logging",
        "tempfile",
    }


def bash(script: str) -> tuple[str, ...]:
    return ("bash", "-c", script)


def children_of(pid: int) -> set[int]:
    with suppress(OSError):  # it is over
        return set(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    return set()


class Requests:
    """Our end of a serving launcher."""

    def __init__(self, *flags: str) -> None:
        self.socket, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen([sys.executable, *flags, SCRIPT, "--serve", "0"], stdin=theirs)

    def ask(
        self, *command: str, grace: float = 0.3, raw: bytes | None = None, output: int | None = None
    ) -> socket.socket:
        ours, theirs = socket.socketpair()
        folder, null = os.open("/", os.O_RDONLY), os.open(os.devnull, os.O_RDWR)
        streams = [null, null if output is None else output, null]
        socket.send_fds(self.socket, [b"."], [theirs.fileno(), folder, *streams])
        request = packed([str(grace)], ["18"], command, [], [f"PATH={os.environ['PATH']}"])
        ours.sendall(request if raw is None else raw)
        for handle in (folder, null):
            os.close(handle)
        theirs.close()
        ours.settimeout(60)
        return ours

    def supervisors(self) -> set[int]:
        return children_of(self.process.pid)

    def close(self) -> None:
        self.socket.close()
        self.process.wait(60)


@pytest.fixture(params=[(), ("-I", "-S")], ids=["measured", "isolated"])
def requests(request: pytest.FixtureRequest) -> Iterator[Requests]:
    serving = Requests(*request.param)
    yield serving
    serving.close()


def answer(control: socket.socket) -> dict[str, int]:
    with control, control.makefile() as lines:
        return {kind: int(number) for kind, number in (line.split() for line in lines)}


def idle_supervisor(requests: Requests) -> int:
    """The one that waits for the next request: it is forked when another begins to serve one, and stays when that ends."""
    before = requests.supervisors()

    def idle() -> set[int]:
        found = requests.supervisors()
        serving = {one for one in found if children_of(one)}
        return found - before - serving if serving else set()

    with requests.ask(*bash("sleep 5")):
        (pid,) = wait_until(idle)
    wait_until(lambda: requests.supervisors() == {pid})
    return pid


@pytest.mark.parametrize(
    ("script", "line"), [("exit 0", ("exit", 0)), ("exit 7", ("exit", 7)), ("kill -9 $$", ("signal", 9))]
)
def test_it_tells_how_the_command_ended(requests: Requests, script: str, line: tuple[str, int]) -> None:
    facts = answer(requests.ask(*bash(script)))
    assert line in facts.items()
    assert facts["gone"] == 0


@pytest.mark.parametrize(("command", "number"), [("/no/such/program", errno.ENOENT), ("/etc", errno.EACCES)])
def test_a_command_that_cannot_start_is_told_by_its_errno(requests: Requests, command: str, number: int) -> None:
    facts = answer(requests.ask(command))
    assert list(facts) == ["starting", "error"]
    assert facts["error"] == number


def test_term_is_forwarded_to_the_command_which_may_end_in_its_own_way(
    requests: Requests, sleepers: Callable[[], list[int]], marker: str
) -> None:
    control = requests.ask(*bash(f"trap 'exit 3' TERM; sleep {marker} & wait"), grace=10)
    wait_until(sleepers)
    control.send(bytes([signal.SIGTERM]))
    assert answer(control)["exit"] == 3


def test_a_command_that_ignores_term_is_killed_with_its_tree_when_the_grace_is_over(
    requests: Requests, sleepers: Callable[[], list[int]], marker: str
) -> None:
    control = requests.ask(*bash(f"trap '' TERM; setsid sleep {marker} & while :; do sleep 0.05; done"))
    wait_until(sleepers)
    control.send(bytes([signal.SIGTERM]))
    assert answer(control)["signal"] == signal.SIGKILL


@pytest.mark.parametrize(
    "script",
    [
        "sleep {0}",
        "setsid sleep {0} & wait",
        "(setsid bash -c 'sleep {0} & sleep {0}' &) ; sleep {0}",
        "trap '' TERM; setsid sleep {0} & while :; do sleep 0.05; done",
        "sleep {0} & until grep -q sleep /proc/$!/comm; do sleep 0.01; done; kill -STOP $!; kill -STOP $$",
    ],
)
def test_when_the_owner_closes_its_end_the_whole_tree_ends(
    requests: Requests, sleepers: Callable[[], list[int]], marker: str, script: str
) -> None:
    control = requests.ask(*bash(script.format(marker)))
    wait_until(sleepers)
    control.close()
    wait_until(lambda: not sleepers())


def test_when_the_owner_is_killed_the_whole_tree_ends(sleepers: Callable[[], list[int]], marker: str) -> None:
    owner = """
import os, sys, time
from forge_tools.sandbox.processes.spawner import SPAWNER
kept = SPAWNER.start(sys.argv[1:], os.environ, folder=os.open("/", os.O_RDONLY), streams=(0, 1, 2), grace=0.3)
time.sleep(60)
"""
    script = f"setsid sleep {marker} & sleep {marker}"
    process = subprocess.Popen([sys.executable, "-c", owner, *bash(script)])
    wait_until(lambda: len(sleepers()) == 2)
    process.kill()
    process.wait()
    wait_until(lambda: not sleepers())


def test_what_the_command_leaves_behind_is_counted_and_ended(
    requests: Requests, sleepers: Callable[[], list[int]], marker: str
) -> None:
    script = f"sleep {marker} & setsid sleep {marker} & (setsid sleep {marker} &) & exit 4"
    facts = answer(requests.ask(*bash(script)))
    assert (facts["exit"], facts["leftovers"]) == (4, 3)
    assert not sleepers()


def test_the_command_gets_only_the_handles_it_is_given(requests: Requests) -> None:
    read, write = os.pipe()
    control = requests.ask(*bash("ls /proc/$$/fd; :"), output=write)
    os.close(write)
    with control, os.fdopen(read) as stream:
        assert stream.read().split() == ["0", "1", "2"]


def test_serving_it_forks_a_supervisor_for_each_request(requests: Requests) -> None:
    controls = [requests.ask(*bash(f"exit {number}")) for number in range(5)]
    assert [answer(control)["exit"] for control in controls] == [0, 1, 2, 3, 4]


def test_serving_it_looks_for_programs_in_the_path_of_the_request(requests: Requests) -> None:
    assert answer(requests.ask("no-such-program"))["error"] == 2
    assert answer(requests.ask("true"))["exit"] == 0


def test_a_request_that_breaks_off_starts_nothing(requests: Requests) -> None:
    control = requests.ask("true", raw=packed(["0.3"], ["18"], ["true"], [], [])[:-1])
    control.shutdown(socket.SHUT_WR)
    assert answer(control) == {}
    assert answer(requests.ask("true"))["exit"] == 0


def test_a_command_that_kills_its_supervisor_is_ended_by_the_one_above(
    requests: Requests, sleepers: Callable[[], list[int]], marker: str
) -> None:
    control = requests.ask(*bash(f"setsid sleep {marker} & (sleep {marker} &) ; kill -9 $PPID; sleep {marker}"))
    assert "exit" not in answer(control)
    wait_until(lambda: not sleepers())


def test_a_supervisor_that_was_killed_while_it_had_nothing_to_do_is_replaced(requests: Requests) -> None:
    for _ in range(3):
        idle = idle_supervisor(requests)
        os.kill(idle, signal.SIGKILL)
        wait_until(lambda idle=idle: idle not in requests.supervisors())
        assert answer(requests.ask(*bash("exit 3")))["exit"] == 3


def test_a_signal_that_came_before_the_command_is_not_passed_on(requests: Requests) -> None:
    os.kill(idle_supervisor(requests), signal.SIGTERM)
    assert answer(requests.ask(*bash("sleep 0.1; exit 3")))["exit"] == 3


def test_many_requests_at_once_have_a_supervisor_each(requests: Requests) -> None:
    controls = [requests.ask(*bash("sleep 2; exit 7")) for _ in range(20)]
    started = time.monotonic()
    assert [answer(control)["exit"] for control in controls] == [7] * 20
    assert time.monotonic() - started < 30


def test_when_its_owner_goes_every_command_ends_and_then_it_does(
    sleepers: Callable[[], list[int]], marker: str
) -> None:
    serving = Requests()
    controls = [serving.ask(*bash(f"trap '' TERM; setsid sleep {marker} & sleep {marker}; :")) for _ in range(3)]
    wait_until(lambda: len(sleepers()) == 6)
    serving.socket.close()
    for control in controls:
        control.close()
    started = time.monotonic()
    assert serving.process.wait(30) == 0
    assert time.monotonic() - started < 20
    assert not sleepers()
