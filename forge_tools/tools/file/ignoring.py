"""Rules of .gitignore files, read and matched as git does, for all names of a folder at once."""

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from forge_tools.tools.file.globs import alternatives_of, compile_glob

_WILD = re.compile(rb"[*?\[\\]")
MAX_BYTES = 1 << 20
MAX_WILD = 5000
MAX_TURNS = 500
_FEW = 16
_BOM = b"\xef\xbb\xbf"
_STAR, _DEEP, _REST = b"*", b"**/", b"**"
_CLASSES = {
    b"alnum": b"0-9A-Za-z", b"alpha": b"A-Za-z", b"blank": b" \\t", b"cntrl": b"\\x00-\\x1f\\x7f", b"digit": b"0-9",
    b"graph": b"!-~", b"lower": b"a-z", b"print": b" -~", b"punct": b"!-/:-@\\[-`{-~", b"space": b"\\t-\\r ", b"upper": b"A-Z",
    b"xdigit": b"0-9A-Fa-f",
}  # fmt: skip


class TooManyRulesError(ValueError):
    """A file of rules that would take seconds to match; no repository has one by intention."""


class Names:
    """Names in one folder, with the groupings that matching needs, each made once."""

    def __init__(self, names: Iterable[str]) -> None:
        self.all = frozenset(names)

    @cached_property
    def by_ending(self) -> dict[str, list[str]]:
        """The names by what follows their last dot."""
        found: dict[str, list[str]] = defaultdict(list)
        for name in self.all:
            _, dot, ending = name.rpartition(".")
            if dot:
                found[ending].append(name)
        return found

    @cached_property
    def text(self) -> str:
        """All names, each between zero characters, which no name holds."""
        return "\0" + "\0".join(self.all) + "\0"

    @cached_property
    def joined(self) -> bytes:
        """The same as git sees them."""
        return os.fsencode(self.text)

    def under(self, folder: str) -> bytes:
        """The same with the folder they are in, which ends in a slash."""
        return self.joined if not folder else os.fsencode("".join(f"\0{folder}{name}" for name in self.all) + "\0")


@dataclass(slots=True)
class _Patterns:
    """Patterns of one polarity, sorted by the cheapest way to match them."""

    names: set[str] = field(default_factory=set)
    endings: set[str] = field(default_factory=set)
    paths: dict[str, set[str]] = field(default_factory=dict)
    name_globs: list[bytes] = field(default_factory=list)
    path_globs: list[bytes] = field(default_factory=list)
    _name_regex: re.Pattern[bytes] | None = None
    _path_regex: re.Pattern[bytes] | None = None

    def add(self, pattern: bytes) -> bool:
        """Add a pattern; say whether it takes an expression to match it."""
        is_path = b"/" in pattern
        pattern = pattern.removeprefix(b"/")
        wild = _WILD.search(pattern)
        if wild is None:
            folder, _, name = os.fsdecode(pattern).rpartition("/")
            (self.paths.setdefault(f"{folder}/" if folder else "", set()) if is_path else self.names).add(name)
        elif not is_path and pattern[:2] == b"*." and not _WILD.search(pattern, 1) and b"." not in pattern[2:]:
            self.endings.add(os.fsdecode(pattern[2:]))
        elif (expression := _expression(pattern, wild.start(), is_path=is_path)) is not None:
            (self.path_globs if is_path else self.name_globs).append(expression)
            return True
        return False

    def match(self, names: Names, folder: str) -> set[str]:
        """Return the names in `folder` ("" or ending in a slash, from where the rules lie) that a pattern matches."""
        found = self.names & names.all if self.names else set()
        if self.endings and self._may_end(names):
            for ending in self.endings & names.by_ending.keys():
                found.update(names.by_ending[ending])
        if folder in self.paths:
            found |= self.paths[folder] & names.all
        if self.name_globs:
            self._name_regex = self._name_regex or _any_of(self.name_globs)
            found.update(map(os.fsdecode, self._name_regex.findall(names.joined)))
        if self.path_globs:
            self._path_regex = self._path_regex or _any_of(self.path_globs)
            found.update(os.fsdecode(path).rpartition("/")[2] for path in self._path_regex.findall(names.under(folder)))
        return found

    def _may_end(self, names: Names) -> bool:
        """Say cheaply that no name ends so, as in most folders."""
        return len(self.endings) > _FEW or any(f".{ending}\0" in names.text for ending in self.endings)


