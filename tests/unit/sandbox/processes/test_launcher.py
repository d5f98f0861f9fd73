"""The launcher: a process tree never outlives its owner."""

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
from forge_tools.sandbox.processes.launcher import Status, packed
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


class Launched:
    """A launcher that we own: its status lines are read, closing `lifeline` means that we died."""

    def __init__(self, *command: str, grace: float = 0.3, options: tuple[str, ...] = ()) -> None:
        parent, self.lifeline = os.pipe()
        self._status, status = os.pipe()
        fixed = ("--parent-fd", str(parent), "--status-fd", str(status), "--grace", str(grace))
        self.process = subprocess.Popen(
            [sys.executable, SCRIPT, *fixed, *options, "--", *command],
            pass_fds=(parent, status),
            stdout=subprocess.PIPE,
        )
        os.close(parent)
        os.close(status)

    def die(self) -> None:
        os.close(self.lifeline)
        self.lifeline = -1

    def end(self) -> tuple[int, dict[str, int]]:
        code = self.process.wait(60)
        with os.fdopen(self._status) as lines:
            facts = {kind: int(number) for kind, number in (line.split() for line in lines)}
        return code, facts

    def close(self) -> None:
        if self.lifeline >= 0:
            os.close(self.lifeline)
        self.process.wait(60)
        self.process.stdout.close()


@pytest.fixture
def launch() -> Iterator[Callable[..., Launched]]:
    started: list[Launched] = []

    def start(*command: str, **options: object) -> Launched:
        started.append(Launched(*command, **options))
        return started[-1]

    yield start
    for launched in started:
        launched.close()


def bash(script: str) -> tuple[str, ...]:
    return ("bash", "-c", script)


@pytest.mark.parametrize(
    ("script", "code", "line"),
    [("exit 0", 0, ("exit", 0)), ("exit 7", 7, ("exit", 7)), ("kill -9 $$", 137, ("signal", 9))],
)
def test_it_exits_with_the_status_of_the_command(
    launch: Callable[..., Launched], script: str, code: int, line: tuple[str, int]
) -> None:
    got, facts = launch(*bash(script)).end()
    assert got == code
    assert line in facts.items()
    assert facts["gone"] == 0


@pytest.mark.parametrize(("command", "code"), [("/no/such/program", 127), ("/etc", 126)])
def test_a_command_that_cannot_start_is_told_by_its_errno(
    launch: Callable[..., Launched], command: str, code: int
) -> None:
    got, facts = launch(command).end()
    assert got == code
    assert list(facts) == ["starting", "error"]


def test_a_status_says_what_a_shell_would() -> None:
    assert [Status("exit", 3).exit_code, Status("signal", 15).exit_code] == [3, 143]
    assert [Status("error", 2).exit_code, Status("error", 13).exit_code] == [127, 126]


def test_term_is_forwarded_to_the_command_which_may_end_in_its_own_way(
    launch: Callable[..., Launched], sleepers: Callable[[], list[int]], marker: str
) -> None:
    launched = launch(*bash(f"trap 'exit 3' TERM; sleep {marker} & wait"), grace=10)
    wait_until(sleepers)
    launched.process.send_signal(signal.SIGTERM)
    assert launched.end()[0] == 3


def test_a_command_that_ignores_term_is_killed_with_its_tree_when_the_grace_is_over(
    launch: Callable[..., Launched], sleepers: Callable[[], list[int]], marker: str
) -> None:
    launched = launch(*bash(f"trap '' TERM; setsid sleep {marker} & while :; do sleep 0.05; done"))
    wait_until(sleepers)
    launched.process.send_signal(signal.SIGTERM)
    assert launched.end()[0] == 137


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
def test_when_the_owner_dies_the_whole_tree_ends(
    launch: Callable[..., Launched],
    sleepers: Callable[[], list[int]],
    marker: str,
    script: str,
) -> None:
    launched = launch(*bash(script.format(marker)))
    wait_until(sleepers)
    launched.die()
    launched.end()
    assert not sleepers()


def test_when_the_owner_is_killed_the_whole_tree_ends(sleepers: Callable[[], list[int]], marker: str) -> None:
    owner = """
import os, subprocess, sys, time
lifeline, mine = os.pipe()
launcher = [sys.executable, "-I", "-S", sys.argv[1], "--parent-fd", str(lifeline), "--grace", "0.3", "--"]
subprocess.Popen([*launcher, *sys.argv[2:]], pass_fds=(lifeline,), start_new_session=True)
time.sleep(60)
"""
    script = f"setsid sleep {marker} & sleep {marker}"
    process = subprocess.Popen([sys.executable, "-c", owner, launcher.__file__, *bash(script)])
    wait_until(lambda: len(sleepers()) == 2)
    process.kill()
    process.wait()
    wait_until(lambda: not sleepers())


def test_a_killed_launcher_takes_the_command_with_it(
    launch: Callable[..., Launched], sleepers: Callable[[], list[int]], marker: str
) -> None:
    launched = launch("sleep", marker)
    wait_until(sleepers)
    launched.process.kill()
    wait_until(lambda: not sleepers())


def test_what_the_command_leaves_behind_is_counted_and_ended(
    launch: Callable[..., Launched], sleepers: Callable[[], list[int]], marker: str
) -> None:
    script = f"sleep {marker} & setsid sleep {marker} & (setsid sleep {marker} &) & exit 4"
    code, facts = launch(*bash(script), options=("--kill-leftovers",)).end()
    assert (code, facts["leftovers"]) == (4, 3)
    assert not sleepers()


def test_without_being_told_it_leaves_a_daemon_alone(
    launch: Callable[..., Launched], sleepers: Callable[[], list[int]], marker: str
) -> None:
    code, facts = launch(*bash(f"setsid sleep {marker} >/dev/null & exit 0")).end()
    assert (code, "leftovers" in facts) == (0, False)
    wait_until(sleepers)
    for pid in sleepers():
        os.kill(pid, signal.SIGKILL)


def test_the_command_gets_only_the_handles_it_is_given(launch: Callable[..., Launched], tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    lock = os.open(tmp_path / "lock", os.O_RDONLY)
    os.set_inheritable(lock, True)
    launched = launch(*bash("ls /proc/$$/fd; :"))
    handles = launched.process.stdout.read().split()
    os.close(lock)
    assert handles == [b"0", b"1", b"2"]


def test_a_passed_handle_is_the_commands_alone(sleepers: Callable[[], list[int]], marker: str) -> None:
    read, write = os.pipe()
    parent, lifeline = os.pipe()
    fixed = ["--parent-fd", str(parent), "--grace", "1", "--pass-fd", str(write)]
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", SCRIPT, *fixed, "--", "bash", "-c", f"echo x >&{write}"], pass_fds=(parent, write)
    )
    os.close(write)
    os.close(parent)
    with os.fdopen(read) as stream:
        assert stream.read() == "x\n"  # end of file: the launcher holds no copy
    assert process.wait() == 0
    os.close(lifeline)


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

    def ask(self, *command: str, grace: float = 0.3, raw: bytes | None = None) -> socket.socket:
        ours, theirs = socket.socketpair()
        folder, null = os.open("/", os.O_RDONLY), os.open(os.devnull, os.O_RDWR)
        socket.send_fds(self.socket, [b"."], [theirs.fileno(), folder, null, null, null])
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
