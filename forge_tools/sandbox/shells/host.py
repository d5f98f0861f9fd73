"""All shells of a host: starts, inspects, renews and forgets them; reports what they use."""

import base64
import os
import re
import secrets
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

from forge_tools.errors import ErrorCode, SandboxError
from forge_tools.model.calls import ExecutionContext
from forge_tools.model.places import ShellRecord, ShellStatus, host_of, shell_id
from forge_tools.sandbox.paths.confinement import ENTER_FOLDER, true_path
from forge_tools.sandbox.processes.commands import SPAWN_FAILED, find_shell
from forge_tools.sandbox.processes.environment import child_environment
from forge_tools.sandbox.processes.output import forms_in_streams
from forge_tools.sandbox.processes.spawner import UMASK, Around, Forker
from forge_tools.sandbox.processes.trees import EXECUTION, INSTANCE, KEEPS, SHELL, Process, families, start_ticks
from forge_tools.sandbox.reach import Reach
from forge_tools.sandbox.shells.folder import ShellFolder
from forge_tools.sandbox.shells.supervisor import LEASE, ORDERS, RECORD, STATUS, WRITE, replace
from forge_tools.secrets.scrubber import CONCEALED, scrubbed

LEASE_SECONDS = 86_400.0
SPOOL_BYTES = 64 << 20
"""How much of the output is kept: beyond that, the first eighth and the end."""

_PROGRAM = """import sys
sys.path.append(sys.argv[1])
from forge_tools.sandbox.shells.supervisor import serve
serve()"""
_ROOT = str(Path(__file__).parents[3])
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]")
PATIENCE_SECONDS = 10.0
"""How long a supervisor has to say that it has started."""
_STARTING_SECONDS = 60.0
_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")
_LISTENING = "0A"
_SOCKET = re.compile(r"socket:\[(\d+)\]")
_MAX_HANDLES = 4096  # for one process; a server with more connections opened its port before them

