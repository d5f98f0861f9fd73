"""ListShells, KillShell, and the shells visible to a call: those of its session, found by folder or in the book."""

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from forge_tools.errors import ErrorCode, ForgeError, SandboxError
from forge_tools.model import Capabilities, ExecutionContext, ToolCategory, ToolResult
from forge_tools.model.places import ShellRecord, ShellStatus, host_of
from forge_tools.sandbox.reach import REACH
from forge_tools.sandbox.shells.folder import ShellFolder
from forge_tools.sandbox.shells.host import Usage, find, hostname_of, shells_folder, survey, usage_of
from forge_tools.signals import signal_name
from forge_tools.tools.builtin import BuiltinTool, Deadline, ReadingTool, counted, option

SHELL_NOT_FOUND = "SHELL_NOT_FOUND"
SHELL_HOST_UNAVAILABLE = "SHELL_HOST_UNAVAILABLE"

HANDLE: dict[str, Any] = {"min_length": 1, "max_length": 256, "names_host": True}
"""The constraints on the id of a shell, and that it names a host."""

_MAX_NAMED = 3
_MAX_LABEL = 60
_SHOWN_PORTS = 10
_FIRST_PAUSE, _LONGEST_PAUSE = 0.002, 0.02
PATIENCE_SECONDS = 12.0
"""How long to wait beyond the grace: for processes stuck in the kernel, which KILL reaches late."""


class Shells:
    """The shells visible to one call. Another session's shell looks as if it did not exist."""

    def __init__(self, context: ExecutionContext) -> None:
        self._reach = REACH.get()
        self._session = context.session_id
        self.hostname = hostname_of(self._reach)
        self.unknown: str | None = None
        """Why nothing is known of other hosts, once a query has failed."""

    def folder(self, *, is_made: bool = False) -> Path:
        return shells_folder(self._reach, is_made=is_made)

    async def note(self, shell: ShellRecord) -> None:
        """Record it in the book, if there is one."""
        if self._reach.book is not None:
            await self._reach.book.record(shell)

    def open(self, handle: str) -> ShellFolder | None:
        """Open the folder of a shell of this session on this host; None if there is none. Blocks for a moment."""
        shell = find(self.folder(), handle)
        if shell is not None and shell.session_id != self._session:
            shell.close()
            return None
        return shell

    async def elsewhere(self, handle: str) -> ShellRecord | None:
        """Return the book's record of a shell of this session that has no folder here."""
        shell = await self._reach.book.find(handle) if self._reach.book is not None else None
        return shell if shell is not None and shell.session_id == self._session else None

    async def all(self) -> list[ShellRecord]:
        """List the shells of this session, the oldest first. This host's own records take precedence for its shells."""
        here = await asyncio.to_thread(survey, self.folder())
        known: dict[str, ShellRecord] = {}
        if self._reach.book is not None:
            try:
                known = {shell.id: shell for shell in await self._reach.book.of_session(self._session)}
            except ForgeError as error:  # the shells of this host can still be listed
                self.unknown = error.message
        known |= {shell.id: shell for shell in here if shell.session_id == self._session}
        return sorted(known.values(), key=lambda shell: (shell.started_at, shell.id))

    async def refusal(self, handle: str) -> SandboxError:
        """Say why there is nothing to read or end here."""
        shell = await self.elsewhere(handle)
        if shell is None:
            return await self._not_found(handle)
        if host_of(handle) == self.hostname:
            what = f"The output of {named(shell)} on host {self.hostname} is gone"
            return SandboxError(f"{what}; its last known status: {shell.status}", SHELL_NOT_FOUND)
        if shell.status is ShellStatus.LOST:
            what = f"{named(shell)} is lost with its output: host {shell.hostname} is gone, or was restarted"
            return SandboxError(what, SHELL_HOST_UNAVAILABLE)
        what = f"{named(shell)} is on host {shell.hostname}; this call reached {self.hostname}. "
        what += f"Send it to a worker on {shell.hostname}: the queue is host.{shell.hostname}"
        return SandboxError(what, SHELL_HOST_UNAVAILABLE)

    async def _not_found(self, handle: str) -> SandboxError:
        running = [shell for shell in await self.all() if shell.status is ShellStatus.RUNNING]
        shown = ", ".join(map(named, running[-_MAX_NAMED:]))
        more = f" and {len(running) - _MAX_NAMED} more; see ListShells" if len(running) > _MAX_NAMED else ""
        tail = f"Running: {shown}{more}" if running else "None is running"
        brief = handle if len(handle) <= 80 else f"{handle[:77]}..."
        brief = brief if brief.isprintable() else ascii(brief)
        return SandboxError(f"No shell {brief} in this session. {tail}", SHELL_NOT_FOUND)


