"""Bash in the background: starts the shell, and says how it is read and stopped."""

import asyncio
from contextlib import suppress
from typing import Any

from forge_tools.errors import ForgeError
from forge_tools.records import ExecutionContext, ToolResult
from forge_tools.sandbox.paths.confinement import Handle
from forge_tools.sandbox.paths.journal import EXECUTION_ID
from forge_tools.sandbox.processes.commands import find_shell
from forge_tools.sandbox.shells.folder import ShellFolder
from forge_tools.sandbox.shells.start import NewShell, start
from forge_tools.tools.execution.shells import Shells
from forge_tools.tools.file.effort import Effort


async def start_shell(
    context: ExecutionContext,
    command: str,
    folder: Handle,
    *,
    description: str | None,
    env: dict[str, str],
    stdin: bytes,
) -> ToolResult:
    """Start the command in an open folder as a shell that outlives this call and the worker that runs it.

    Raises:
        SandboxError: it cannot be started.
    """
    shells = Shells(context)
    execution_id = context.metadata.get(EXECUTION_ID)
    new = NewShell(
        command=command,
        cwd=folder.name,
        description=description,
        session_id=context.session_id,
        agent_id=context.agent_id,
        execution_id=execution_id if isinstance(execution_id, str) else None,
        env=env,
    )
    started: list[ShellFolder] = []

    def work() -> ShellFolder:
        line = [*find_shell(), "-c", command]
        where = shells.folder(is_made=True)
        started.append(start(where, shells.hostname, new, line, place=folder.fd, stdin=stdin))
        return started[0]

    try:
        shell = await Effort(context).run(work)
    except asyncio.CancelledError:
        for shell in started:  # nobody will ever hear of it
            shell.order("KILL", 0)
            shell.close()
        raise
    with shell:
        record = shell.record()
        with suppress(ForgeError):  # the shell runs all the same, and its host tells the book later
            await shells.note(record)
        return _answer(shell, {"cwd": folder.name, "description": description, "status": str(record.status)})


def _answer(shell: ShellFolder, facts: dict[str, Any]) -> ToolResult:
    text = f"Started in the background as {shell.id}.\n"
    text += f'Read what it writes with BashOutput(bash_id="{shell.id}"), end it with KillShell(shell_id="{shell.id}").'
    return ToolResult.ok(text, bash_id=shell.id, **facts)
