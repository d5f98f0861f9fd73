"""Starts the commands of tools, each behind the walls around it, by a program kept ready that forks for every request."""

import atexit
import hashlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forge_tools.sandbox.paths.confinement import Root, true_path
from forge_tools.sandbox.processes.environment import child_environment
from forge_tools.sandbox.processes.launcher import packed
from forge_tools.sandbox.processes.trees import EXECUTION, INSTANCE, SHELL
from forge_tools.sandbox.spools import new_scratch
from forge_tools.sandbox.walls.cgroups import passed_on
from forge_tools.sandbox.walls.commands import NAMESPACE
from forge_tools.sandbox.walls.namespaces import HOST
from forge_tools.sandbox.walls.profile import behind_landlock, of_machine, of_workspace
from forge_tools.sandbox.web.egress import Egress, variables

LAUNCHER = str(Path(__file__).with_name("launcher.py"))

UMASK = 0o022
_TRIES = 4
PATIENCE_SECONDS = 5.0
"""How long the program has to take a request, or to end."""


class Forker:
    """Keeps a program ready that takes requests and forks for each. Safe from many threads; a forked child makes its own.

    The program is Python with `options` and `arguments`, started when it is needed; its standard input is the socket on which each
    request comes as one byte with handles, the first of them a control socket on which the rest follows. At the end of file it ends.
    """

    options: Sequence[str] = ("-I", "-S")
    log = os.devnull

    def __init__(self, arguments: Sequence[str]) -> None:
        self._arguments = arguments
        self._lock = threading.Lock()
        self._requests: socket.socket | None = None
        self.pid = 0
        atexit.register(self.close)
        os.register_at_fork(after_in_child=self._forget)

    def request(self, handles: Sequence[int], *lists: Sequence[str]) -> socket.socket:
        """Send a request and return our end of its control socket; OSError if the program does not start, or take it."""
        for _ in range(_TRIES - 1):
            # Somebody killed it meanwhile. A request that is cut off has no effect, so it may be sent again.
            with suppress(BrokenPipeError, ConnectionResetError):
                return self._request(handles, lists)
        return self._request(handles, lists)

    def prepare(self) -> None:
        """Start the program before it is needed."""
        with self._lock:
            self._requests = self._requests or self._launch()

    def environment(self) -> dict[str, str]:
        """Return that of the program, which outlives the body that needs it first."""
        environment = child_environment()
        environment.pop(EXECUTION, None)
        return environment

    def close(self) -> None:
        """End the program, and with it the commands of a `Spawner`."""
        with self._lock:
            self._stop()

    def _request(self, handles: Sequence[int], lists: Sequence[Sequence[str]]) -> socket.socket:
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._ask([theirs.fileno(), *handles])
            ours.settimeout(PATIENCE_SECONDS)
            ours.sendall(packed(*lists))
        except BaseException:
            ours.close()
            raise
        return ours

    def _ask(self, handles: list[int]) -> None:
        with self._lock:
            requests = self._requests or Context().run(self._launch)  # it is not the body's that needs it first
            try:
                socket.send_fds(requests, [b"."], handles)
            except (BrokenPipeError, ConnectionResetError):
                self._stop()  # the next request gets a new one
                raise

    def _launch(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        environment = {**self.environment(), **passed_on()}
        marks = [f"{name}={environment[name]}" for name in (INSTANCE, SHELL) if name in environment]
        with theirs:
            self.pid = os.posix_spawn(
                sys.executable,
                [sys.executable, *self.options, *self._arguments, *marks],  # its environment is closed to others
                environment,
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, theirs.fileno(), 0),
                    (os.POSIX_SPAWN_OPEN, 1, self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600),
                    (os.POSIX_SPAWN_DUP2, 1, 2),
                ],
                setsid=True,  # neither Ctrl-C nor the end of a terminal is for it
                setsigmask=(),
            )
        self._requests = ours
        return ours

    def _stop(self) -> None:
        if self._requests is not None:
            self._requests.close()
            self._requests = None
            _reap(self.pid)

    def _forget(self) -> None:
        # Only the handle: the program is our parent's child, and must see the end of file when our parent ends.
        self._lock = threading.Lock()
        if self._requests is not None:
            self._requests.close()
            self._requests = None