def _label(shell: ShellRecord) -> str:
    text = " ".join((shell.description or shell.command).split())
    return text if len(text) <= _MAX_LABEL else f"{text[: _MAX_LABEL - 3]}..."


def named(shell: ShellRecord) -> str:
    return f"{shell.id} ({_label(shell)})"


def exit_of(shell: ShellRecord) -> str | None:
    """Return how its command ended, if that is known: `exit code 1`, `SIGTERM`."""
    if shell.signal is not None:
        return signal_name(shell.signal)
    return None if shell.exit_code is None else f"exit code {shell.exit_code}"


def state_of(shell: ShellRecord) -> str:
    """`running`, `exited with exit code 1`, ..."""
    how = exit_of(shell)
    if shell.status is ShellStatus.LOST:
        return "lost: its supervisor disappeared, so how it ended is unknown"
    if shell.status is ShellStatus.RUNNING:
        return f"the command itself ended with {how}, but processes that it started still run" if how else "running"
    return f"{shell.status} with {how}" if how else str(shell.status)


def facts_of(shell: ShellRecord) -> dict[str, Any]:
    return {"bash_id": shell.id, "status": str(shell.status), "exit_code": shell.exit_code, "signal": shell.signal}


class ListShells(ReadingTool):
    """List the background shells of this session, including those that have ended."""

    name = "ListShells"
    aliases = ("list_shells",)
    category = ToolCategory.EXECUTION
    walls = "namespace"

    async def _execute(self, context: ExecutionContext) -> ToolResult:
        shells = Shells(context)
        found = await shells.all()
        usage = await asyncio.to_thread(usage_of, [shell for shell in found if shell.hostname == shells.hostname])
        facts = [_listed_facts(shell, usage.get(shell.id)) for shell in found]
        lines = [_listed_line(shell, usage.get(shell.id)) for shell in found]
        running = sum(shell.status is ShellStatus.RUNNING for shell in found)
        text, more = "\n".join(lines) or "No shell has been started in this session", {}
        if shells.unknown:
            more = {"unknown": shells.unknown}
            text += f"\n[the shells of other hosts are not known: {shells.unknown}]"
        return ToolResult.ok(text, shells=facts, running=running, total=len(found), **more)


def _listed_facts(shell: ShellRecord, usage: Usage | None) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "id": shell.id,
        "host": shell.hostname,
        "command": shell.command[:500],
        "description": shell.description,
        "cwd": shell.cwd,
        "status": str(shell.status),
        "exit_code": shell.exit_code,
        "signal": shell.signal,
        "bytes": shell.size,
        "started_at": shell.started_at.isoformat(timespec="milliseconds"),
        "ended_at": shell.ended_at and shell.ended_at.isoformat(timespec="milliseconds"),
    }
    if usage is not None:
        facts |= {"processes": usage.processes, "rss_bytes": usage.rss_bytes, "cpu_s": usage.cpu_s}
        facts |= {"listening": list(usage.ports)} if usage.ports else {}
    return facts


