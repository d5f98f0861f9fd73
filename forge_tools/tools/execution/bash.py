"""Bash: one command, its output and how it ended."""

import asyncio
import math
from typing import Any

from forge_tools.base import BaseTool
from forge_tools.errors import ErrorCode, InvalidCallError
from forge_tools.records import Capabilities, ExecutionContext, ToolCategory, ToolParameter, ToolResult
from forge_tools.sandbox.artifacts import keep_text
from forge_tools.sandbox.paths.confinement import Handle
from forge_tools.sandbox.paths.names import MAX_PATH_CHARS
from forge_tools.sandbox.processes.commands import Completed, find_shell, run
from forge_tools.sandbox.processes.environment import child_environment
from forge_tools.sandbox.processes.output import HeadTail, TerminalText
from forge_tools.sandbox.reach import REACH
from forge_tools.tools.deadline import Deadline
from forge_tools.tools.execution.background import start_shell
from forge_tools.tools.execution.wording import counted, signal_name

_MAX_ARGUMENT_BYTES = 131_071  # what Linux lets one argument of a process hold
_NOTES_ROOM = 160  # characters of the output kept free for how the command ended
_GRACE_SECONDS = 2.0
_PARTING_SECONDS = 0.5  # what a call that is being cancelled may take to keep its output
_SHOWN_COMMAND = 500


class Bash(BaseTool):
    """Run a command line in bash and return what it writes; a non-zero exit code is an answer, not a failure.

    Each call is a shell of its own in a scrubbed environment, without a terminal; what it leaves running is stopped, unless
    it runs in the background.
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
            description="Milliseconds after which the command and all it started are stopped; not where it runs in background.",
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
            max_length=MAX_PATH_CHARS,
        ),
        ToolParameter(
            name="description",
            type="string",
            description="What the command is for, in a few words, for people who read the history.",
            required=False,
            max_length=200,
        ),
        ToolParameter(
            name="run_in_background",
            type="boolean",
            description="Return at once with a bash_id, for BashOutput and KillShell; the command goes on.",
            required=False,
            default=False,
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
        run_in_background: bool = False,
        env: dict[str, Any] | None = None,
        stdin: str | None = None,
    ) -> ToolResult:
        call = _Call(context, command, timeout / 1000, env, stdin)
        with self.workspace(context).open_folder(cwd) as folder:
            if run_in_background:
                return await call.start(folder, description)
            kept, completed = await call.run(folder)
            facts = {"cwd": folder.name, "description": description, **await call.keep(kept)}
            return call.answer(kept, completed, facts)

    async def _dry_run(
        self,
        context: ExecutionContext,
        command: str,
        *,
        timeout: int = 120_000,
        cwd: str = ".",
        description: str | None = None,
        run_in_background: bool = False,
        env: dict[str, Any] | None = None,
        stdin: str | None = None,
    ) -> ToolResult:
        call = _Call(context, command, timeout / 1000, env, stdin)
        with self.workspace(context).open_folder(cwd) as folder:
            kept, completed = await call.run(folder, "-n")
            where = "the working directory" if folder.name == "." else f"{folder.name}/"
        shown = command if len(command) <= _SHOWN_COMMAND else f"{command[:_SHOWN_COMMAND]}..."
        how, limit = "run", f" (timeout {round(call.seconds, 2):g}s)"
        if run_in_background:
            how, limit = "start in the background", ""
        text = f"[Dry Run] Would {how} in {where}: {shown}{limit}"
        is_valid = completed.exit_code == 0
        if not is_valid:
            text += f"\nThe shell would refuse it: {kept.show(_SHOWN_COMMAND)[0].strip()}"
        return ToolResult.ok(text, cwd=folder.name, description=description, is_valid=is_valid)


class _Call:
    """A command with all that is checked before it starts."""

    def __init__(
        self, context: ExecutionContext, command: str, seconds: float, env: dict[str, Any] | None, stdin: str | None
    ) -> None:
        _check_command(command)
        self._context = context
        self._command = command
        self._variables = _texts(env or {})
        self._environment = child_environment(self._variables)
        self._stdin = _encoded("stdin", stdin or "")
        self._max_chars = context.max_output_size
        self._deadline = Deadline(context)
        self.seconds = min(seconds, self._deadline.remaining)
        self._grace = min(_GRACE_SECONDS, (context.timeout - self.seconds) * 0.75)

    async def start(self, folder: Handle, description: str | None) -> ToolResult:
        return await start_shell(
            self._context, self._command, folder, description=description, env=self._variables, stdin=self._stdin
        )

    async def run(self, folder: Handle, *options: str) -> tuple[HeadTail, Completed]:
        artifacts = REACH.get().artifacts
        room, whole_bytes = max(0, self._max_chars - _NOTES_ROOM), artifacts.max_bytes if artifacts else 0
        kept = HeadTail(room, whole_bytes) if options else _Shown(room, whole_bytes, self._context)
        terminal = TerminalText(kept)

        def take(data: bytes) -> bool:
            terminal.feed(data)
            return True

        try:
            completed = await run(
                [*find_shell(), *options, "-c", self._command],
                folder=folder.fd,
                environment=self._environment,
                timeout=self.seconds,
                stdout=take,
                stdin=self._stdin,
                grace=self._grace,
            )
        except asyncio.CancelledError:  # its result is nobody's; what it wrote is found by the execution
            terminal.finish()
            await self.keep(kept, _PARTING_SECONDS)
            raise
        terminal.finish()
        return kept, completed

    async def keep(self, kept: HeadTail, seconds: float = math.inf) -> dict[str, Any]:
        """Keep what is too long to be shown whole, in what is left of the time."""
        whole, left = kept.whole, self._deadline.until_the_end * 0.9
        return {} if whole is None else await keep_text(whole, self._context, min(seconds, left))

    def answer(self, kept: HeadTail, completed: Completed, facts: dict[str, Any]) -> ToolResult:
        text, shown = kept.show(max(0, self._max_chars - _NOTES_ROOM), facts.get("artifact"))
        facts |= {"exit_code": completed.exit_code, **shown}
        if completed.timed_out:
            error = f"Command timed out after {round(self.seconds, 2):g}s and was stopped with all it started."
            error += f" Output so far:\n{text}" if text.strip() else " It had written nothing."
            return ToolResult.fail(error, error_code=ErrorCode.TIMEOUT, **facts)
        notes = _notes(completed)
        if completed.signal:
            facts["signal"] = signal_name(completed.signal)
        if completed.leftovers:
            facts["leftovers"] = completed.leftovers
        if notes and text and not text.endswith("\n"):
            text += "\n"
        return ToolResult.ok(text + "\n".join(notes) or "(no output)", **facts)


class _Shown(HeadTail):
    """Output that whoever follows the call sees while it comes."""

    def __init__(self, limit: int, whole_bytes: int, context: ExecutionContext) -> None:
        super().__init__(limit, whole_bytes)
        self._context = context

    def add(self, text: str) -> None:
        super().add(text)
        self._context.emit(text)


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
        what = counted(completed.leftovers, "background process was", "background processes were")
        keeps = "it" if completed.leftovers == 1 else "them"
        notes.append(f"[{what} stopped when the command ended; run_in_background=true keeps {keeps}]")
    if completed.signal:
        notes.append(f"[killed by {signal_name(completed.signal)}]")
    elif completed.exit_code:
        notes.append(f"[exit code: {completed.exit_code}]")
    return notes
