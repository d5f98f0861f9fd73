"""Starts shells that outlive their calls, and finds the folder that their state is kept in."""

import base64
import os
import re
import secrets
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

from forge_tools.errors import ErrorCode, SandboxError
from forge_tools.model import shell_id
from forge_tools.sandbox.processes.commands import SPAWN_FAILED
from forge_tools.sandbox.processes.environment import child_environment
from forge_tools.sandbox.processes.launcher import Status
from forge_tools.sandbox.processes.output import forms_in_streams
from forge_tools.sandbox.processes.spawner import UMASK, Forker
from forge_tools.sandbox.processes.trees import EXECUTION, INSTANCE, KEEPS, SHELL
from forge_tools.sandbox.reach import Reach
from forge_tools.sandbox.shells.folder import ShellFolder
from forge_tools.sandbox.shells.host import find
from forge_tools.sandbox.shells.supervisor import LEASE, ORDERS, RECORD, WRITE, replace
from forge_tools.secrets import CONCEALED, scrubbed

LEASE_SECONDS = 86_400.0
"""How long a shell lives that nobody cares for."""

SPOOL_BYTES = 64 << 20
"""How much of the output is kept: of more, the first eighth and the end."""

_PROGRAM = """import sys
sys.path.append(sys.argv[1])
from forge_tools.sandbox.shells.supervisor import serve
serve()"""
_ROOT = str(Path(__file__).parents[3])
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]")
_PATIENCE_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NewShell:
    """What is to be started, and for whom. `execution_id` and the rest name one deed: it is done once."""

    command: str
    cwd: str
    description: str | None = None
    session_id: str | None = None
    agent_id: str | None = None
    execution_id: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    lease_seconds: float = LEASE_SECONDS
    spool_bytes: int = SPOOL_BYTES

    def digits(self) -> str:
        """Twelve hex digits, the same ones for the same deed. Nobody can guess a secret by them: none is in it."""
        if self.execution_id is None:
            return secrets.token_hex(6)
        deed = (self.execution_id, *scrubbed([self.command, self.cwd, repr(sorted(self.env.items()))]))
        return blake2b("\0".join(deed).encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()


def hostname_of(reach: Reach) -> str:
    """The name of this host as the ids of its shells show it."""
    return _NOT_IN_NAMES.sub("-", reach.hostname or socket.gethostname())[:200]


def shells_folder(reach: Reach, *, is_made: bool = False) -> Path:
    """Where the state of this host's shells is: below the user's own state, where nobody said otherwise.

    Raises:
        SandboxError: others could write there, or it cannot be made.
    """
    folder = reach.shells or Path.home() / ".local" / "state" / "forge-tools" / "shells" / hostname_of(reach)
    try:
        if is_made:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()
    except FileNotFoundError:
        return folder
    except (OSError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        what = (
            f"The folder for shells that outlive a call cannot be used: {reason}. Give the executor Reach(shells=...)"
        )
        raise SandboxError(what, SPAWN_FAILED) from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        what = (
            "The folder for shells that outlive a call must be a folder of our own that no one else can write to (0700)"
        )
        raise SandboxError(what, SPAWN_FAILED)
    return folder


def start(
    folder: Path, hostname: str, shell: NewShell, command: Sequence[str], *, place: int, stdin: bytes
) -> ShellFolder:
    """Start `command` in the open folder handle `place`; return the shell's folder, for the caller to close.

    The same deed again returns the shell that it started. Blocks for some milliseconds: call it on a thread.

    Raises:
        SandboxError: it cannot be started.
    """
    handle = shell_id(hostname, shell.digits())
    environment = _environment(handle, shell.env)
    try:
        (folder / handle).mkdir(mode=0o700)
    except FileExistsError:
        return _started_before(folder, handle)
    except OSError as error:
        raise _refusal(error.errno or 0) from error
    try:
        fd = os.open(folder / handle, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with ShellFolder(fd, handle) as own:
            _write_down(own.fd, shell)
            _ask(own, shell, command, environment, place=place, stdin=stdin)
    except OSError as error:
        if (found := find(folder, handle)) is not None:  # it runs, though its supervisor could not say so
            return found
        shutil.rmtree(folder / handle, ignore_errors=True)
        raise _refusal(error.errno or 0) from error
    return _started_before(folder, handle)


def _environment(id: str, env: Mapping[str, str]) -> dict[str, str]:
    """Without the marks of the worker and the attempt: what carries them ends with them."""
    environment = child_environment(env)
    return {name: value for name, value in environment.items() if name not in (INSTANCE, EXECUTION)} | {SHELL: id}


def _write_down(folder: int, shell: NewShell) -> None:
    os.mkfifo(ORDERS, 0o600, dir_fd=folder)
    os.close(os.open(LEASE, WRITE, 0o600, dir_fd=folder))
    asked = {
        "command": scrubbed(shell.command),
        "cwd": scrubbed(shell.cwd),
        "description": scrubbed(shell.description),
        "session_id": shell.session_id,
        "agent_id": shell.agent_id,
        "execution_id": shell.execution_id,
        "started_at": time.time(),
    }
    replace(folder, RECORD, asked)


def _ask(
    own: ShellFolder,
    shell: NewShell,
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    place: int,
    stdin: bytes,
) -> None:
    withheld = [base64.b64encode(form).decode() for form in forms_in_streams(CONCEALED.get())]
    fields = [str(shell.lease_seconds), str(shell.spool_bytes), str(UMASK), str(len(command)), str(len(withheld))]
    fields += [*command, *withheld]
    fields += [f"{name}={value}" for name, value in environment.items()]
    with tempfile.TemporaryFile() as file:
        file.write(stdin)
        file.seek(0)
        with KEEPER.request([place, own.fd, file.fileno()], fields) as control:
            line = _answer(control, own)
    if not line.endswith(b"\n"):
        raise OSError(0, "no word from its supervisor")
    kind, number = line.split()
    if Status(kind.decode(), int(number)).kind == "error":
        raise OSError(int(number), os.strerror(int(number)))


def _answer(control: socket.socket, own: ShellFolder) -> bytes:
    """Wait for the supervisor's word, and see to it that its command does not stop it before."""
    control.settimeout(_PATIENCE_SECONDS / 20)
    for _ in range(20):
        try:
            return control.recv(64)
        except ConnectionResetError:
            break
        except TimeoutError:
            own.rouse()
    return b""


def _started_before(folder: Path, id: str) -> ShellFolder:
    """Open what is started, or is being started at this moment by another delivery of the same call."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while (found := find(folder, id)) is None:
        if time.monotonic() > deadline:
            what = f"An earlier attempt to start {id} was interrupted. Start the command again with a call of its own"
            raise SandboxError(what, ErrorCode.OUTCOME_UNKNOWN)
        time.sleep(0.005)
    return found


def _refusal(number: int) -> SandboxError:
    reason = os.strerror(number) if number else "its supervisor was killed. Try again"
    return SandboxError(f"The shell could not be started: {reason}", SPAWN_FAILED)


def _keepers_environment() -> dict[str, str]:
    """With a mark of its own: what it forks shows its environment and must be left alone too."""
    return _environment(f"{KEEPS}{os.getpid()}.{secrets.token_hex(4)}", {})


KEEPER = Forker(["-c", _PROGRAM, _ROOT], _keepers_environment)
"""The one of this process that forks supervisors."""
