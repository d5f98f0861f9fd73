"""Rules of .gitignore files, parsed and matched as git does, for all names of a folder at once.

Git matches bytes: here each byte is a Latin-1 character.
"""

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property

from forge_tools.tools.file.globs import DEEP, REST, STAR, alternatives_of, compile_glob, expression_of

MAX_BYTES = 1 << 20
MAX_WILD = 5000
MAX_TURNS = 500
_FEW = 16
_BOM = b"\xef\xbb\xbf"
_WILD = re.compile(r"[*?\[\\]")
_CLASSES = {
    "alnum": r"0-9A-Za-z", "alpha": r"A-Za-z", "blank": r" \t", "cntrl": r"\x00-\x1f\x7f", "digit": r"0-9", "graph": r"!-~",
    "lower": r"a-z", "print": r" -~", "punct": r"!-/:-@\[-`{-~", "space": r"\t-\r ", "upper": r"A-Z", "xdigit": r"0-9A-Fa-f",
}  # fmt: skip


class TooManyRulesError(ValueError):
    """A file of rules that would take seconds to match; no repository has one on purpose."""


class Names:
    """Names in one folder, with the groupings that matching needs, each computed once."""

    def __init__(self, names: Iterable[str]) -> None:
        self.all = frozenset(names)

    @cached_property
    def by_ending(self) -> dict[str, list[str]]:
        """The names by their text after the last dot."""
        found: dict[str, list[str]] = defaultdict(list)
        for name in self.all:
            _, dot, ending = name.rpartition(".")
            if dot:
                found[ending].append(name)
        return found

    @cached_property
    def text(self) -> str:
        """All names, each between NUL characters, which no name contains."""
        return "\0" + "\0".join(self.all) + "\0"

    @cached_property
    def joined(self) -> str:
        """The same in git's form."""
        return _as_bytes(self.text)

    def under(self, folder: str) -> str:
        """Return the same with the folder they are in, which ends in a slash."""
        return _as_bytes("".join(f"\0{folder}{name}" for name in self.all) + "\0") if folder else self.joined


@dataclass(slots=True)
class _Patterns:
    """Patterns of one polarity, sorted by the cheapest way to match them."""

    names: set[str] = field(default_factory=set)
    endings: set[str] = field(default_factory=set)
    paths: dict[str, set[str]] = field(default_factory=dict)
    name_globs: list[str] = field(default_factory=list)
    path_globs: list[str] = field(default_factory=list)
    _name_regex: re.Pattern[str] | None = None
    _path_regex: re.Pattern[str] | None = None

    def add(self, pattern: str) -> bool:
        """Add a pattern; return whether matching it needs an expression."""
        is_path = "/" in pattern
        pattern = pattern.removeprefix("/")
        wild = _WILD.search(pattern)
        if wild is None:
            folder, _, name = _as_text(pattern).rpartition("/")
            (self.paths.setdefault(f"{folder}/" if folder else "", set()) if is_path else self.names).add(name)
        elif not is_path and pattern[:2] == "*." and not _WILD.search(pattern, 1) and "." not in pattern[2:]:
            self.endings.add(_as_text(pattern[2:]))
        elif (tokens := _tokens(pattern, wild.start(), is_path=is_path)) is not None:
            (self.path_globs if is_path else self.name_globs).append(expression_of(tokens))
            return True
        return False

    def match(self, names: Names, folder: str) -> set[str]:
        """Return the names in `folder` ("" or ending in a slash, relative to the rules) that a pattern matches."""
        found = self.names & names.all if self.names else set()
        if _may_end(self.endings, names):
            for ending in self.endings & names.by_ending.keys():
                found.update(names.by_ending[ending])
        if folder in self.paths:
            found |= self.paths[folder] & names.all
        if self.name_globs:
            self._name_regex = self._name_regex or _any_of(self.name_globs)
            found.update(map(_as_text, self._name_regex.findall(names.joined)))
        if self.path_globs:
            self._path_regex = self._path_regex or _any_of(self.path_globs)
            found.update(_as_text(path.rpartition("/")[2]) for path in self._path_regex.findall(names.under(folder)))
        return found


