"""Globs of the file tools and rules of .gitignore files: the same grammar, read once.

`*` and `?` stay within a name, `**` as a whole name crosses folders, `[...]` and `[!...]` are sets, a backslash makes the
next character literal. Globs have alternatives too: `{a,b}`. Rules are matched as git does, for all names of a folder at
once; git matches bytes, so there each byte is a Latin-1 character.
"""

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

from forge_tools.errors import SandboxError
from forge_tools.sandbox.paths.refusals import parts_of

MAX_ALTERNATIVES = 1000
WILD = re.compile(r"[\\*?\[{]")
"""A character that makes a glob more than a path."""

MAX_BYTES = 1 << 20
MAX_WILD = 5000
MAX_TURNS = 500
_STAR, _DEEP = "*", "**/"
"""Tokens of a pattern that are not expressions: any part of a name, and any folders."""

_REST = "[^\0]*"
_FOLDERS = "(?:[^/\0]*/)*"
_DEEP_NAME = "**"
_MAX_LEAD = 50  # folders on the way to a match that are told apart: the parser of expressions is recursive
_FEW = 16
_BOM = b"\xef\xbb\xbf"
_BRACES = re.compile(r"\\.|[{},]", re.DOTALL)
_WILD_IN_RULES = re.compile(r"[*?\[\\]")
_CLASSES = {
    "alnum": r"0-9A-Za-z", "alpha": r"A-Za-z", "blank": r" \t", "cntrl": r"\x00-\x1f\x7f", "digit": r"0-9", "graph": r"!-~",
    "lower": r"a-z", "print": r" -~", "punct": r"!-/:-@\[-`{-~", "space": r"\t-\r ", "upper": r"A-Z", "xdigit": r"0-9A-Fa-f",
}  # fmt: skip


class TooManyRulesError(ValueError):
    """A file of rules that would take seconds to match; no repository has one on purpose."""


class _BrokenError(ValueError):
    """A pattern that means nothing: git matches nothing by it, and a glob is refused."""


class Pattern:
    """A glob relative to the searched folder: which paths match it, and which folders can hold matches.

    A path that is literally the glob matches too: `[id]/page.tsx`.
    """

    def __init__(self, glob: str, *, case_sensitive: bool = True) -> None:
        check_glob(glob)
        flags = re.DOTALL if case_sensitive else re.DOTALL | re.IGNORECASE
        ways = [parts_of(one) for one in alternatives_of(glob)]
        paths = [_expression("/".join(names), glob) for names in ways]
        folders = [_way_to(names, glob) for names in ways]
        if WILD.search(glob):
            plain = [re.escape(name) for name in parts_of(glob)]
            paths.append("/".join(plain))
            folders.append(_nested(plain[:-1][:_MAX_LEAD], ""))
        self._paths = re.compile(f"\0({'|'.join(paths)})(?=\0)", flags)
        self._folders = re.compile("|".join(folders), flags)

    def may_be_in(self, folder: str) -> bool:
        """Whether matches may be in a folder or below it; its path is "" or ends in a slash."""
        return self._folders.fullmatch(folder) is not None

    def match(self, folder: str, names: Sequence[str]) -> list[str]:
        """Return the paths of those of the names in a folder that match."""
        # All at once, each between NUL characters, which no name contains.
        return self._paths.findall("".join([f"\0{folder}{name}" for name in names]) + "\0")


def compile_glob(pattern: str) -> re.Pattern[str]:
    """Turn a glob into an expression for whole relative paths. A pattern without `/` matches names in every folder."""
    if "\n" in pattern:
        raise _invalid("a glob cannot contain a line break")
    alternatives = [_expression(anywhere(one), pattern) for one in alternatives_of(pattern)]
    return re.compile("|".join(alternatives), re.DOTALL)


def alternatives_of(pattern: str) -> list[str]:
    """Expand the braces of a glob."""
    found = [pattern]
    while any(every := [_choices(one, pattern) for one in found]):
        found = [choice for one, choices in zip(found, every, strict=True) for choice in choices or [one]]
        if len(found) > MAX_ALTERNATIVES:
            raise _invalid(f"'{pattern}' has more than {MAX_ALTERNATIVES:,} alternatives")
    return found


