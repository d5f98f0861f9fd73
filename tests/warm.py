"""Interpreters that have imported a program once and become it by forking, so that a start costs no imports.

What forks is a process of its own without threads; what comes of it has its own folder, environment, streams, pid and exit code.
"""

import atexit
import contextlib
import ctypes
import gc
import io
import json
import os
import runpy
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import IO, Any

ROOT = Path(__file__).resolve().parent.parent
REQUEST_BYTES = 1 << 20
ROOM = {"ROOM": 30_000 * "."}
"""What the environment of a warm interpreter has besides, in whose memory those that it forks show theirs."""
ENVIRONMENT = slice(47, 49)  # env_start and env_end among the fields of /proc/PID/stat that follow the name
PR_SET_PDEATHSIG = 1
STREAMS = 3
END_SECONDS = 10.0


class Forked:
    """A process that a warm interpreter forked, as `subprocess.Popen` shows one."""

    def __init__(self, report: socket.socket) -> None:
        self.returncode: int | None = None
        self._report = report
        self._one_reads = threading.Lock()
        self.pid = int(self._heard())

    def poll(self) -> int | None:
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended, and nobody has said so yet
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _ended(self, timeout: float | None) -> int | None:
        if self.returncode is None and self._has_news(timeout):
            with self._one_reads:
                if self.returncode is None:
                    self.returncode = int(self._heard())
                    self._report.close()
        return self.returncode

    def _has_news(self, timeout: float | None) -> bool:
        poll = select.poll()
        try:
            poll.register(self._report, select.POLLIN)
        except ValueError:  # another thread has read the news and closed it
            return True
        return bool(poll.poll(None if timeout is None else timeout * 1000))

    def _heard(self) -> bytes:
        said = self._report.recv(64)
        assert said, "the interpreter that forks is gone"
        return said


class WarmInterpreter:
    """`python -P` with these options, which imports some modules when it is first asked, and forks programs.

    What lies in the folder `path` is imported from there.
    """

    def __init__(self, *modules: str, options: Sequence[str] = (), path: Path | None = None) -> None:
        where = {} if path is None else {"PYTHONPATH": str(path)}
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, REQUEST_BYTES)
        with theirs:
            # It ends when this end of the pair is closed, so also when the test process is killed.
            self._process = subprocess.Popen(
                [sys.executable, "-P", *options, str(Path(__file__)), str(theirs.fileno()), *modules],
                pass_fds=[theirs.fileno()],
                env={**os.environ, **ROOM, **where},
            )
        atexit.register(self.close)

    def start(
        self,
        words: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        stdin: int | IO[Any] | None = None,
        stdout: int | IO[Any],
        stderr: int | IO[Any],
        death_signal: int = 0,
    ) -> Forked:
        """Start `python -P -m` with these words, or `python -c` where the first is `-c`.

        It gets the `death_signal` when this interpreter ends, which does so with the process that made it.
        """
        with Path(os.devnull).open("rb") as nothing:
            given = (nothing if stdin is None else stdin, stdout, stderr)
            streams = [one if isinstance(one, int) else one.fileno() for one in given]
            return ask(self._control, [str(cwd), dict(env), death_signal, list(words)], streams)

    def run(
        self, words: Sequence[str], *, cwd: Path, env: Mapping[str, str], timeout: float = 60
    ) -> "subprocess.CompletedProcess[str]":
        """Run it to its end, as `subprocess.run` does that captures the output as text."""
        with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
            process = self.start(words, cwd=cwd, env=env, stdout=output, stderr=errors)
            try:
                code = process.wait(timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise
            out, err = (file.seek(0) or file.read() for file in (output, errors))
        return subprocess.CompletedProcess(words, code, out, err)

    def shell(self, script: str, module: str, **options: Any) -> "subprocess.CompletedProcess[str]":
        """Run a script of bash in which `forge-tools` is this module; what it pipes and redirects is that of a fork."""
        ask = shlex.join([sys.executable, "-I", "-S", __file__, "ask", str(self._control.fileno()), module])
        text = f'forge-tools() {{ {ask} "$@"; }}\nset -e\n{script}'
        return subprocess.run(
            ["bash", "-c", text], pass_fds=[self._control.fileno()], capture_output=True, text=True, **options
        )

    def close(self) -> None:
        """End it; what it forked goes on."""
        self._control.close()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:  # a fork of the test process holds the control open
            self._process.kill()
            self._process.wait()


def ask(control: socket.socket, request: Sequence[Any], streams: Sequence[int]) -> Forked:
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        socket.send_fds(control, [json.dumps(request).encode()], [theirs.fileno(), *streams])
    return Forked(mine)


def below(package: str) -> list[str]:
    """Name the modules of a package and of those in it, to be imported beforehand."""
    folder = Path(package.replace(".", os.sep))
    files = [file.with_suffix("") for file in (ROOT / folder).rglob("*.py") if not file.name.startswith("__")]
    return [".".join(file.relative_to(ROOT).parts) for file in sorted(files)]


CALLER = (
    *below("forge_tools.storage"),
    "forge_tools.broker.redis",
    "forge_tools.client",
    "aiosqlite",
    "cryptography.hazmat.primitives.ciphers.aead",
)
"""What programs import that make calls or read of them."""

Make = Callable[[], WarmInterpreter]

_shared: list[Make] = []


def shared(make: Make) -> Make:
    """What it makes is made once, and before test processes are forked: one serves them all."""
    _shared.append(cache(make))
    return _shared[-1]


def make_shared() -> None:
    for make in _shared:
        make()


class Ending:
    """How a fork ends: as any program (threads, callbacks, streams, exit code), but its memory is left to the kernel, and
    with it what an open file has not written.

    To clear away modules that it shares with what forked it, it would first have to copy them: 75 ms, ten times a fork.
    """

    def __init__(self) -> None:
        self._code: int | None = None
        atexit.register(self._leave)  # before modules register theirs, so that it runs after them

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, raised: BaseException | None, _trace: object) -> None:
        code = raised.code or 0 if isinstance(raised, SystemExit) else raised or 0
        if isinstance(code, int):  # what else there is the interpreter shows
            self._code = code

    def _leave(self) -> None:
        if self._code is not None:
            with contextlib.suppress(OSError, ValueError):  # the interpreter meets it, too, and shows it
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(self._code)


