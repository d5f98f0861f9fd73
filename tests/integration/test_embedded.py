"""The embedded stack with a real Valkey and a real database; only the workers are stand-ins."""

import contextlib
import fcntl
import json
import logging
import os
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import mkdtemp

import psutil
import pytest

from forge_tools.config import Settings
from forge_tools.embedded import home as home_module
from forge_tools.embedded import supervision, valkey
from forge_tools.embedded.home import stack_holder
from forge_tools.embedded.stack import EmbeddedStack, forget
from forge_tools.errors import DatabaseCorruptError, StackError
from forge_tools.project import broker_socket
from forge_tools.storage import migrate
from tests.migrated import migrated
from tests.server_process import children_with
from tests.services import ValkeyServer, client
from tests.stack_driver import stand_ins
from tests.waiting import is_alive, wait_until
from tests.warm import WarmInterpreter, shared

ROOT = Path(__file__).parents[2]
WHOLE = 12
"""How many processes a stack has: four, each under its launcher, what forks those of workers and of Valkey, each with one kept for the next."""


@shared
def warm_driver() -> WarmInterpreter:
    return WarmInterpreter("tests.stack_driver", "forge_tools.storage.migrate", "alembic.command")


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a short path, so that the socket lies in it."""
    return tmp_path_factory.mktemp("s") / "home"


@pytest.fixture
def no_leftovers(home: Path) -> Iterator[None]:
    """Every test here ends with no process that mentions its folder."""
    yield
    wait_until(lambda: not processes_of(home), 60)


pytestmark = pytest.mark.usefixtures("no_leftovers")


class Up:
    """A stack in a process of its own, as `forge-tools up` is."""

    def __init__(self, home: Path, mode: str = "steady", drain: float = 1.0, ignored: str = "") -> None:
        folder = Path(mkdtemp(dir=home.parent))
        self._said, self._errors = folder / "said", folder / "errors"
        first = f"import signal; signal.signal(signal.{ignored}, signal.SIG_IGN); " if ignored else ""
        program = f"{first}from tests.stack_driver import main; main({mode!r}, {str(home)!r}, {drain!r})"
        with self._said.open("w") as said, self._errors.open("w") as errors:
            self.process = warm_driver().start(["-c", program], cwd=ROOT, env=os.environ, stdout=said, stderr=errors)

    def ready(self) -> dict[str, int]:
        """Wait until it is up; return the pids of its processes by name."""
        wait_until(lambda: self.said().endswith("\n") or self.process.poll() is not None)
        assert self.said(), self.end()
        return dict(json.loads(self.said())["pids"])

    def said(self) -> str:
        return self._said.read_text()

    def tree(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def end(self) -> tuple[int, str]:
        return self.process.wait(60), self._errors.read_text()


@pytest.fixture
def up(home: Path) -> Iterator[Callable[..., Up]]:
    started: list[Up] = []

    def start(mode: str = "steady", drain: float = 1.0, ignored: str = "") -> Up:
        started.append(Up(home, mode, drain, ignored))
        return started[-1]

    yield start
    for stack in started:
        stack.process.kill()
        stack.process.wait()


def make(home: Path, mode: str = "steady", **settings: object) -> EmbeddedStack:
    return EmbeddedStack(Settings.load(home=home, drain=1.0, **settings), program=stand_ins(mode), concurrency=1)


def processes_of(home: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if str(home) in " ".join([*process.cmdline(), process.environ().get("FORGE_HOME", "")]):
                found.append(process)
        except psutil.Error:
            continue
    return found


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that still run; a zombie has ended, and only waits for whoever adopted it."""
    return [process for process in processes if process.is_running() and is_alive(process.pid)]


def test_everything_runs_and_then_nothing_does(home: Path) -> None:
    with make(home) as stack:
        names = [process.name for process in stack.status().processes]
        assert names == ["valkey", "async", "process", "background"]
        assert all(psutil.pid_exists(process.pid or 0) for process in stack.status().processes)
        assert valkey.answers(broker_socket(home))
        assert migrate.current(f"sqlite:///{home / 'forge.db'}") == migrate.head()
        assert stack_holder(home).pid == os.getpid()
        running = processes_of(home)
    assert running
    assert not alive(running)
    assert stack_holder(home) is None


def test_only_this_user_can_reach_the_broker(home: Path) -> None:
    with make(home) as stack:
        server = psutil.Process(stack.status().processes[0].pid)
        assert stat.S_IMODE(home.stat().st_mode) == 0o700
        assert stat.S_IMODE((home / "valkey.sock").stat().st_mode) == 0o700
        assert not server.net_connections("inet")


