"""A folder of shells for tests, in which nothing is running when they are over."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from forge_tools.model import ExecutionContext
from forge_tools.model.places import ShellStatus
from forge_tools.model.scope import CallScope
from forge_tools.sandbox.processes.spawner import Around
from forge_tools.sandbox.shells import host
from forge_tools.sandbox.shells.folder import ShellFolder
from forge_tools.sandbox.shells.host import NewShell, start
from tests.waiting import wait_until

UNWALLED = Around()


@contextlib.contextmanager
def shell_host(folder: Path) -> Iterator[Path]:
    """End every shell of the folder afterwards, and make sure that none of their processes is left."""
    folder.mkdir(mode=0o700, exist_ok=True)
    yield folder
    shells = list(host.each(folder))
    records = [record for record in host.survey(folder) if record.status is ShellStatus.RUNNING]
    for record in records:
        shell = host.find(folder, record.id)
        assert shell is not None
        shell.order("KILL", 0)
        shell.close()
    handles = {shell.id for shell in shells}
    wait_until(lambda: not processes_of(handles), 30, lambda: f"left behind: {processes_of(handles)}")
    supervisors = [record.pid for record in records]
    wait_until(lambda: not [pid for pid in supervisors if is_alive(pid)], 30, f"left behind: {supervisors}")


def run_shell(
    folder: Path, script: str, *, place: Path = Path("/"), around: Around = UNWALLED, **options: object
) -> ShellFolder:
    """Start bash in a folder of shells, as host h1."""
    fd = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    try:
        ids = {name: options.pop(name, None) for name in ("session_id", "agent_id")}
        scope = CallScope(execution_id=options.pop("execution_id", None))
        context = ExecutionContext(working_dir=".", **ids).within(scope)
        new = NewShell(command=script, cwd=".", context=context, **options)
        return start(folder, "h1", new, place=fd, stdin=b"", around=around)
    finally:
        os.close(fd)


def processes_of(handles: set[str]) -> list[int]:
    """Find the living processes that carry the mark of one of these shells."""
    marks = {f"FORGE_SHELL={handle}".encode() for handle in handles}
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with contextlib.suppress(OSError):
                if marks & set((path / "environ").read_bytes().split(b"\0")):
                    found.append(int(path.name))
    return found


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def output_of(shell: ShellFolder) -> bytes:
    return b"".join(piece.data for piece in shell.output.read(0, 1 << 30))


def has_ended(shell: ShellFolder) -> bool:
    return shell.facts().get("state") != "running"
