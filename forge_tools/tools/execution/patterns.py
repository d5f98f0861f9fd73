"""Which lines match a regular expression, found by a program that can be stopped, whatever the expression makes it do."""

import re
from collections.abc import Sequence

from forge_tools.errors import ErrorCode, SandboxError
from forge_tools.sandbox.processes.commands import run
from forge_tools.sandbox.processes.environment import child_environment
from forge_tools.tools.file.ripgrep import Ripgrep, Search, refusal

_NUMBER = re.compile(rb"^(\d+):", re.MULTILINE)
_SPECIAL = frozenset("\\.+*?()|[]{}^$")
_MAX_SECONDS = 10.0
# What in an expression is no line break, though it is spelled so; and what is one.
_HARMLESS = re.compile(r"\\[^n]|\[(?:\\.|[^\]\\])+\]", re.DOTALL)
_LINE_BREAKS = ("\n", "\\n")


class Pattern:
    """A regular expression in ripgrep's syntax. `folder` is an open folder, where the program runs."""

    def __init__(self, text: str, folder: int) -> None:
        self._text = text
        self._folder = folder
        self.is_plain = not _SPECIAL & set(text) and "\n" not in text

    async def matches(self, lines: Sequence[str], seconds: float) -> list[int]:
        """Return the indexes of the lines that match.

        Raises:
            SandboxError: it is no regular expression, or the time was over first.
        """
        if any(wanted in _HARMLESS.sub("", self._text) for wanted in _LINE_BREAKS):
            what = f"Invalid pattern, lines are searched one by one and hold no line break: {self._text[:200]}"
            raise SandboxError(what, "INVALID_REGEX")
        if self.is_plain:
            return [index for index, line in enumerate(lines) if self._text in line]
        found, complaints = _Kept(), _Kept()
        limit = min(seconds, _MAX_SECONDS)
        completed = await run(
            self._command(),
            folder=self._folder,
            environment=child_environment(),
            timeout=limit,
            stdin="".join(line if line.endswith("\n") else f"{line}\n" for line in lines).encode("utf-8", "replace"),
            stdout=found.add,
            stderr=complaints.add,
            grace=0.5,
        )
        if completed.timed_out:
            raise SandboxError(f"Searching for {self._text[:200]} took more than {limit:.2g}s", ErrorCode.TIMEOUT)
        if completed.exit_code not in (0, 1):
            raise self._refusal(complaints.data.decode("utf-8", "replace"))
        return [int(number[1]) - 1 for number in _NUMBER.finditer(found.data)]

    def _command(self) -> list[str]:
        options = ("--no-config", "--text", "--engine=auto", "--line-number", "--max-columns=1", "--color=never")
        return [Ripgrep.find().program, *options, "-e", self._text, "-"]

    def _refusal(self, complaints: str) -> SandboxError:
        refused = refusal(Search(pattern=self._text), complaints)
        if refused is None:
            return SandboxError(f"Searching for {self._text[:200]} failed: {complaints.strip()[:200]}", "INVALID_REGEX")
        return SandboxError(refused.message.partition(" (to search")[0], refused.code)


class _Kept:
    """Bytes that a program writes."""

    def __init__(self) -> None:
        self.data = bytearray()

    def add(self, data: bytes) -> bool:
        self.data += data
        return True