@dataclass(slots=True)
class _Run:
    """Consecutive rules that all ignore, or all re-include."""

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
        if len(text) > MAX_BYTES:
            raise TooManyRulesError(f"it is larger than {MAX_BYTES:,} bytes")
        for line in text.removeprefix(_BOM).decode("latin-1").split("\n"):
            if not line.startswith("#") and (pattern := _trimmed(line.removesuffix("\r"))):
                self._add(pattern)
        every = [one for run in self._runs for one in (run.any, run.folders)]
        self._names = frozenset[str]().union(*(patterns.names for patterns in every))
        self._endings = frozenset[str]().union(*(patterns.endings for patterns in every))
        self._folders = frozenset[str]().union(*(patterns.paths for patterns in every))

    def decide(self, names: Names, folder: str, *, are_folders: bool) -> tuple[set[str], set[str]]:
        """Return which of the names in `folder` are ignored and which are kept by a rule; no rule covers the others."""
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
        """Check cheaply that no rule concerns any of these names, as in nearly every folder."""
        if self._wild or folder in self._folders or not self._names.isdisjoint(names.all):
            return False
        return not _may_end(self._endings, names)

    def _add(self, pattern: str) -> None:
        keeps = pattern.startswith("!")
        pattern = pattern[keeps:]
        if not self._runs or self._runs[-1].keeps != keeps:
            self._runs.append(_Run(keeps))
            if len(self._runs) > MAX_TURNS:
                raise TooManyRulesError(f"it changes more than {MAX_TURNS:,} times between ignoring and keeping")
        patterns = self._runs[-1].folders if pattern.endswith("/") else self._runs[-1].any
        pattern = pattern.removesuffix("/")
        if pattern:
            self._wild += patterns.add(pattern)
            if self._wild > MAX_WILD:
                raise TooManyRulesError(f"it has more than {MAX_WILD:,} rules with wildcards")


def excluding(globs: Sequence[str]) -> Rules | None:
    """Parse globs as lines of a .gitignore, with alternatives; None if there are none."""
    for glob in globs:
        compile_glob(glob.strip("/") or glob)
    lines = [one for glob in globs for one in alternatives_of(glob)]
    return Rules("\n".join(lines).encode("utf-8", "surrogateescape")) if lines else None


def _as_bytes(text: str) -> str:
    return text if text.isascii() else os.fsencode(text).decode("latin-1")


def _as_text(name: str) -> str:
    return name if name.isascii() else os.fsdecode(name.encode("latin-1"))


def _may_end(endings: Set[str], names: Names) -> bool:
    """Check cheaply whether any name may end so; in most folders none does."""
    return len(endings) > _FEW or any(f".{ending}\0" in names.text for ending in endings)


def _any_of(expressions: list[str]) -> re.Pattern[str]:
    return re.compile(f"\0({'|'.join(expressions)})(?=\0)", re.DOTALL)


def _trimmed(line: str) -> str:
    """Strip trailing spaces that are not escaped."""
    end = index = 0
    while index < len(line):
        is_space = line[index] == " "
        index += 2 if line[index] == "\\" else 1
        end = end if is_space else index
    return line[:end]


def _tokens(pattern: str, literal: int, *, is_path: bool) -> list[str] | None:
    """Parse a pattern whose first `literal` characters are plain; None if git would never match it."""
    found = [re.escape(char) for char in pattern[:literal]]
    index = literal
    while index < len(pattern):
        char, index = pattern[index], index + 1
        if char == "*":
            begin, index = index - 1, len(pattern) - len(pattern[index:].lstrip("*"))
            token = _stars(pattern, begin, index, begin == literal) if is_path else STAR
            index += token == DEEP
        elif char == "[":
            members, index = _set(pattern, index)
            if not members:
                return None
            token = "[" + "".join(f"\\x{member:02x}" for member in sorted(members)) + "]"
        elif char == "\\":
            if index == len(pattern):
                return None
            token, index = re.escape(pattern[index]), index + 1
        else:
            token = "[^/\0]" if char == "?" else re.escape(char)
        found.append(token)
    return found


def _stars(pattern: str, begin: int, end: int, is_first: bool) -> str:
    """Interpret a run of stars. Git treats the plain start of a pattern separately: `a**/b` begins with `**/`."""
    is_bound = is_first or pattern[begin - 1] == "/"
    if end - begin < 2 or not is_bound or not (end == len(pattern) or pattern[end:].startswith(("/", "\\/"))):
        return STAR
    return DEEP if pattern[end : end + 1] == "/" else REST


def _set(pattern: str, index: int) -> tuple[set[int], int]:
    """Parse a set after its bracket; an empty one matches nothing, like a broken one in git."""
    is_negated = pattern[index : index + 1] in ("!", "^")
    index += is_negated
    members: set[int] = set()
    is_first, previous = True, None
    while is_first or pattern[index : index + 1] != "]":
        is_first = False
        is_range = pattern[index : index + 1] == "-" and pattern[index + 1 : index + 2] not in ("", "]")
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


def _member(pattern: str, index: int) -> tuple[set[int] | None, int]:
    """Parse one character or a class such as `[:digit:]`; None if the set is broken."""
    end = pattern.find("]", index + 2)
    if pattern.startswith("[:", index) and end < 0:
        return None, index
    if pattern.startswith("[:", index) and end > index + 2 and pattern[end - 1] == ":":
        expression = _CLASSES.get(pattern[index + 2 : end - 1])
        if expression is None:
            return None, index
        return {number for number in range(128) if re.match(f"[{expression}]", chr(number))}, end + 1
    char, index = _char(pattern, index)
    return None if char is None else {char}, index


def _char(pattern: str, index: int) -> tuple[int | None, int]:
    index += pattern[index : index + 1] == "\\"
    return (ord(pattern[index]), index + 1) if index < len(pattern) else (None, index)
