"""KillShell: ends a shell in the background with all that it started."""

import asyncio
import time
from typing import Any

from forge_tools.base import BaseTool
from forge_tools.errors import ErrorCode
from forge_tools.records import (
    Capabilities,
    ExecutionContext,
    ShellRecord,
    ShellStatus,
    ToolCategory,
    ToolParameter,
    ToolResult,
)
from forge_tools.sandbox.shells.folder import ShellFolder
from forge_tools.sandbox.shells.host import usage_of
from forge_tools.tools.deadline import Deadline
from forge_tools.tools.execution.shells import Shells
from forge_tools.tools.execution.wording import counted, exit_of, named, state_of
from forge_tools.tools.file.effort import Effort

_FIRST_PAUSE, _LONGEST_PAUSE = 0.002, 0.02
_PATIENCE_SECONDS = 12.0  # behind the grace: for processes that are stuck in the kernel, which KILL reaches late


class KillShell(BaseTool):
    """End a shell that runs in the background, with every process it has started."""

    name = "KillShell"
    aliases = ("kill_shell",)
    category = ToolCategory.EXECUTION
    capabilities = Capabilities(executes_commands=True, idempotent=True, retryable=True)
    lane = "async"
    parameters = (
        ToolParameter(
            name="shell_id",
            type="string",
            description="The id that Bash gave when it started the shell.",
            min_length=1,
            max_length=256,
            names_host=True,
            aliases=("bash_id",),
        ),
        ToolParameter(
            name="signal",
            type="string",
            description="What it is asked to end with: TERM, INT as from a terminal; or KILL, which asks nobody.",
            required=False,
            default="TERM",
            enum=["TERM", "INT", "KILL"],
        ),
        ToolParameter(
            name="grace_ms",
            type="integer",
            description="Milliseconds after which what has not ended is killed.",
            required=False,
            default=2000,
            minimum=0,
            maximum=30_000,
        ),
    )

    async def _execute(
        self, context: ExecutionContext, shell_id: str, *, signal: str = "TERM", grace_ms: int = 2000
    ) -> ToolResult:
        shells = Shells(context)
        shell = shells.open(shell_id)
        if shell is None:
            return await self._elsewhere(shells, shell_id)
        with shell:
            before = await Effort(context).run(shell.record)
            if before.status is not ShellStatus.RUNNING:
                return _over(before)
            deadline = Deadline(context)
            grace = min(grace_ms / 1000, deadline.remaining / 2)
            shell.order(signal, grace)
            after = await _ended(shell, context, min(grace + _PATIENCE_SECONDS, deadline.remaining))
            if after.status is ShellStatus.RUNNING:
                what = (
                    f"{named(after)} has been told to end, and has not yet. Call KillShell again to see whether it has"
                )
                return ToolResult.fail(what, error_code=ErrorCode.TIMEOUT, bash_id=after.id, status=str(after.status))
            return _stopped(after, shell.facts())

    async def _dry_run(
        self, context: ExecutionContext, shell_id: str, *, signal: str = "TERM", grace_ms: int = 2000
    ) -> ToolResult:
        shells = Shells(context)
        shell = shells.open(shell_id)
        if shell is None:
            return await self._elsewhere(shells, shell_id)
        with shell:
            record = await Effort(context).run(shell.record)
        usage = (await Effort(context).run(lambda: usage_of([record]))).get(record.id)
        if usage is None:
            return _over(record)
        processes = usage.processes
        how = "kill" if signal == "KILL" else f"send SIG{signal} to"
        text = f"[Dry Run] Would {how} {named(record)}: {counted(processes, 'process', 'processes')}"
        text += "" if signal == "KILL" else f", and kill what is left after {grace_ms / 1000:g}s"
        return ToolResult.ok(text, bash_id=record.id, status=str(record.status), processes=processes)

    async def _elsewhere(self, shells: Shells, handle: str) -> ToolResult:
        """What is over needs no one to end it, wherever it was."""
        record = await shells.elsewhere(handle)
        if record is not None and record.status is not ShellStatus.RUNNING:
            return _over(record)
        raise await shells.refusal(handle)


async def _ended(shell: ShellFolder, context: ExecutionContext, seconds: float) -> ShellRecord:
    """Wait until it is over, at most so long."""
    until, pause = time.monotonic() + seconds, _FIRST_PAUSE
    while shell.is_going_on() and time.monotonic() < until:
        shell.rouse()
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, _LONGEST_PAUSE)
    return await Effort(context).run(shell.record)


def _facts(record: ShellRecord, **more: Any) -> dict[str, Any]:
    known = {"bash_id": record.id, "status": str(record.status), "exit_code": record.exit_code, "signal": record.signal}
    return known | more


def _over(record: ShellRecord) -> ToolResult:
    return ToolResult.ok(f"{named(record)} is over: {state_of(record)}", **_facts(record, already_exited=True))


def _stopped(record: ShellRecord, facts: dict[str, Any]) -> ToolResult:
    if facts.get("ended_by") is None:  # it ended by itself as we asked it to
        return _over(record)
    seconds, processes = facts.get("took_s"), facts.get("processes", 0)
    parts = [counted(processes, "process", "processes")]
    if how := exit_of(record):
        parts.append(how if how.startswith("exit") else f"exit {how}")
    text = f"Stopped {named(record)}: {', '.join(parts)}, after {seconds:.1f} s"
    if left := facts.get("left"):
        text += f". {counted(left, 'process', 'processes')} could not be ended"
    return ToolResult.ok(
        text, **_facts(record, already_exited=False, processes=processes, took_s=seconds, left=left or 0)
    )
