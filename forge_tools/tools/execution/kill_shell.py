"""KillShell: ends a shell in the background with all that it started."""

import asyncio
import time
from dataclasses import dataclass
from typing import Any, Literal

from forge_tools.errors import ErrorCode
from forge_tools.model import Capabilities, ExecutionContext, ShellRecord, ShellStatus, ToolCategory, ToolResult
from forge_tools.sandbox.shells.folder import ShellFolder
from forge_tools.sandbox.shells.host import usage_of
from forge_tools.tools.builtin import BuiltinTool, counted, option, parameters_of
from forge_tools.tools.deadline import Deadline
from forge_tools.tools.execution.shells import HANDLE, Shells, exit_of, named, state_of

_FIRST_PAUSE, _LONGEST_PAUSE = 0.002, 0.02
_PATIENCE_SECONDS = 12.0  # behind the grace: for processes that are stuck in the kernel, which KILL reaches late


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Which shell is ended, and how."""

    shell_id: str = option("The id that Bash gave when it started the shell.", aliases=("bash_id",), **HANDLE)
    signal: Literal["TERM", "INT", "KILL"] = option(
        "What it is asked to end with: TERM, INT as from a terminal; or KILL, which asks nobody.", "TERM"
    )
    grace_ms: int = option("Milliseconds after which what has not ended is killed.", 2000, minimum=0, maximum=30_000)


class KillShell(BuiltinTool):
    """End a shell that runs in the background, with every process it has started."""

    name = "KillShell"
    aliases = ("kill_shell",)
    category = ToolCategory.EXECUTION
    capabilities = Capabilities(executes_commands=True, idempotent=True, retryable=True)
    parameters = parameters_of(Order)

    async def _execute(self, context: ExecutionContext, **options: Any) -> ToolResult:
        asked, shells, deadline = Order(**options), Shells(context), Deadline(context.timeout)
        shell = shells.open(asked.shell_id)
        if shell is None:
            return await self._elsewhere(shells, asked.shell_id)
        with shell:
            before = await deadline.run(shell.record)
            if before.status is not ShellStatus.RUNNING:
                return _over(before)
            grace = min(asked.grace_ms / 1000, deadline.remaining / 2)
            shell.order(asked.signal, grace)
            await _ended(shell, min(grace + _PATIENCE_SECONDS, deadline.remaining))
            after = await deadline.run(shell.record)
            if after.status is not ShellStatus.RUNNING:
                return _stopped(after, shell.facts())
        what = f"{named(after)} has been told to end, and has not yet. Call KillShell again to see whether it has"
        return ToolResult.fail(what, error_code=ErrorCode.TIMEOUT, bash_id=after.id, status=str(after.status))

    async def _dry_run(self, context: ExecutionContext, **options: Any) -> ToolResult:
        asked, shells, deadline = Order(**options), Shells(context), Deadline(context.timeout)
        shell = shells.open(asked.shell_id)
        if shell is None:
            return await self._elsewhere(shells, asked.shell_id)
        with shell:
            record = await deadline.run(shell.record)
        usage = (await deadline.run(lambda: usage_of([record]))).get(record.id)
        if usage is None:
            return _over(record)
        how = "kill" if asked.signal == "KILL" else f"send SIG{asked.signal} to"
        text = f"[Dry Run] Would {how} {named(record)}: {counted(usage.processes, 'process', 'processes')}"
        text += "" if asked.signal == "KILL" else f", and kill what is left after {asked.grace_ms / 1000:g}s"
        return ToolResult.ok(text, bash_id=record.id, status=str(record.status), processes=usage.processes)

    async def _elsewhere(self, shells: Shells, handle: str) -> ToolResult:
        """What is over needs no one to end it, wherever it was."""
        record = await shells.elsewhere(handle)
        if record is not None and record.status is not ShellStatus.RUNNING:
            return _over(record)
        raise await shells.refusal(handle)


async def _ended(shell: ShellFolder, seconds: float) -> None:
    """Wait until it is over, at most so long."""
    until, pause = time.monotonic() + seconds, _FIRST_PAUSE
    while shell.is_going_on() and time.monotonic() < until:
        shell.rouse()
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, _LONGEST_PAUSE)


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
    facts = _facts(record, already_exited=False, processes=processes, took_s=seconds, left=left or 0)
    return ToolResult.ok(text, **facts)