def by_path(path: str) -> str:
    """Return a sort key in the order of a walk by names: the content of `a` before `a.py`."""
    return path.replace("/", "\0")


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
        wild = _WILD_IN_RULES.search(pattern)
        if wild is None:
            folder, _, name = _as_text(pattern).rpartition("/")
            (self.paths.setdefault(f"{folder}/" if folder else "", set()) if is_path else self.names).add(name)
            return False
        if not is_path and pattern[:2] == "*." and not _WILD_IN_RULES.search(pattern, 1) and "." not in pattern[2:]:
            self.endings.add(_as_text(pattern[2:]))
            return False
        try:
            expression = _joined(list(_tokens(pattern, wild.start(), is_path=is_path, is_strict=False)))
        except _BrokenError:
            return False
        (self.path_globs if is_path else self.name_globs).append(expression)
        return True

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
            found.update(map(_as_text, self._name_regex.findall(_as_bytes(names.text))))
        if self.path_globs:
            self._path_regex = self._path_regex or _any_of(self.path_globs)
            paths = "".join([f"\0{folder}{name}" for name in names.all]) + "\0"
            found.update(_as_text(path.rpartition("/")[2]) for path in self._path_regex.findall(_as_bytes(paths)))
        return found


@dataclass(slots=True)
class _Run:
    """Consecutive rules that all ignore, or all re-include."""

    keeps: bool
    any: _Patterns = field(default_factory=_Patterns)
    folders: _Patterns = field(default_factory=_Patterns)


class Rules:
    """The rules of one file; the last one that matches decides. Too many are a TooManyRulesError, which says of what."""

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


def check_glob(glob: str) -> None:
    """Refuse a glob that cannot match anything below a folder."""
    if glob.startswith("!"):
        what = "a glob says what to find. Glob takes what to leave out as exclude"
        raise _invalid(f"'{glob}' starts with '!', but {what}")
    if ".." in glob.split("/"):
        raise _invalid(f"'{glob}' goes up with '..'. Pass the folder to start from as path")
    if not parts_of(glob):
        raise _invalid(f"'{glob}' names nothing. '*' finds the files of a folder, '**' all below it")
    if "\n" in glob:
        raise _invalid("a glob cannot contain a line break")


def anywhere(pattern: str) -> str:
    """Make a glob without `/` one for every folder."""
    return "/".join(parts_of(pattern)) if "/" in pattern else f"**/{pattern}"


def _way_to(names: list[str], glob: str) -> str:
    """Return the expression for the folders that lead to matches, each with a slash at its end."""
    deep = names.index(_DEEP_NAME) if _DEEP_NAME in names else len(names) - 1
    lead = [_expression(name, glob) for name in names[: min(deep, _MAX_LEAD)]]
    return _nested(lead, _FOLDERS if _DEEP_NAME in names or deep > _MAX_LEAD else "")


def _nested(names: list[str], inner: str) -> str:
    for name in reversed(names):
        inner = f"(?:{name}/{inner})?"
    return inner


def _choices(pattern: str, glob: str) -> list[str]:
    """Expand the first outermost pair of braces, split at the commas of its level; empty if there is none."""
    depth, cuts = 0, list[int]()
    for found in _BRACES.finditer(pattern):
        char, index = found[0], found.start()
        depth += (char == "{") - (char == "}" and depth > 0)
        if char == "{" and depth == 1:
            cuts = [index]
        elif char == "," and depth == 1:
            cuts.append(index)
        elif char == "}" and cuts and not depth:
            spans = pairwise([*cuts, index])
            return [pattern[: cuts[0]] + pattern[start + 1 : end] + pattern[index + 1 :] for start, end in spans]
    if depth:
        raise _invalid(f"'{glob}': unclosed '{{' at position {cuts[0] + 1}")
    return []


def _expression(pattern: str, glob: str) -> str:
    try:
        return _joined(list(_tokens(pattern)))
    except _BrokenError as error:
        raise _invalid(f"'{glob}': {str(error).format(glob.find('[') + 1)}") from None


