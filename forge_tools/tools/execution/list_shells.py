"""ListShells: the shells of a session, on all hosts."""

import asyncio
from typing import Any

from forge_tools.model import ExecutionContext, ShellRecord, ShellStatus, ToolCategory, ToolResult
from forge_tools.sandbox.shells.host import Usage, usage_of
from forge_tools.tools.builtin import ReadingTool, counted
from forge_tools.tools.execution.shells import Shells, label, state_of

_NOTE_ROOM = 150
_SHOWN_PORTS = 10


class ListShells(ReadingTool):
    """List the shells that this session has started in the background, those that are over included."""

    name = "ListShells"
    aliases = ("list_shells",)
    category = ToolCategory.EXECUTION
    parameters = ()

    async def _execute(self, context: ExecutionContext) -> ToolResult:
        shells = Shells(context)
        found = await shells.all()
        usage = await asyncio.to_thread(usage_of, [shell for shell in found if shell.hostname == shells.hostname])
        facts = [_facts(shell, usage.get(shell.id)) for shell in found]
        lines = [_line(shell, usage.get(shell.id)) for shell in found]
        running = sum(shell.status is ShellStatus.RUNNING for shell in found)
        text = _fit(lines, context.max_output_size) or "No shell has been started in this session"
        more = {"unknown": shells.unknown} if shells.unknown else {}
        text += f"\n[shells of other hosts are not known: {shells.unknown}]" if shells.unknown else ""
        return ToolResult.ok(text, shells=facts, running=running, total=len(found), **more)


def _facts(shell: ShellRecord, usage: Usage | None) -> dict[str, Any]:
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


def _line(shell: ShellRecord, usage: Usage | None) -> str:
    parts = [f"{shell.id}  {label(shell)}", state_of(shell)]
    parts.append(f"since {shell.started_at:%Y-%m-%d %H:%M:%S} UTC")
    parts.append(f"{shell.size:,} bytes written")
    if usage is not None:
        parts.append(counted(usage.processes, "process", "processes"))
        parts.append(f"{usage.rss_bytes / 1e6:.1f} MB")
        parts += [f"listens on {', '.join(map(str, usage.ports[:_SHOWN_PORTS]))}"] if usage.ports else []
    return "; ".join(parts)


def _fit(lines: list[str], max_chars: int) -> str:
    """The newest are last, and are kept where there is not room for all."""
    room = max(1, max_chars - _NOTE_ROOM)
    shown: list[str] = []
    for line in reversed(lines):
        room -= len(line) + 1
        if room < 0 and shown:
            break
        shown.append(line)
    left_out = [f"[{len(lines) - len(shown):,} older ones are left out]"] if len(shown) < len(lines) else []
    return "\n".join([*left_out, *reversed(shown)])