def test_a_worker_gets_exactly_our_settings(home: Path) -> None:
    with make(home, routes={"Bash": "slow"}) as stack:
        worker = psutil.Process(stack.workers[0].pid)
        wait_until(lambda: "FORGE_HOME" in worker.environ(), 30, "it never became the worker")
        environment = worker.environ()
    variables = {name: value for name, value in environment.items() if name.startswith("FORGE_")}
    assert variables["FORGE_HOME"] == str(home)
    assert json.loads(variables["FORGE_ROUTES"]) == {"Bash": "slow"}


def test_what_the_broker_holds_survives_a_restart(home: Path) -> None:
    with make(home) as stack, client(stack.status().broker) as broker:
        broker.set("kept", "yes")
    with make(home) as stack, client(stack.status().broker) as broker:
        assert broker.get("kept") == b"yes"


def test_a_second_stack_says_who_holds_the_folder(home: Path) -> None:
    with make(home), pytest.raises(StackError) as refused:
        make(home).start()
    assert f"pid {os.getpid()} on {socket.gethostname()}, since 20" in refused.value.message
    assert "set FORGE_HOME" in refused.value.message


def test_of_two_stacks_started_at_once_one_runs(home: Path, up: Callable[..., Up]) -> None:
    stacks = [up(), up()]
    wait_until(lambda: any(stack.process.poll() is not None for stack in stacks))
    (loser,) = (stack for stack in stacks if stack.process.poll() is not None)
    (winner,) = (stack for stack in stacks if stack is not loser)
    assert loser.end()[0] != 0
    assert len(winner.ready()) == 4


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_everything(up: Callable[..., Up], number: signal.Signals) -> None:
    stack = up()
    stack.ready()
    wait_until(lambda: len(stack.tree()) == WHOLE)
    tree = stack.tree()
    begun = time.monotonic()
    stack.process.send_signal(number)
    assert stack.end() == (0, "")
    assert time.monotonic() - begun < 30
    assert not alive(tree)


def test_a_signal_that_the_starter_ignores_stays_ignored(up: Callable[..., Up]) -> None:
    stack = up(ignored="SIGHUP")  # as under nohup
    stack.ready()
    stack.process.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        stack.process.wait(0.3)
    stack.process.terminate()
    assert stack.end() == (0, "")


def test_a_signal_during_the_start_stops_what_has_started(home: Path, up: Callable[..., Up]) -> None:
    stack = up()
    wait_until((home / "valkey" / "lock").exists)
    stack.process.send_signal(signal.SIGTERM)
    assert stack.end()[0] == 0
    assert not processes_of(home)


def test_workers_that_ignore_the_signal_are_killed_with_their_children(up: Callable[..., Up]) -> None:
    stack = up("stubborn", drain=0.5)
    stack.ready()
    wait_until(lambda: len(stack.tree()) == WHOLE + 3)  # three stand-ins with a child each
    tree = stack.tree()
    stack.process.terminate()
    assert stack.end() == (0, "")
    assert not alive(tree)


def test_a_second_signal_hurries(home: Path, up: Callable[..., Up]) -> None:
    stack = up("stubborn", drain=30)
    stack.ready()
    wait_until(lambda: len(stack.tree()) == WHOLE + 3)
    tree = stack.tree()
    stack.process.send_signal(signal.SIGINT)
    wait_until(lambda: "heard" in (home / "logs" / "async.log").read_text())
    stack.process.send_signal(signal.SIGINT)
    assert stack.end() == (0, "")
    assert not alive(tree)


@pytest.mark.parametrize("mode", ["steady", "stubborn"])
def test_after_kill_9_of_the_stack_alone_its_processes_end_and_the_next_one_works(
    home: Path, up: Callable[..., Up], mode: str
) -> None:
    first = up(mode)
    first.ready()
    tree = first.tree()
    first.process.kill()
    assert len(up().ready()) == 4
    wait_until(lambda: not alive(tree))


def test_after_kill_9_of_everything_the_next_stack_works(up: Callable[..., Up]) -> None:
    first = up()
    first.ready()
    for process in [psutil.Process(first.process.pid), *first.tree()]:
        with contextlib.suppress(psutil.NoSuchProcess):  # the first to go takes others along
            process.kill()
    assert len(up().ready()) == 4


def test_an_old_server_without_its_stack_is_asked_to_end(home: Path) -> None:
    with leftover(home) as old:
        with make(home) as stack:
            assert stack.status().processes[0].pid != old.pid
        assert old.wait(60) == 0