class Spawner(Forker):
    """Starts commands that end with us, behind `walls` (see `walls/commands.py`), by a `program` like the launcher."""

    def __init__(self, walls: Sequence[str] = (), program: Sequence[str] = (LAUNCHER, "--serve")) -> None:
        super().__init__([*program, str(len(walls)), *walls])
        self.walls = walls

    def start(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        folder: int,
        streams: tuple[int, int, int],
        grace: float,
        shown: Sequence[str] = (),
    ) -> socket.socket:
        """Start `command` in `folder` and return its control socket: status lines come out, closing it ends the tree.

        `shown` is what this one is shown besides, where there are walls.
        """
        words = [true_path(folder), *shown] if self.walls else []
        variables = [f"{name}={value}" for name, value in environment.items()]
        return self.request([folder, *streams], [str(grace)], [str(UMASK)], command, words, variables)


def _reap(pid: int) -> None:
    """Wait for a program that has to end; one that does not is killed, and what it forked ends by itself."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    with suppress(ChildProcessError):  # somebody else in this process reaps every child
        while os.waitpid(pid, os.WNOHANG) == (0, 0):
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.002)


SPAWNER = Spawner()


@dataclass(frozen=True, slots=True)
class Around:
    """The walls around one command, none by default; `shown` is what this one sees that others behind them do not."""

    spawner: Spawner = SPAWNER
    shown: Sequence[str] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    """Variables of its environment, unless its caller sets them."""

    @property
    def walls(self) -> Sequence[str]:
        return self.spawner.walls

    def start(self, *command: Any, **options: Any) -> socket.socket:
        """Start the command behind them, as `run` has it done."""
        return self.spawner.start(*command, shown=self.shown, **options)

    def egress(self) -> Egress:
        """Return the way out of the command, which the running loop serves until it is closed."""
        return Egress(self.walls[1] if self.walls else HOST)


class CommandWalls:
    """The walls around the commands of tools: none by default, so that they reach what their user does.

    Behind `namespace` no command sees what is `closed`; of that, what is `hidden` is not even visible inside a workspace.
    Behind `landlock` none reaches what is `closed` unless it lies in its workspace; its home, where its temporary files are,
    too, is a folder that goes with it. `opened` has further paths, such as `/data:ro`. The commands of a workspace share a
    folder in `cache`, which is kept.
    """

    def __init__(
        self, tier: str = "plain", network: str = HOST, *, closed: Sequence[str] = (), hidden: Sequence[str] = (),
        opened: Sequence[str] = (), cache: Path = Path(),
    ) -> None:  # fmt: skip
        self.tier, self.spawner = tier, SPAWNER
        if tier != "plain":
            seen = of_machine if tier == NAMESPACE else behind_landlock
            self.spawner = Spawner([tier, network, *seen(child_environment(), closed, opened)])
        self._hidden, self._cache, self._variables = hidden, cache, variables(network)

    def around(self, roots: Sequence[Root]) -> Around:
        """Return the walls around a command of a workspace with these roots."""
        if self.tier == "plain":
            return Around()
        places = [(str(root.path.absolute()), root.is_read_only) for root in roots]
        name = hashlib.blake2b(repr(sorted(places)).encode(), digest_size=8).hexdigest()
        cache = os.path.realpath(self._cache / name)
        with suppress(OSError):  # a home that is read-only: commands then have one that is not kept, or none
            Path(cache).mkdir(mode=0o700, parents=True, exist_ok=True)
        given = {"XDG_CACHE_HOME": cache, **self._variables}
        if self.tier == NAMESPACE:
            return Around(self.spawner, of_workspace(places, self._hidden, cache), {**given, "TMPDIR": "/tmp"})  # noqa: S108  its own
        home = new_scratch()
        shown = [f"{'ro' if is_read_only else 'rw'}:{path}" for path, is_read_only in places]
        return Around(self.spawner, [*shown, f"rw:{cache}", f"own:{home}"], {**given, "TMPDIR": home, "HOME": home})