@dataclass(slots=True)
class _Run:
    """Neighbouring rules that all ignore, or all bring back."""

    keeps: bool
    any: _Patterns = field(default_factory=_Patterns)
    folders: _Patterns = field(default_factory=_Patterns)


class Rules:
    """The rules of one file. The last one that matches decides.

    Raises:
        TooManyRulesError: on construction; the sentence says of what.
    """

    def __init__(self, text: bytes) -> None:
        self._runs: list[_Run] = []
        self._wild = 0
        self._names: set[str] = set()
        self._endings: set[str] = set()
        self._folders: set[str] = set()
        if len(text) > MAX_BYTES:
            raise TooManyRulesError(f"it is larger than {MAX_BYTES:,} bytes")
        for line in text.removeprefix(_BOM).split(b"\n"):
            if not line.startswith(b"#") and (pattern := _trimmed(line.removesuffix(b"\r"))):
                self._add(pattern)
        for patterns in (one for run in self._runs for one in (run.any, run.folders)):
            self._names |= patterns.names
            self._endings |= patterns.endings
            self._folders |= patterns.paths.keys()

    def decide(self, names: Names, folder: str, *, are_folders: bool) -> tuple[set[str], set[str]]:
        """Say which of the names in `folder` are ignored and which are kept by a rule; about the rest none says a word."""
        ignored: set[str] = set()
        kept: set[str] = set()
        if self._is_silent(names, folder):
            return ignored, kept
        for run in reversed(self._runs):
            if not names.all:
                break
            found = run.any.match(names, folder)
            if are_folders:
                found |= run.folders.match(names, folder)
            if found:
                (kept if run.keeps else ignored).update(found)
                names = Names(names.all - found)
        return ignored, kept

    def _is_silent(self, names: Names, folder: str) -> bool:
        """Say at once, if that is cheap, that no rule is about any of these: so it is in nearly every folder."""
        if self._wild or len(self._endings) > _FEW or folder in self._folders or not self._names.isdisjoint(names.all):
            return False
        return not any(f".{ending}\0" in names.text for ending in self._endings)

    def _add(self, pattern: bytes) -> None:
        keeps = pattern.startswith(b"!")
        pattern = pattern[keeps:]
        if not self._runs or self._runs[-1].keeps != keeps:
            self._runs.append(_Run(keeps))
            if len(self._runs) > MAX_TURNS:
                raise TooManyRulesError(f"it changes more than {MAX_TURNS:,} times between ignoring and keeping")
        run = self._runs[-1]
        is_for_folders = pattern.endswith(b"/")
        pattern = pattern[: len(pattern) - is_for_folders]
        if pattern:
            self._wild += (run.folders if is_for_folders else run.any).add(pattern)
            if self._wild > MAX_WILD:
                raise TooManyRulesError(f"it has more than {MAX_WILD:,} rules with wildcards")


def excluding(globs: Sequence[str]) -> Rules | None:
    """Read globs as lines of a .gitignore, with alternatives; None for none.

    Raises:
        SandboxError: one of them is no glob (INVALID_GLOB).
    """
    for glob in globs:
        compile_glob(glob.strip("/") or glob)
    lines = [one for glob in globs for one in alternatives_of(glob)]
    return Rules("\n".join(lines).encode("utf-8", "surrogateescape")) if lines else None


def _trimmed(line: bytes) -> bytes:
    """Take spaces off the end, but for those behind a backslash."""
    end = index = 0
    while index < len(line):
        is_space = line[index : index + 1] == b" "
        index += 2 if line[index : index + 1] == b"\\" else 1
        end = end if is_space else index
    return line[:end]


def _any_of(expressions: list[bytes]) -> re.Pattern[bytes]:
    return re.compile(b"\0(" + b"|".join(expressions) + b")(?=\0)", re.DOTALL)


def _expression(pattern: bytes, literal: int, *, is_path: bool) -> bytes | None:
    """Translate a pattern whose first `literal` bytes are plain; None where git would never match it."""
    tokens = _tokens(pattern, literal, is_path=is_path)
    if tokens is None:
        return None
    first, *middle = (_block(block) for block in _split(tokens, _DEEP))
    last = middle.pop() if middle else None
    # What follows `**/` has a fixed number of names: the first place where it fits is as good as any other.
    expression = first + b"".join(b"(?>(?:[^/\0]*/)*?" + block + b")" for block in middle)
    return expression if last is None else expression + b"(?:[^/\0]*/)*" + last