# The finished shells in a folder: their records do not change, and a host keeps many for days.
_over: dict[Path, dict[str, tuple[tuple[int, ...], ShellRecord]]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class NewShell:
    """What to start, and for which call. Its execution and the rest identify one action: it is done once."""

    command: str
    cwd: str
    context: ExecutionContext
    description: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    lease_seconds: float = LEASE_SECONDS
    spool_bytes: int = SPOOL_BYTES

    def digits(self) -> str:
        """Return twelve hex digits, always the same for one action. They reveal no secret, as they depend on none."""
        if self.context.execution_id is None:
            return secrets.token_hex(6)
        deed = (self.context.execution_id, *scrubbed([self.command, self.cwd, repr(sorted(self.env.items()))]))
        return blake2b("\0".join(deed).encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()


def hostname_of(reach: Reach) -> str:
    """Return the name of this host as the ids of its shells show it."""
    return _NOT_IN_NAMES.sub("-", reach.hostname or socket.gethostname())[:200]  # ids with it name folders


def shells_folder(reach: Reach, *, is_made: bool = False) -> Path:
    """Return where the state of this host's shells is: by default below the user's own state."""
    folder = reach.shells or Path.home() / ".local" / "state" / "forge-tools" / "shells" / hostname_of(reach)
    try:
        if is_made:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()
    except FileNotFoundError:
        return folder
    except OSError as error:
        why = f"cannot be used: {error.strerror}. Give the executor Reach(shells=...)"
        raise SandboxError(f"The folder for shells that outlive a call {why}", SPAWN_FAILED) from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        what = "The folder for shells that outlive a call must be our own, and nobody else may write to it (0700)"
        raise SandboxError(what, SPAWN_FAILED)
    return folder


def start(folder: Path, hostname: str, shell: NewShell, *, place: int, stdin: bytes, around: Around) -> ShellFolder:
    """Start a shell in the open folder handle `place`, behind the walls `around` it; return its folder, for the caller to close.

    The same action again returns the shell that it started. Blocks for some milliseconds: call it on a thread.
    """
    handle = shell_id(hostname, shell.digits())
    environment = {**_shell_environment(handle, shell.env), **around.variables, **shell.env}
    try:
        (folder / handle).mkdir(mode=0o700)  # of several deliveries of one call, one succeeds
    except FileExistsError:
        return _started_before(folder, handle)
    except OSError as error:
        raise _refusal(error.errno or 0) from error
    try:
        with ShellFolder(os.open(folder / handle, ENTER_FOLDER), handle) as own:
            _write_down(own.fd, shell)
            _ask(own, shell, environment, place=place, stdin=stdin, around=around)
    except OSError as error:
        if (found := find(folder, handle)) is not None:  # it runs, though its supervisor could not report it
            return found
        shutil.rmtree(folder / handle, ignore_errors=True)
        raise _refusal(error.errno or 0) from error
    return _started_before(folder, handle)


def find(folder: Path, id: str) -> ShellFolder | None:
    """Open the folder of a shell that was started on this host; None if there is none. The caller closes it."""
    shell = _open(folder, id)
    if shell is not None and not shell.is_whole:
        shell.close()
        return None
    return shell


def each(folder: Path) -> Iterator[ShellFolder]:
    """Open the shells of a folder one at a time."""
    for name in _names(folder):
        shell = _open(folder, name)
        if shell is not None:
            with shell:
                yield shell


def survey(folder: Path) -> list[ShellRecord]:
    """Return the record of each shell of this host, the oldest first.

    If a supervisor is gone without recording how its shell ended, the shell becomes LOST permanently, and what it left
    running is ended: that may take a second, so call this on a thread.
    """
    known, over, records = _over.get(folder, {}), {}, []
    for name in _names(folder):
        try:
            seen = os.stat(f"{folder}/{name}/{STATUS}", follow_symlinks=False)  # noqa: PTH116  a host keeps thousands
        except OSError:
            continue
        identity, kept = (seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns), known.get(name)
        if kept is None or kept[0] != identity:
            shell = find(folder, name)
            if shell is None:
                continue
            with shell:
                kept = identity, shell.record()
        records.append(kept[1])
        if kept[1].status is not ShellStatus.RUNNING:
            over[name] = kept
    _over.clear()
    _over[folder] = over
    return sorted(records, key=lambda record: (record.started_at, record.id))


def renew(folder: Path) -> None:
    """Renew the leases of all shells: a supervisor whose lease expires ends its shell."""
    for shell in each(folder):
        shell.renew()


def forget(folder: Path, older_than_seconds: float) -> int:
    """Remove the records of shells that ended at least that long ago; return how many."""
    oldest = time.time() - older_than_seconds
    forgotten = 0
    for shell in each(folder):
        if shell.is_whole:
            record = shell.record()
            is_old = record.ended_at is not None and record.ended_at.timestamp() <= oldest
        else:  # its starter was killed half way
            is_old = os.fstat(shell.fd).st_mtime <= min(oldest, time.time() - _STARTING_SECONDS)
        if is_old:
            shutil.rmtree(folder / shell.id, ignore_errors=True)
            forgotten += 1
    return forgotten


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208  names are all that is wanted
    except OSError:
        return []


def _open(folder: Path, id: str) -> ShellFolder | None:
    """Open by a name that cannot be a path: only the form of an id is accepted."""
    if host_of(id) is None:
        return None
    try:
        return ShellFolder(os.open(folder / id, ENTER_FOLDER), id)
    except OSError:
        return None


@dataclass(frozen=True, slots=True)
class Usage:
    """What the processes of a shell use, without its supervisor; `cpu_s` includes ended ones, `ports` are those of TCP."""

    processes: int
    rss_bytes: int
    cpu_s: float
    ports: tuple[int, ...] = ()


def usage_of(shells: Sequence[ShellRecord]) -> dict[str, Usage]:
    """Measure the running shells among these, in one pass over the host's processes; by id."""
    children = families()
    return {
        shell.id: _usage(shell.pid, children)
        for shell in shells
        if shell.status is ShellStatus.RUNNING and start_ticks(shell.pid) == shell.start_ticks
    }


def _usage(supervisor: int, children: Mapping[int, Sequence[Process]]) -> Usage:
    tree = list(children.get(supervisor, ()))
    for process in tree:
        tree.extend(children.get(process.pid, ()))
    # Processes that a supervisor has reaped count on its account; its own usage is not the shell's.
    pids = [process.pid for process in tree]
    ticks = _sum(supervisor, "stat", slice(13, 15)) + sum(_sum(pid, "stat", slice(11, 15)) for pid in pids)
    pages = sum(_sum(pid, "statm", slice(1, 2)) for pid in pids)
    ports = {port for pid in pids for port in _ports(pid)}
    return Usage(len(pids), pages * _PAGE, round(ticks / _TICKS, 2), tuple(sorted(ports)))


def _sum(pid: int, file: str, fields: slice) -> int:
    """Add up fields of a file about a process, without the name that it may begin with."""
    with suppress(OSError):  # gone by now, or no /proc here
        return sum(map(int, Path(f"/proc/{pid}/{file}").read_bytes().rpartition(b")")[2].split()[fields]))
    return 0


def _ports(pid: int) -> Iterator[int]:
    if sockets := set(_sockets(pid)):
        for table in ("tcp", "tcp6"):
            with suppress(OSError):  # as above; or no IPv6
                for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                    fields = line.split()
                    if fields[3] == _LISTENING and fields[9] in sockets:
                        yield int(fields[1].rpartition(":")[2], 16)


def _sockets(pid: int) -> Iterator[str]:
    folder = f"/proc/{pid}/fd"
    with suppress(OSError):  # gone by now, somebody else's, or no /proc here
        for number in sorted(os.listdir(folder), key=int)[:_MAX_HANDLES]:  # noqa: PTH208  names are all that is wanted
            with suppress(OSError):
                if found := _SOCKET.fullmatch(os.readlink(f"{folder}/{number}")):  # noqa: PTH115  thousands of them
                    yield found[1]


def _shell_environment(id: str, env: Mapping[str, str]) -> dict[str, str]:
    """Leave out the marks of the worker and the attempt, since processes with them end with those."""
    environment = child_environment(env)
    return {name: value for name, value in environment.items() if name not in (INSTANCE, EXECUTION)} | {SHELL: id}


def _write_down(folder: int, shell: NewShell) -> None:
    os.mkfifo(ORDERS, 0o600, dir_fd=folder)
    os.close(os.open(LEASE, WRITE, 0o600, dir_fd=folder))
    asked = {
        "command": scrubbed(shell.command),
        "cwd": scrubbed(shell.cwd),
        "description": scrubbed(shell.description),
        "session_id": shell.context.session_id,
        "agent_id": shell.context.agent_id,
        "execution_id": shell.context.execution_id,
        "started_at": time.time(),
    }
    replace(folder, RECORD, asked)


def _ask(
    own: ShellFolder, shell: NewShell, environment: Mapping[str, str], *, place: int, stdin: bytes, around: Around
) -> None:
    withheld = [base64.b64encode(form).decode() for form in forms_in_streams(CONCEALED.get())]
    walls = [true_path(place), *around.walls, *around.shown] if around.walls else []
    command = [*find_shell(), "-c", shell.command]
    limits = [str(shell.lease_seconds), str(shell.spool_bytes), str(UMASK)]
    variables = [f"{name}={value}" for name, value in environment.items()]
    with tempfile.TemporaryFile() as file:
        file.write(stdin)
        file.seek(0)
        handles = [place, own.fd, file.fileno()]
        with KEEPER.request(handles, limits, command, withheld, walls, variables) as control:
            line = _answer(control, own)
    if not line.endswith(b"\n"):
        raise OSError(0, "no answer from its supervisor")
    kind, number = line.split()
    if kind == b"error":
        raise OSError(int(number), os.strerror(int(number)))


def _answer(control: socket.socket, own: ShellFolder) -> bytes:
    """Wait for the supervisor's answer, and prevent its command from stopping it before that."""
    control.settimeout(PATIENCE_SECONDS / 20)
    for _ in range(20):
        try:
            return control.recv(64)
        except ConnectionResetError:
            break
        except TimeoutError:
            own.rouse()
    return b""


def _started_before(folder: Path, id: str) -> ShellFolder:
    """Open what is started, or is being started by another delivery of the same call."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (found := find(folder, id)) is None:
        if time.monotonic() > deadline:
            what = f"An earlier attempt to start {id} was interrupted. Start the command again with a new call"
            raise SandboxError(what, ErrorCode.OUTCOME_UNKNOWN)
        time.sleep(0.005)
    return found


def _refusal(number: int) -> SandboxError:
    reason = os.strerror(number) if number else "its supervisor was killed. Try again"
    return SandboxError(f"The shell could not be started: {reason}", SPAWN_FAILED)


class _Keeper(Forker):
    def environment(self) -> dict[str, str]:
        """Add a separate mark, since the processes it forks show its environment and must be spared too."""
        return _shell_environment(f"{KEEPS}{os.getpid()}.{secrets.token_hex(4)}", {})


KEEPER = _Keeper(["-c", _PROGRAM, _ROOT])