def _listed_line(shell: ShellRecord, usage: Usage | None) -> str:
    since = f"since {shell.started_at:%Y-%m-%d %H:%M:%S} UTC"
    parts = [f"{shell.id}  {_label(shell)}", state_of(shell), since, f"{shell.size:,} bytes written"]
    if usage is not None:
        parts += [counted(usage.processes, "process", "processes"), f"{usage.rss_bytes / 1e6:.1f} MB"]
        parts += [f"listens on {', '.join(map(str, usage.ports[:_SHOWN_PORTS]))}"] if usage.ports else []
    return "; ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    shell_id: str = option("The id that Bash gave when it started the shell.", aliases=("bash_id",), **HANDLE)
    signal: Literal["TERM", "INT", "KILL"] = option(
        "Signal to end it with: TERM, INT as from a terminal, or KILL, which cannot be refused.", "TERM"
    )
    grace_ms: int = option(
        "Milliseconds after which the processes that have not ended are killed.", 2000, minimum=0, maximum=30_000
    )


class KillShell(BuiltinTool):
    """End a background shell, with every process that it has started."""

    name = "KillShell"
    aliases = ("kill_shell",)
    category = ToolCategory.EXECUTION
    walls = "namespace"
    capabilities = Capabilities(executes_commands=True, idempotent=True, retryable=True)
    options = Order

    async def _execute(self, context: ExecutionContext, **options: Any) -> ToolResult:
        asked, shells, deadline = Order(**options), Shells(context), Deadline(context.timeout)
        shell = shells.open(asked.shell_id)
        if shell is None:
            elsewhere = await shells.elsewhere(asked.shell_id)
            if elsewhere is None or elsewhere.status is ShellStatus.RUNNING:
                raise await shells.refusal(asked.shell_id)
            return _over(elsewhere)
        with shell:
            record = await deadline.run(shell.record)
            if record.status is not ShellStatus.RUNNING:
                return _over(record)
            if context.dry_run:
                return await deadline.run(lambda: _foreseen(record, asked))
            # The other half is for the end of those that have to be killed.
            grace = min(asked.grace_ms / 1000, deadline.remaining / 2)
            shell.order(asked.signal, grace)
            await _ended(shell, min(grace + PATIENCE_SECONDS, deadline.remaining))
            after = await deadline.run(shell.record)
            if after.status is not ShellStatus.RUNNING:
                return _stopped(after, shell.facts())
        what = f"{named(after)} was told to end, but has not ended yet. Call KillShell again to see whether it has"
        return ToolResult.fail(what, error_code=ErrorCode.TIMEOUT, bash_id=after.id, status=str(after.status))

    async def _dry_run(self, context: ExecutionContext, **options: Any) -> ToolResult:
        return await self._execute(context, **options)


def _foreseen(record: ShellRecord, asked: Order) -> ToolResult:
    usage = usage_of([record]).get(record.id)
    if usage is None:
        return _over(record)
    how = "kill" if asked.signal == "KILL" else f"send SIG{asked.signal} to"
    text = f"[Dry Run] Would {how} {named(record)}: {counted(usage.processes, 'process', 'processes')}"
    text += "" if asked.signal == "KILL" else f", and kill what is left after {asked.grace_ms / 1000:g}s"
    return ToolResult.ok(text, bash_id=record.id, status=str(record.status), processes=usage.processes)


async def _ended(shell: ShellFolder, seconds: float) -> None:
    until, pause = time.monotonic() + seconds, _FIRST_PAUSE
    while shell.is_going_on() and time.monotonic() < until:
        shell.rouse()
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, _LONGEST_PAUSE)


def _over(record: ShellRecord) -> ToolResult:
    return ToolResult.ok(f"{named(record)} is over: {state_of(record)}", **facts_of(record), already_exited=True)


def _stopped(record: ShellRecord, facts: dict[str, Any]) -> ToolResult:
    if facts.get("ended_by") is None:  # it ended by itself after our request
        return _over(record)
    seconds, processes = facts.get("took_s"), facts.get("processes", 0)
    parts = [counted(processes, "process", "processes")]
    if how := exit_of(record):
        parts.append(how if how.startswith("exit") else f"exit {how}")
    text = f"Stopped {named(record)}: {', '.join(parts)}, after {seconds:.1f} s"
    if left := facts.get("left"):
        text += f". {counted(left, 'process', 'processes')} could not be ended"
    more = {"already_exited": False, "processes": processes, "took_s": seconds, "left": left or 0}
    return ToolResult.ok(text, **facts_of(record), **more)