def _tokens(pattern: bytes, literal: int, *, is_path: bool) -> list[bytes] | None:
    found = [re.escape(pattern[index : index + 1]) for index in range(literal)]
    index = literal
    while index < len(pattern):
        char, index = pattern[index : index + 1], index + 1
        if char == b"*":
            begin, index = index - 1, len(pattern) - len(pattern[index:].lstrip(b"*"))
            token = _stars(pattern, begin, index, begin == literal) if is_path else _STAR
            index += token == _DEEP
        elif char == b"[":
            members, index = _set(pattern, index)
            if not members:
                return None
            token = b"[" + b"".join(b"\\x%02x" % member for member in sorted(members)) + b"]"
        elif char == b"\\":
            if index == len(pattern):
                return None
            token, index = re.escape(pattern[index : index + 1]), index + 1
        else:
            token = b"[^/\0]" if char == b"?" else re.escape(char)
        found.append(token)
    return found


def _stars(pattern: bytes, begin: int, end: int, is_first: bool) -> bytes:
    """Say what a run of stars is. For git the plain start of a pattern is no part of it: `a**/b` begins with `**/`."""
    is_bound = is_first or pattern[begin - 1 : begin] == b"/"
    if end - begin < 2 or not is_bound or not (end == len(pattern) or pattern[end:].startswith((b"/", b"\\/"))):
        return _STAR
    return _DEEP if pattern[end : end + 1] == b"/" else _REST


def _set(pattern: bytes, index: int) -> tuple[set[int], int]:
    """Read a set from behind its bracket; an empty one matches nothing, as a broken one does for git."""
    is_negated = pattern[index : index + 1] in (b"!", b"^")
    index += is_negated
    members: set[int] = set()
    is_first, previous = True, None
    while is_first or pattern[index : index + 1] != b"]":
        is_first = False
        is_range = pattern[index : index + 1] == b"-" and pattern[index + 1 : index + 2] not in (b"", b"]")
        if is_range and previous is not None:
            high, index = _char(pattern, index + 1)
            added, previous = None if high is None else set(range(previous, high + 1)), None
        else:
            added, index = _member(pattern, index)
            previous = min(added) if added and len(added) == 1 else None
        if added is None:
            return set(), index
        members |= added
    return (set(range(1, 256)) - members if is_negated else members) - {0, ord("/")}, index + 1


def _member(pattern: bytes, index: int) -> tuple[set[int] | None, int]:
    """Read one character or a class such as `[:digit:]`; None where the set is broken."""
    end = pattern.find(b"]", index + 2)
    if pattern.startswith(b"[:", index) and end < 0:
        return None, index
    if pattern.startswith(b"[:", index) and end > index + 2 and pattern[end - 1 : end] == b":":
        expression = _CLASSES.get(pattern[index + 2 : end - 1])
        if expression is None:
            return None, index
        members = re.compile(b"[" + expression + b"]", re.DOTALL)
        return {number for number in range(128) if members.match(bytes((number,)))}, end + 1
    char, index = _char(pattern, index)
    return None if char is None else {char}, index


def _char(pattern: bytes, index: int) -> tuple[int | None, int]:
    index += pattern[index : index + 1] == b"\\"
    return (pattern[index], index + 1) if index < len(pattern) else (None, index)


def _split(tokens: list[bytes], mark: bytes) -> list[list[bytes]]:
    parts: list[list[bytes]] = [[]]
    for token in tokens:
        if token == mark:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def _block(tokens: list[bytes]) -> bytes:
    return b"/".join(map(_segment, _split(tokens, b"/")))


def _segment(tokens: list[bytes]) -> bytes:
    """Join the tokens of one name. All stars but the last take the shortest way that fits and never go back on it.

    That finds a match whenever there is one, and keeps patterns like `*a*a*a*b` from trying every split.
    """
    pieces = [b"".join(b"[^\0]*" if token == _REST else token for token in piece) for piece in _split(tokens, _STAR)]
    if len(pieces) == 1:
        return pieces[0]
    first, *middle, last = pieces
    return first + b"".join(b"(?>[^/\0]*?" + piece + b")" for piece in middle if piece) + b"[^/\0]*" + last
