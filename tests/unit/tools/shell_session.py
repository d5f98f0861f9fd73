"""One session's calls to the tools for shells that outlive a call."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from forge_tools.model import ExecutionContext, ToolResult
from forge_tools.model.places import ShellRecord
from forge_tools.model.scope import CallScope
from forge_tools.sandbox.processes.spawner import CommandWalls
from forge_tools.sandbox.reach import REACH, Reach
from forge_tools.tools import Bash, BashOutput, KillShell, ListShells
from tests.shell_hosts import shell_host


class Session:
    """Calls as an executor makes them; `context` holds what differs from the usual one."""

    def __init__(self, folder: Path, execution_id: str | None = None, **context: Any) -> None:
        self.folder = folder
        self._scope = CallScope(execution_id=execution_id)
        self._context = {"working_dir": ".", "session_id": "s1", "agent_id": "a1"} | context

    def other(self, **context: Any) -> "Session":
        return Session(self.folder, **(self._context | context))

    async def start(self, command: str, **parameters: Any) -> str:
        result = await self.bash(command=command, run_in_background=True, **parameters)
        assert result.success, result.error
        return str(result.metadata["bash_id"])

    async def bash(self, **parameters: Any) -> ToolResult:
        return await Bash().execute(self._made(), **parameters)

    async def output(self, handle: str, **parameters: Any) -> ToolResult:
        return await BashOutput().execute(self._made(), bash_id=handle, **parameters)

    async def kill(self, handle: str, **parameters: Any) -> ToolResult:
        return await KillShell().execute(self._made(), shell_id=handle, **parameters)

    async def shells(self) -> ToolResult:
        return await ListShells().execute(self._made())

    async def ended(self, handle: str) -> ToolResult:
        """Wait until it is over; return the last answer."""
        deadline = time.monotonic() + 30
        while (result := await self.output(handle, wait_ms=1000)).metadata["status"] == "running":
            assert time.monotonic() < deadline
        return result

    def _made(self) -> ExecutionContext:
        return ExecutionContext(**self._context).within(self._scope)


class Book:
    """What is known of shells on other hosts, for as long as a test runs."""

    def __init__(self, *shells: ShellRecord) -> None:
        self.shells = {shell.id: shell for shell in shells}

    async def record(self, shell: ShellRecord) -> None:
        self.shells[shell.id] = shell

    async def find(self, id: str) -> ShellRecord | None:
        return self.shells.get(id)

    async def of_session(self, session_id: str | None) -> list[ShellRecord]:
        return [shell for shell in self.shells.values() if shell.session_id == session_id]


NO_WALLS = CommandWalls()


@contextlib.contextmanager
def session(
    tmp_path: Path,
    book: Book | None = None,
    commands: CommandWalls = NO_WALLS,
) -> Iterator[Session]:
    (tmp_path / "ws").mkdir()
    with shell_host(tmp_path / "shells") as folder:
        token = REACH.set(Reach(root=tmp_path / "ws", shells=folder, hostname="h1", book=book, commands=commands))
        try:
            yield Session(folder)
        finally:
            REACH.reset(token)
