"""Bash: one command, its output and how it ended."""

import signal
from typing import Any

from forge_tools.base import BaseTool
from forge_tools.errors import ErrorCode, InvalidCallError
from forge_tools.records import Capabilities, ExecutionContext, ToolCategory, ToolParameter, ToolResult
from forge_tools.sandbox.environment import child_environment
from forge_tools.sandbox.output import HeadTail, TerminalText
from forge_tools.sandbox.paths import Handle
from forge_tools.sandbox.process import Completed, run
from forge_tools.sandbox.programs import find_shell
from forge_tools.tools.deadline import Deadline

_MAX_ARGUMENT_BYTES = 131_071  # what Linux lets one argument of a process hold
_NOTES_ROOM = 160  # characters of the output kept free for how the command ended
_GRACE_SECONDS = 2.0
_SHOWN_COMMAND = 500


class Bash(BaseTool):
    """Run a command line in bash and return what it writes; a non-zero exit code is an answer, not a failure.

    Each call is a shell of its own in a scrubbed environment, without a terminal; what it leaves running is stopped.
    """

    name = "Bash"
    aliases = ("run_command",)
    category = ToolCategory.EXECUTION
    capabilities = Capabilities(writes_files=True, executes_commands=True, accesses_network=True)
    lane = "async"
    parameters = (
        ToolParameter(
            name="command",
            type="string",
            description="Command line for bash. Nothing can be typed into it while it runs.",
            min_length=1,
            max_length=100_000,
        ),
        ToolParameter(
            name="timeout",
            type="integer",
            description="Milliseconds after which the command and all it started are stopped.",
            required=False,
            default=120_000,
            minimum=1,
            maximum=600_000,
        ),
        ToolParameter(
            name="cwd",
            type="string",
            description="Folder to run in, inside the workspace; by default the working directory.",
            required=False,
            default=".",
            min_length=1,
            max_length=4096,
        ),
        ToolParameter(
            name="description",
            type="string",
            description="What the command is for, in a few words, for people who read the history.",
            required=False,
            max_length=200,
        ),
        ToolParameter(
            name="env",
            type="object",
            description="Further environment variables, names and texts.",
            required=False,
        ),
        ToolParameter(
            name="stdin",
            type="string",
            description="Text the command can read from standard input, which is empty otherwise.",
            required=False,
            max_length=1_000_000,
        ),
    )

    async def _execute(
        self,
        context: ExecutionContext,
        command: str,
        *,
        timeout: int = 120_000,
        cwd: str = ".",
        description: str | None = None,
        env: dict[str, Any] | None = None,
        stdin: str | None = None,
    ) -> ToolResult:
        call = _Call(context, command, timeout / 1000, env, stdin)
        with self.workspace(context).open_folder(cwd) as folder:
            kept, completed = await call.run(folder)
            return call.answer(kept, completed, {"cwd": folder.name, "description": description})

    async def _dry_run(
        self,
        context: ExecutionContext,
        command: str,
        *,
        timeout: int = 120_000,
        cwd: str = ".",
        description: str | None = None,
        env: dict[str, Any] | None = None,
        stdin: str | None = None,
    ) -> ToolResult:
        call = _Call(context, command, timeout / 1000, env, stdin)
        with self.workspace(context).open_folder(cwd) as folder:
            kept, completed = await call.run(folder, "-n")
            where = "the working directory" if folder.name == "." else f"{folder.name}/"
        shown = command if len(command) <= _SHOWN_COMMAND else f"{command[:_SHOWN_COMMAND]}..."
        text = f"[Dry Run] Would run in {where}: {shown} (timeout {round(call.seconds, 2):g}s)"
        is_valid = completed.exit_code == 0
        if not is_valid:
            text += f"\nThe shell would refuse it: {kept.render(_SHOWN_COMMAND)[0].strip()}"
        return ToolResult.ok(text, cwd=folder.name, description=description, is_valid=is_valid)


class _Call:
    """A command with all that is checked before it starts."""

    def __init__(
        self, context: ExecutionContext, command: str, seconds: float, env: dict[str, Any] | None, stdin: str | None
    ) -> None:
        _check_command(command)
        self._command = command
        self._environment = child_environment(_texts(env or {}))
        self._stdin = _encoded("stdin", stdin or "")
        self._max_chars = context.max_output_size
        deadline = Deadline(context)
        self.seconds = min(seconds, deadline.remaining)
        self._grace = min(_GRACE_SECONDS, (context.timeout - self.seconds) * 0.75)

    async def run(self, folder: Handle, *options: str) -> tuple[HeadTail, Completed]:
        kept = HeadTail(max(0, self._max_chars - _NOTES_ROOM))
        terminal = TerminalText(kept)

        def keep(data: bytes) -> bool:
            terminal.feed(data)
            return True

        completed = await run(
            [*find_shell(), *options, "-c", self._command],
            folder=folder.fd,
            environment=self._environment,
            timeout=self.seconds,
            stdout=keep,
            stdin=self._stdin,
            grace=self._grace,
        )
        terminal.finish()
        return kept, completed

    def answer(self, kept: HeadTail, completed: Completed, facts: dict[str, Any]) -> ToolResult:
        text, is_cut = kept.render(max(0, self._max_chars - _NOTES_ROOM))
        facts |= {
            "exit_code": completed.exit_code,
            "truncated": is_cut,
            "total_chars": kept.chars,
            "total_lines": kept.lines,
        }
        if completed.timed_out:
            error = f"Command timed out after {round(self.seconds, 2):g}s and was stopped with all it started."
            error += f" Output so far:\n{text}" if text.strip() else " It had written nothing."
            return ToolResult.fail(error, error_code=ErrorCode.TIMEOUT, **facts)
        notes = _notes(completed)
        if completed.signal:
            facts["signal"] = _signal_name(completed.signal)
        if completed.leftovers:
            facts["leftovers"] = completed.leftovers
        if notes and text and not text.endswith("\n"):
            text += "\n"
        return ToolResult.ok(text + "\n".join(notes) or "(no output)", **facts)


def _check_command(command: str) -> None:
    size = len(_encoded("command", command))
    if "\0" in command:
        raise InvalidCallError("command holds a NUL character, which no process can be given")
    if size > _MAX_ARGUMENT_BYTES:
        raise InvalidCallError(
            f"command is {size:,} bytes; the limit is {_MAX_ARGUMENT_BYTES:,}. Write it to a script and run that"
        )


def _texts(env: dict[str, Any]) -> dict[str, str]:
    wrong = next((name for name, value in env.items() if not isinstance(value, str)), None)
    if wrong is not None:
        raise InvalidCallError(f"Invalid type for env.{wrong}: expected string")
    for name, value in env.items():
        _encoded(f"env.{name}", name + value)
    return env


def _encoded(what: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidCallError(f"{what} holds half a surrogate pair, which is no character") from None


def _notes(completed: Completed) -> list[str]:
    notes = []
    if completed.leftovers:
        what = (
            "1 background process was"
            if completed.leftovers == 1
            else f"{completed.leftovers} background processes were"
        )
        notes.append(f"[{what} stopped when the command ended]")
    if completed.signal:
        notes.append(f"[killed by {_signal_name(completed.signal)}]")
    elif completed.exit_code:
        notes.append(f"[exit code: {completed.exit_code}]")
    return notes


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