def become_what_is_asked(control: socket.socket, ending: Ending) -> None:
    """Fork at each request and tell how each child ends; in a child, run what was asked for."""
    reports: dict[int, socket.socket] = {}
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    request, streams = fork_at_requests(control, woken, reports)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for one in (control, *reports.values()):
        one.close()
    os.close(woken)
    os.close(wake)
    with ending:
        run(request, streams)


def fork_at_requests(control: socket.socket, woken: int, reports: dict[int, socket.socket]) -> tuple[bytes, list[int]]:
    """Return in the children alone, each with its request and its streams."""
    while True:  # no deadline: it serves until its socket is closed
        ready, _, _ = select.select([control.fileno(), woken], [], [])
        if woken in ready:
            os.read(woken, 512)
            tell_ends(reports)
        if control.fileno() in ready:
            request, handles, _, _ = socket.recv_fds(control, REQUEST_BYTES, 1 + STREAMS)
            if not request:
                os._exit(0)
            with socket.socket(fileno=handles[0]) as report:
                child = os.fork()
                if not child:
                    return request, handles[1:]
                report.send(str(child).encode())
                reports[child] = report.dup()
            for handle in handles[1:]:
                os.close(handle)


def tell_ends(reports: dict[int, socket.socket]) -> None:
    with contextlib.suppress(ChildProcessError):
        while True:  # no deadline: each round reaps one of a few children
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            with reports.pop(pid) as report, contextlib.suppress(OSError):  # nobody may want to know any more
                report.send(str(os.waitstatus_to_exitcode(status)).encode())


def run(request: bytes, streams: Sequence[int]) -> None:
    folder, environment, death_signal, (module, *words) = json.loads(request)
    if death_signal:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, death_signal, 0, 0, 0)
    for number, handle in enumerate(streams):
        os.dup2(handle, number)
        os.close(handle)
    os.chdir(folder)
    os.environ.clear()
    show(environment)
    os.environ.update(environment)
    look_at_streams()
    if module == "-c":
        sys.argv[:] = [module, *words[1:]]
        sys.path.insert(0, "")
        main = sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(words[0], "<string>", "exec"), vars(main))
    else:
        sys.argv[:] = [module, *words]
        runpy.run_module(module, run_name="__main__", alter_sys=True)


def show(environment: Mapping[str, str]) -> None:
    """Have /proc/PID/environ tell it: that file is the memory in which the kernel once put the environment."""
    start, end = map(int, Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()[ENVIRONMENT])
    text = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in environment.items())
    ctypes.memmove(start, text[: end - start].ljust(end - start, b"\0"), end - start)


def look_at_streams() -> None:
    """Make `sys.stdin` and the others anew: what they are, a file or a pipe, Python asks once, at its start."""
    is_eager = bool(os.environ.get("PYTHONUNBUFFERED"))
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = io.TextIOWrapper(os.fdopen(1, "wb", closefd=False), write_through=is_eager)
    sys.stderr = os.fdopen(2, "w", 1, errors="backslashreplace", closefd=False)


if __name__ == "__main__":
    if sys.argv[1] == "ask":
        asked, words = socket.socket(fileno=int(sys.argv[2])), sys.argv[3:]
        sys.exit(ask(asked, [os.getcwd(), dict(os.environ), 0, words], range(STREAMS)).wait())
    asked = socket.socket(fileno=int(sys.argv[1]))
    if not asked.recv(1, socket.MSG_PEEK):
        sys.exit()  # nobody ever asked
    how_it_ends = Ending()
    gc.disable()  # nothing of what is imported is garbage
    for name in sys.argv[2:]:
        import_module(name)
    gc.freeze()
    gc.enable()
    become_what_is_asked(asked, how_it_ends)
