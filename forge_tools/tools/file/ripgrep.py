"""The ripgrep command lines of a search, and what their failures mean."""

import re
from dataclasses import dataclass
from typing import Literal

from forge_tools.errors import SandboxError

_LOOK_AROUND = re.compile(r"error: (look-around|backreferences)[^\n]*not supported")
_ERROR = re.compile(r"(?:error: |PCRE2: error compiling pattern at offset \d+: )([^\n]+)")
_MAX_WARNINGS = 20


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

    def arguments(self, *, has_rules: bool, is_file: bool) -> list[str]:
        """Build the command line after the program: only ours, the user's configuration and ignore files play no part."""
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
        }
        chosen = [option for option, is_on in options.items() if is_on]
        target = "-" if is_file else "."
        return [
            "--no-config",
            "--crlf",
            "--sort=path",
            *self._ignoring(),
            *self._mode(),
            *chosen,
            "-e",
            self.pattern,
            "--",
            target,
        ]

    def listing(self) -> list[str]:
        """Build the command line that lists the files a search with rules would look into."""
        hidden = ["--hidden"] if self.hidden else []
        return ["--no-config", "--files", "--null", *self._ignoring(), *hidden, "--ignore-file=/dev/stdin", "--", "."]

    def _ignoring(self) -> list[str]:
        if not self.respect_ignore:
            return ["--no-ignore", "--glob=!.git"]
        # No rule from outside the workspace: the answer is the same on every host.
        outside = ["--no-ignore-global", "--no-ignore-exclude", "--no-ignore-parent"]
        return [*outside, "--no-require-git", "--glob=!.git"]

    def _mode(self) -> list[str]:
        if self.output_mode == "content":
            before, after = self.before or self.context_lines, self.after or self.context_lines
            return ["--json", f"--before-context={before}", f"--after-context={after}"]
        which = "--files-with-matches" if self.output_mode == "files_with_matches" else "--count"
        return [which, "--with-filename", "--null", "--stats"]


def needs_pcre2(stderr: str) -> bool:
    """Whether the pattern failed only for want of look-around or back-references."""
    return bool(_LOOK_AROUND.search(stderr))


def refusal(search: Search, stderr: str) -> SandboxError | None:
    """Say why ripgrep would not search at all, or None where it did and only has warnings."""
    if "PCRE2 is not available" in stderr:
        return SandboxError("Look-around needs engine=pcre2, which this worker does not have", "INVALID_REGEX")
    if needs_pcre2(stderr):
        return SandboxError(f"Look-around and back-references need engine=pcre2: {search.pattern}", "INVALID_REGEX")
    if "regex parse error" in stderr or "error compiling pattern" in stderr or "not allowed in a regex" in stderr:
        found = _ERROR.search(stderr)
        reason = found[1] if found else "not a regular expression"
        hint = "to search for this text literally set fixed_strings=true"
        return SandboxError(f"Invalid pattern, {reason}: {search.pattern[:200]} ({hint})", "INVALID_REGEX")
    if "unrecognized file type" in stderr:
        return SandboxError(f"Unknown type '{search.type}'. Use a glob such as *.py instead", "VALIDATION_ERROR")
    return None


def warnings(stderr: str, file: str) -> list[str]:
    """What ripgrep could not search, as people may read it; a `file` it knows as its standard input."""
    lines = [
        line.removeprefix("rg: ").removeprefix("./").replace("<stdin>", file)
        for line in stderr.splitlines()
        if line.strip()
    ]
    if len(lines) > _MAX_WARNINGS:
        lines[_MAX_WARNINGS:] = [f"and {len(lines) - _MAX_WARNINGS} more"]
    return lines
