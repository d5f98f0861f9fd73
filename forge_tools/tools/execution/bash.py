"""Bash: one command, its output and how it ended; in the background, a shell that other calls read and stop."""

import asyncio
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from forge_tools.errors import ErrorCode, ForgeError, InvalidCallError
from forge_tools.model import Capabilities, ExecutionContext, ToolCategory, ToolResult
from forge_tools.sandbox.artifacts import keep_text
from forge_tools.sandbox.paths.confinement import Handle, Root
from forge_tools.sandbox.processes.commands import Completed, find_shell, run
from forge_tools.sandbox.processes.environment import child_environment
from forge_tools.sandbox.processes.output import HeadTail, TerminalText
from forge_tools.sandbox.reach import REACH
from forge_tools.sandbox.shells.folder import ShellFolder
from forge_tools.sandbox.shells.host import NewShell, start
from forge_tools.sandbox.walls.cgroups import Limits
from forge_tools.signals import signal_name
from forge_tools.tools.builtin import PATH, BuiltinTool, Deadline, counted, option
from forge_tools.tools.execution.shells import Shells

_MAX_ARGUMENT_BYTES = 131_071  # the limit of Linux for one argument of a process
_NOTES_ROOM = 160  # characters of the output reserved for how the command ended
_GRACE_SECONDS = 2.0
_PARTING_SECONDS = 0.5  # how long a cancelled call may take to keep its output
_SHOWN_COMMAND = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    command: str = option(
        "Command line for bash. Nothing can be typed into it while it runs.", min_length=1, max_length=100_000
    )
    timeout: int = option(
        "Milliseconds after which the command and all it started are stopped; not used in the background.",
        120_000, minimum=1, maximum=600_000,
    )  # fmt: skip
    cwd: str = option("Folder to run in, inside the workspace; by default the working directory.", ".", **PATH)
    description: str | None = option(
        "What the command is for, in a few words, for people who read the history.", None, max_length=200
    )
    run_in_background: bool = option(
        "Return at once with a bash_id, for BashOutput and KillShell; the command goes on.", default=False
    )
    env: Mapping[str, Any] | None = option("Additional environment variables, as names and texts.", None)
    stdin: str | None = option(
        "Text for the command's standard input, which is empty by default.", None, max_length=1_000_000
    )


class Bash(BuiltinTool):
    """Run a command line in bash and return its output; a non-zero exit code is an answer, not a failure.

    Each call has its own shell, with a scrubbed environment and no terminal; what it leaves running is stopped, unless
    it runs in the background. Only files in the workspace are certain to be there for the next call: /tmp may not be kept.
    """

    name = "Bash"
    aliases = ("run_command",)
    category = ToolCategory.EXECUTION
    walls = "namespace"
    capabilities = Capabilities(writes_files=True, executes_commands=True, accesses_network=True)
    options = Command

    async def _execute(self, context: ExecutionContext, **options: Any) -> ToolResult:
        workspace = self.workspace(context)
        call = _Call(context, Command(**options), workspace.roots)
        with workspace.open_folder(call.asked.cwd) as folder:
            if call.asked.run_in_background:
                return await call.start(folder)
            kept, completed = await call.run(folder)
            return call.answer(kept, completed, folder, await call.keep(kept))

    async def _dry_run(self, context: ExecutionContext, **options: Any) -> ToolResult:
        workspace = self.workspace(context)
        call = _Call(context, asked := Command(**options), workspace.roots)
        with workspace.open_folder(asked.cwd) as folder:
            kept, completed = await call.run(folder, "-n")  # bash parses the command, and runs nothing
        where = "the working directory" if folder.name == "." else f"{folder.name}/"
        shown = asked.command if len(asked.command) <= _SHOWN_COMMAND else f"{asked.command[:_SHOWN_COMMAND]}..."
        how, limit = "run", f" (timeout {round(call.seconds, 2):g}s)"
        if asked.run_in_background:
            how, limit = "start in the background", ""
        text = f"[Dry Run] Would {how} in {where}: {shown}{limit}"
        is_valid = completed.exit_code == 0
        if not is_valid:
            text += f"\nThe shell would refuse it: {kept.show(_SHOWN_COMMAND)[0].strip()}"
        return ToolResult.ok(text, cwd=folder.name, description=asked.description, is_valid=is_valid)