def test_an_old_server_that_does_not_end_is_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(home_module, "LEFTOVER_SECONDS", 0.3)
    with leftover(home) as old:
        old.send_signal(signal.SIGSTOP)
        with pytest.raises(StackError, match=rf"Valkey \(pid {old.pid}\) of an earlier stack still runs"):
            make(home).start()
        old.kill()


def leftover(home: Path) -> subprocess.Popen[bytes]:
    """A Valkey that holds the folder though its stack is gone."""
    (home / "valkey").mkdir(parents=True)
    home.chmod(0o700)
    lock = os.open(home / "valkey" / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    argv = valkey.server_argv(valkey.find_server(), home / "valkey", broker_socket(home))
    server = subprocess.Popen(argv, stdin=lock, stdout=subprocess.DEVNULL)
    os.close(lock)
    wait_until(lambda: valkey.answers(broker_socket(home)))
    return server


def test_a_worker_that_dies_is_started_again_and_the_log_says_so(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    with make(home) as stack, caplog.at_level(logging.WARNING, "forge_tools.embedded"):
        victim = stack.workers[1].pid
        os.kill(victim or 0, signal.SIGKILL)
        wait_until(lambda: stack.workers[1].restarts == 1 and stack.workers[1].pid)
        assert stack.workers[1].pid != victim
        assert stack.workers[1].last_exit == "killed by SIGKILL"
    # Its count keeps it from being taken for a repetition: what a terminal shows, it shows once.
    assert "process ended unexpectedly (killed by SIGKILL) and is started again in 0.5 s (start 2)" in caplog.text


def test_a_worker_that_dies_is_started_again_where_no_more_threads_can_be(home: Path) -> None:
    with make(home) as stack:
        before = threading.stack_size(1 << 45)  # no machine has room for that
        try:
            os.kill(stack.workers[1].pid or 0, signal.SIGKILL)
            wait_until(lambda: stack.workers[1].restarts == 1 and stack.workers[1].pid)
        finally:
            threading.stack_size(before)


def test_a_worker_that_cannot_start_is_tried_at_growing_intervals(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    with make(home, "crashing") as stack, caplog.at_level(logging.WARNING, "forge_tools.embedded"):
        wait_until(lambda: stack.workers[0].restarts >= 2)
        assert stack.workers[0].last_exit == "exit code 3"
    pauses = [record.__dict__["restart_in"] for record in caplog.records if record.__dict__.get("service") == "async"]
    assert pauses[:2] == [supervision.FIRST_DELAY, 2 * supervision.FIRST_DELAY]


def test_a_worker_that_refuses_its_settings_says_why_where_its_end_is_reported(
    home: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder := tmp_path / "open").mkdir(mode=0o755)
    settings = Settings.load(home=home, drain=1.0, artifact_dir=folder)
    with caplog.at_level(logging.WARNING, "forge_tools.embedded"), EmbeddedStack(settings, concurrency=1) as stack:
        wait_until(lambda: stack.workers[0].restarts >= 1)
    assert f"async ended unexpectedly (exit code 78: FORGE_ARTIFACT_DIR: {folder} cannot be used" in caplog.text


def test_what_forks_the_workers_may_die_and_the_next_start_of_one_starts_it_again(home: Path) -> None:
    with make(home) as stack:
        pids = {worker.name: worker.pid for worker in stack.workers}
        [forks] = children_with("tests.stand_in_forks")
        forks.kill()
        forks.wait(30)
        assert {worker.name: worker.pid for worker in stack.workers} == pids, "the workers go on"

        os.kill(pids["process"] or 0, signal.SIGKILL)
        wait_until(lambda: stack.workers[1].restarts == 1 and stack.workers[1].pid)
        assert stack.workers[1].pid != pids["process"]
        assert stack.workers[0].pid == pids["async"]


def test_what_forks_the_workers_and_cannot_start_is_tried_again_and_the_log_names_its_own(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings = Settings.load(home=home, drain=1.0)
    with (
        caplog.at_level(logging.WARNING, "forge_tools.embedded"),
        EmbeddedStack(settings, program=["-c", "import sys; sys.exit('no room for me')"], concurrency=1) as stack,
    ):
        wait_until(lambda: all(worker.restarts >= 1 for worker in stack.workers))
        log = home / "logs" / "workers.log"
        assert {worker.last_exit for worker in stack.workers} == {
            f"the program that forks workers ended; its log is {log}"
        }
        assert "no room for me" in log.read_text()
    assert f"its log is {log}) and is started again in 0.5 s" in caplog.text


def test_a_broker_that_dies_is_started_again_with_its_data(home: Path) -> None:
    with make(home) as stack, client(stack.status().broker) as broker:
        broker.set("kept", "yes")
        os.kill(stack.status().processes[0].pid or 0, signal.SIGKILL)
        wait_until(lambda: stack.status().processes[0].restarts == 1 and valkey.answers(broker_socket(home)))
        assert broker.get("kept") == b"yes"


def test_broker_data_that_cannot_be_read_is_removed(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    with make(home):
        pass
    next((home / "valkey" / "appendonlydir").glob("*.manifest")).write_text("nonsense\n")
    with make(home):
        assert valkey.answers(broker_socket(home))
    assert "Valkey's data were removed" in caplog.text


def test_a_server_that_cannot_start_shows_its_last_words(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    argv = [sys.executable, "-c", "import sys; sys.exit('no room for me')"]
    monkeypatch.setattr(valkey, "server_argv", lambda *_: argv)
    with pytest.raises(StackError, match=r"Valkey did not start \(exit code 1\).*\n(.*\n)*no room for me"):
        make(home).start()
    assert stack_holder(home) is None


def test_a_corrupt_database_stops_what_had_started(home: Path) -> None:
    home.mkdir(mode=0o700)
    (home / "forge.db").write_bytes(b"this is no database, and it never was one\n" * 100)
    with pytest.raises(DatabaseCorruptError):
        make(home).start()
    assert not processes_of(home)
    assert stack_holder(home) is None


def test_a_database_that_newer_code_migrated_is_used_where_this_code_can(home: Path) -> None:
    home.mkdir(mode=0o700)
    url = migrated(f"sqlite:///{home / 'forge.db'}")
    newer = f"9001_from_{migrate.head()}"
    with contextlib.closing(sqlite3.connect(home / "forge.db", isolation_level=None)) as connection:
        connection.execute("UPDATE alembic_version SET version_num = ?", (newer,))
    with make(home) as stack:
        assert all(process.pid for process in stack.workers)
    assert migrate.current(url) == newer


def test_a_copy_of_a_folder_that_is_a_moment_late_is_told_and_gets_a_home_of_its_own(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(home))
    folders = [home.parent / "first", home.parent / "copy"]
    for folder in folders:
        (folder / "below").mkdir(parents=True)
        (folder / ".forge").write_text("01a20bad-268f-7eb7-87c9-0078b297fd12\n")
    monkeypatch.chdir(folders[0] / "below")
    both = [Settings.load(drain=1.0), Settings.load(workspace=folders[1] / "below", drain=1.0)]
    first, late = (EmbeddedStack(settings, program=stand_ins("steady"), concurrency=1) for settings in both)
    with first:
        assert first.settings.workspace == folders[0]
        with pytest.raises(StackError, match="A stack already runs in"):
            forget(both[0])
        with late:
            assert late.settings.workspace == folders[1] / "below", "what was asked for is not widened"
            assert first.settings.home == both[0].home == both[1].home != late.settings.home
            assert f"{folders[1]} is a copy of {folders[0]}, which keeps the stack" in caplog.text
    assert [forget(settings) for settings in both] == [
        (stack.settings.home, folder / ".forge") for stack, folder in zip((first, late), folders, strict=True)
    ]
    assert [*(home / "forge-tools").iterdir()] == []


def test_a_given_broker_replaces_the_embedded_one(home: Path, valkey: ValkeyServer) -> None:
    with make(home, broker_url=valkey.url) as stack:
        assert [process.name for process in stack.status().processes] == ["async", "process", "background"]
        assert stack.status().broker == valkey.url
        assert not (home / "valkey.sock").exists()


def test_a_long_path_moves_the_socket_to_a_private_folder(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = home.parent / "run"
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    deep = tmp_path / ("deep" * 30)
    with make(deep):
        assert broker_socket(deep).parent == runtime
        assert stat.S_IMODE(runtime.stat().st_mode) == 0o700
        assert valkey.answers(broker_socket(deep))
    assert not broker_socket(deep).exists()


def test_a_link_in_place_of_the_private_folder_is_refused(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home.parent / "elsewhere").mkdir(mode=0o700)
    (home.parent / "run").symlink_to(home.parent / "elsewhere")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(home.parent / "run"))
    with pytest.raises(StackError, match="must be a folder that"):
        make(tmp_path / ("deep" * 30)).start()
