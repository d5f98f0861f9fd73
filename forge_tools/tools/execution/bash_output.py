"""BashOutput: what a shell in the background has written, from a position on."""

from typing import Any

from forge_tools.base import BaseTool
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
from forge_tools.tools.execution.following import Following, Page
from forge_tools.tools.execution.patterns import Pattern
from forge_tools.tools.execution.shells import Shells
from forge_tools.tools.execution.wording import state_of

_NOTES_ROOM = 500
_MAX_SHOWN_LINE = 200
_WAIT_FOR_MS = 30_000
_MAX_POSITION = 1 << 62


class BashOutput(BaseTool):
    """Read what a shell that runs in the background has written; wait for more, or for a line, if asked.

    The same call gives the same lines again: only `since` moves on, so that an answer which got lost loses nothing.
    """

    name = "BashOutput"
    aliases = ("bash_output",)
    category = ToolCategory.EXECUTION
    capabilities = Capabilities(idempotent=True, retryable=True)
    lane = "async"
    parameters = (
        ToolParameter(
            name="bash_id",
            type="string",
            description="The id that Bash gave when it started the shell.",
            min_length=1,
            max_length=256,
            names_host=True,
            aliases=("shell_id",),
        ),
        ToolParameter(
            name="since",
            type="integer",
            description="Read from this byte on: next_cursor of the answer before. Else from the last since you gave, or 0.",
            required=False,
            minimum=0,
            maximum=_MAX_POSITION,
        ),
        ToolParameter(
            name="filter",
            type="string",
            description="Show only lines that match this regular expression (Rust syntax).",
            required=False,
            min_length=1,
            max_length=4096,
        ),
        ToolParameter(
            name="wait_ms",
            type="integer",
            description="Wait so many milliseconds for output behind since, or for the shell to end.",
            required=False,
            default=0,
            minimum=0,
            maximum=60_000,
        ),
        ToolParameter(
            name="wait_for",
            type="string",
            description="Wait until a line behind since matches this regular expression; 30 s where wait_ms is 0.",
            required=False,
            min_length=1,
            max_length=4096,
        ),
        ToolParameter(
            name="tail_lines",
            type="integer",
            description="Show only so many lines, the last ones.",
            required=False,
            minimum=1,
            maximum=5000,
        ),
    )

    async def _execute(
        self,
        context: ExecutionContext,
        bash_id: str,
        *,
        since: int | None = None,
        filter: str | None = None,
        wait_ms: int = 0,
        wait_for: str | None = None,
        tail_lines: int | None = None,
    ) -> ToolResult:
        shells = Shells(context)
        shell = shells.open(bash_id)
        if shell is None:
            raise await shells.refusal(bash_id)
        with shell:
            if not context.dry_run:
                shell.renew()
                if since is not None:
                    shell.keep_cursor(context.agent_id, since)
            begin = shell.cursor(context.agent_id) if since is None else since
            following = Following(shell, context)
            facts: dict[str, Any] = {}
            if wait_ms or wait_for:
                awaited = Pattern(wait_for, shell.fd) if wait_for else None
                line = await following.wait(begin, (wait_ms or _WAIT_FOR_MS) / 1000, awaited)
                if wait_for:
                    facts = {"matched": line is not None, "matched_line": line, "searched_to": following.left_at}
            record = await following.status()
            room = max(1, context.max_output_size - min(_NOTES_ROOM, context.max_output_size // 2))
            chosen = Pattern(filter, shell.fd) if filter else None
            if tail_lines is None:
                page = await following.page(begin, room, chosen)
            else:
                page = await following.tail(begin, room, tail_lines, chosen)
            return _answer(shell, record, begin, page, facts)

    async def _dry_run(self, context: ExecutionContext, **options: Any) -> ToolResult:
        result = await self._execute(context, **options)
        if result.success:
            result.output = f"[Dry Run] {result.output}"
        return result


def _answer(shell: ShellFolder, record: ShellRecord, since: int, page: Page, facts: dict[str, Any]) -> ToolResult:
    runtime, age = shell.runtime_seconds(), shell.quiet_seconds()
    facts = {
        "bash_id": shell.id,
        "status": str(record.status),
        "exit_code": record.exit_code,
        "signal": record.signal,
        "since": since,
        "next_cursor": page.next,
        "size": max(record.size, page.next),
        "dropped_bytes": page.dropped,
        "truncated": page.has_more,
        "runtime_s": runtime,
        "last_output_age_s": age,
        **facts,
    }
    if page.has_more:
        facts["next"] = {"bash_id": shell.id, "since": page.next}
    text = page.text
    if text and not text.endswith("\n"):
        text += "\n"
    notes = _notes(facts)
    is_done = record.status is not ShellStatus.RUNNING and not page.has_more
    how = _how(record, runtime)
    notes.append(
        f"[{how}]" if is_done else f"[{how}; {'more follows' if page.has_more else 'go on'} with since={page.next}]"
    )
    return ToolResult.ok((text or "(no new output)\n") + "\n".join(notes), **facts)


def _how(record: ShellRecord, runtime: float | None) -> str:
    if runtime is None:
        return state_of(record)
    return f"{state_of(record)} {'for' if record.status is ShellStatus.RUNNING else 'after'} {runtime:g}s"


def _notes(facts: dict[str, Any]) -> list[str]:
    notes = []
    if facts["since"] > facts["size"]:
        notes.append(f"[since={facts['since']} is behind the end: {facts['size']:,} bytes were written]")
    if line := facts.get("matched_line"):
        notes.append(f"[found: {line[:_MAX_SHOWN_LINE]}]")
    elif facts.get("matched") is False:
        to = facts["searched_to"]
        notes.append(f"[no line has matched wait_for{'' if to is None else f' before byte {to:,}: the time was over'}]")
    return notes