class _Call:
    """A command with everything that is checked before it starts."""

    def __init__(self, context: ExecutionContext, asked: Command, roots: Sequence[Root]) -> None:
        _check_command(asked.command)
        self.asked = asked
        self._context = context
        self._variables = _texts(asked.env or {})
        self._walls = REACH.get().commands_of_call
        self._around = self._walls.around(roots)
        # The caller's variables again: they take precedence over those of the walls, which replace only defaults.
        self._environment = {**child_environment(self._variables), **self._around.variables, **self._variables}
        self._stdin = _encoded("stdin", asked.stdin or "")
        self._room = max(0, context.max_output_size - _NOTES_ROOM)
        self._deadline = Deadline(context.timeout)
        self.seconds = min(asked.timeout / 1000, self._deadline.remaining)
        self._refused: list[str] = []
        # The grace lies between the timeout of the command and that of the call, which would end this body too.
        self._grace = min(_GRACE_SECONDS, (context.timeout - self.seconds) * 0.75)

    async def run(self, folder: Handle, *options: str) -> tuple[HeadTail, Completed]:
        artifacts = REACH.get().artifacts
        whole_bytes = artifacts.max_bytes if artifacts else 0
        kept = HeadTail(self._room, whole_bytes)

        def show(text: str) -> None:
            kept.add(text)
            self._context.emit(text)  # followers of the call see it as it comes

        terminal, egress = TerminalText(kept.add if options else show), self._around.egress()
        try:
            completed = await run(
                [*find_shell(), *options, "-c", self.asked.command],
                folder=folder.fd,
                environment=self._environment,
                timeout=self.seconds,
                stdout=terminal.feed,
                stdin=self._stdin,
                grace=self._grace,
                start=self._around.start,
                egress=egress,
            )
        except asyncio.CancelledError:  # nobody gets its result; its output is found through the execution
            terminal.finish()
            await self.keep(kept, _PARTING_SECONDS)
            raise
        finally:
            await egress.close()
        terminal.finish()
        self._refused = egress.refused
        return kept, completed

    async def keep(self, kept: HeadTail, seconds: float = math.inf) -> dict[str, Any]:
        """Store output that is too long to be shown whole, in the remaining time."""
        whole, left = kept.whole, self._deadline.until_the_end * 0.9
        return {} if whole is None else await keep_text(whole, self._context, min(seconds, left))

    def answer(self, kept: HeadTail, completed: Completed, folder: Handle, artifact: dict[str, Any]) -> ToolResult:
        facts = {"cwd": folder.name, "description": self.asked.description, "walls": self._walls.tier, **artifact}
        text, shown = kept.show(self._room, artifact)
        facts |= {"exit_code": completed.exit_code, **shown}
        if completed.timed_out:
            unit = " (timeout is in milliseconds)" if self.asked.timeout < 1000 else ""
            error = f"Command timed out after {round(self.seconds, 3):g}s{unit} and was stopped with all it started."
            error += f" Output so far:\n{text}" if text.strip() else " It had written nothing."
            return ToolResult.fail(error, error_code=ErrorCode.TIMEOUT, **facts)
        if completed.is_out_of_memory:
            error = Limits.given().exceeded_by("The command") + (f" Output so far:\n{text}" if text.strip() else "")
            return ToolResult.fail(error, error_code=ErrorCode.OUT_OF_MEMORY, **facts)
        more, notes = _ending(completed)
        facts |= more
        if self._refused:
            facts["refused_hosts"] = self._refused
        if notes and text and not text.endswith("\n"):
            text += "\n"
        return ToolResult.ok(text + "\n".join(notes) or "(no output)", **facts)

    async def start(self, folder: Handle) -> ToolResult:
        """Start the command in an open folder as a shell that outlives this call and the worker that runs it."""
        shells = Shells(self._context)
        with await self._started(shells, folder) as shell:
            record = shell.record()
            with suppress(ForgeError):  # the shell runs anyway, and its host updates the book later
                await shells.note(record)
        text = f"Started in the background as {shell.id}.\nRead what it writes with "
        text += f'BashOutput(bash_id="{shell.id}"), end it with KillShell(shell_id="{shell.id}").'
        facts = {"cwd": folder.name, "description": self.asked.description, "walls": self._walls.tier}
        return ToolResult.ok(text, bash_id=shell.id, status=str(record.status), **facts)

    async def _started(self, shells: Shells, folder: Handle) -> ShellFolder:
        asked, context, env = self.asked, self._context, self._variables
        new = NewShell(command=asked.command, cwd=folder.name, context=context, description=asked.description, env=env)
        started: list[ShellFolder] = []

        def work() -> ShellFolder:
            where, how = shells.folder(is_made=True), self._around
            started.append(start(where, shells.hostname, new, place=folder.fd, stdin=self._stdin, around=how))
            return started[0]

        try:
            return await self._deadline.run(work)
        except asyncio.CancelledError:
            for shell in started:  # nobody will ever learn of it
                shell.order("KILL", 0)
                shell.close()
            raise


def _check_command(command: str) -> None:
    size = len(_encoded("command", command))
    if "\0" in command:
        raise InvalidCallError("command contains a NUL character, which cannot be passed to a process")
    if size > _MAX_ARGUMENT_BYTES:
        what = f"command is {size:,} bytes; the limit is {_MAX_ARGUMENT_BYTES:,}. Write it to a script and run that"
        raise InvalidCallError(what)


def _texts(env: Mapping[str, Any]) -> dict[str, str]:
    wrong = next((name for name, value in env.items() if not isinstance(value, str)), None)
    if wrong is not None:
        raise InvalidCallError(f"Invalid type for env.{wrong}: expected string")
    for name, value in env.items():
        _encoded(f"env.{name}", name + value)
    return dict(env)


def _encoded(what: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidCallError(f"{what} contains half a surrogate pair, which is not a character") from None


def _ending(completed: Completed) -> tuple[dict[str, Any], list[str]]:
    facts, notes = dict[str, Any](), []
    if completed.leftovers:
        facts["leftovers"] = completed.leftovers
        what = counted(completed.leftovers, "background process was", "background processes were")
        keeps = "it" if completed.leftovers == 1 else "them"
        notes.append(f"[{what} stopped when the command ended; run_in_background=true keeps {keeps}]")
    if completed.signal:
        facts["signal"] = signal_name(completed.signal)
        notes.append(f"[killed by {facts['signal']}]")
    elif completed.exit_code:
        notes.append(f"[exit code: {completed.exit_code}]")
    return facts, notes
