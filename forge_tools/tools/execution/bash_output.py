"""BashOutput: what a shell in the background has written, from a position on."""

from dataclasses import dataclass
from typing import Any

from forge_tools.model import ExecutionContext, ShellRecord, ShellStatus, ToolCategory, ToolResult
from forge_tools.sandbox.shells.folder import ShellFolder
from forge_tools.tools.builtin import ReadingTool, option, parameters_of
from forge_tools.tools.execution.reader import Page, Pattern, ShellReader
from forge_tools.tools.execution.shells import HANDLE, Shells, state_of

_NOTES_ROOM = 500
_MAX_SHOWN_LINE = 200
_WAIT_FOR_MS = 30_000
_MAX_POSITION = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Which shell is read, and what of it."""

    bash_id: str = option("The id that Bash gave when it started the shell.", aliases=("shell_id",), **HANDLE)
    since: int | None = option(
        "Read from this byte on: next_cursor of the answer before. Else from the last since you gave, or 0.",
        None, minimum=0, maximum=_MAX_POSITION,
    )  # fmt: skip
    filter: str | None = option(
        "Show only lines that match this regular expression (Rust syntax).", None, min_length=1, max_length=4096
    )
    wait_ms: int = option(
        "Wait so many milliseconds for output behind since, or for the shell to end.", 0, minimum=0, maximum=60_000
    )
    wait_for: str | None = option(
        "Wait until a line behind since matches this regular expression; 30 s where wait_ms is 0.",
        None, min_length=1, max_length=4096,
    )  # fmt: skip
    tail_lines: int | None = option("Show only so many lines, the last ones.", None, minimum=1, maximum=5000)


class BashOutput(ReadingTool):
    """Read what a shell that runs in the background has written; wait for more, or for a line, if asked.

    The same call gives the same lines again: only `since` moves on, so that an answer which got lost loses nothing.
    """

    name = "BashOutput"
    aliases = ("bash_output",)
    category = ToolCategory.EXECUTION
    parameters = parameters_of(Reading)

    async def _execute(self, context: ExecutionContext, **options: Any) -> ToolResult:
        asked, shells = Reading(**options), Shells(context)
        shell = shells.open(asked.bash_id)
        if shell is None:
            raise await shells.refusal(asked.bash_id)
        with shell:
            if not context.dry_run:
                shell.renew()
                if asked.since is not None:
                    shell.keep_cursor(context.agent_id, asked.since)
            begin = shell.cursor(context.agent_id) if asked.since is None else asked.since
            reader = ShellReader(shell, context)
            facts: dict[str, Any] = {}
            if asked.wait_ms or asked.wait_for:
                awaited = Pattern(asked.wait_for, shell.fd) if asked.wait_for else None
                line = await reader.wait(begin, (asked.wait_ms or _WAIT_FOR_MS) / 1000, awaited)
                if asked.wait_for:
                    facts = {"matched": line is not None, "matched_line": line, "searched_to": reader.left_at}
            record = await reader.status()
            room = max(1, context.max_output_size - min(_NOTES_ROOM, context.max_output_size // 2))
            chosen = Pattern(asked.filter, shell.fd) if asked.filter else None
            if asked.tail_lines is None:
                page = await reader.page(begin, room, chosen)
            else:
                page = await reader.tail(begin, room, asked.tail_lines, chosen)
            return _answer(shell, record, begin, page, facts)


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
    on = f"; {'more follows' if page.has_more else 'go on'} with since={page.next}"
    notes.append(f"[{how}{'' if is_done else on}]")
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