def _joined(tokens: list[str]) -> str:
    """Join the tokens of a pattern: expressions, `_STAR`, `_DEEP` and slashes.

    A fixed number of names follows `**/`, so the first place where they fit is as good as any other.
    """
    blocks = (
        "/".join(_apart(map("".join, _split(name, _STAR)), "[^/\0]*") for name in _split(block, "/"))
        for block in _split(tokens, _DEEP)
    )
    return _apart(blocks, _FOLDERS)


def _apart(pieces: Iterable[str], gap: str) -> str:
    """Join pieces with gaps. All gaps but the last take the shortest fit and never backtrack.

    That finds a match whenever there is one, and keeps patterns like `*a*a*a*b` from trying every split.
    """
    first, *middle = pieces
    last = middle.pop() if middle else None
    expression = first + "".join(f"(?>{gap}?{piece})" for piece in middle if piece)
    return expression if last is None else f"{expression}{gap}{last}"


def _split(tokens: list[str], mark: str) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    for token in tokens:
        if token == mark:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def _tokens(pattern: str, plain: int = 0, *, is_path: bool = True, is_strict: bool = True) -> Iterator[str]:
    """Parse a pattern whose first `plain` characters have no special meaning."""
    yield from (re.escape(char) for char in pattern[:plain])
    index = plain
    while index < len(pattern):
        char, index = pattern[index], index + 1
        if char == "*":
            begin, index = index - 1, len(pattern) - len(pattern[index:].lstrip("*"))
            token = _stars(pattern, begin, index, begin == plain) if is_path else _STAR
            index += token == _DEEP
        elif char == "[":
            token, index = _set(pattern, index, is_strict=is_strict)
        elif char == "\\":
            if index == len(pattern):
                raise _BrokenError("nothing follows the last '\\'")
            token, index = re.escape(pattern[index]), index + 1
        else:
            token = "[^/\0]" if char == "?" else re.escape(char)
        yield token


def _stars(pattern: str, begin: int, end: int, is_first: bool) -> str:
    """Interpret a run of stars. Git treats the plain start of a pattern separately: `a**/b` begins with `**/`."""
    is_bound = is_first or pattern[begin - 1] == "/"
    if end - begin < 2 or not is_bound or not (end == len(pattern) or pattern[end:].startswith(("/", "\\/"))):
        return _STAR
    return _DEEP if pattern[end : end + 1] == "/" else _REST


def _set(pattern: str, index: int, *, is_strict: bool) -> tuple[str, int]:
    """Parse a set after its bracket. A range from a later to an earlier character is empty, or broken."""
    is_negated = pattern[index : index + 1] in ("!", "^")
    index += is_negated
    members, previous, is_first = list[str](), "", True
    while is_first or pattern[index : index + 1] != "]":
        is_first = False
        end = pattern.find("]", index + 2)
        if pattern.startswith("[:", index) and (end < 0 or (end > index + 2 and pattern[end - 1] == ":")):
            if (known := _CLASSES.get(pattern[index + 2 : end - 1])) is None or end < 0:
                raise _BrokenError("unclosed '[' at position {}")
            members.append(known)
            previous, index = "", end + 1
        elif previous and pattern[index : index + 1] == "-" and pattern[index + 1 : index + 2] not in ("", "]"):
            high, index = _char(pattern, index + 1)
            if previous > high and is_strict:
                raise _BrokenError("bad character range")
            members += [f"{re.escape(previous)}-{re.escape(high)}"] if previous <= high else []
            previous = ""
        else:
            previous, index = _char(pattern, index)
            members.append(re.escape(previous))
    inside = "".join(members)
    return (f"[^/\0{inside}]" if is_negated else f"(?![/\0])[{inside}]"), index + 1


def _char(pattern: str, index: int) -> tuple[str, int]:
    index += pattern[index : index + 1] == "\\"
    if index == len(pattern):
        raise _BrokenError("unclosed '[' at position {}")
    return pattern[index], index + 1


def _invalid(message: str) -> SandboxError:
    return SandboxError(f"Invalid glob: {message}", "INVALID_GLOB")
