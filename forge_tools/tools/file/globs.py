"""Globs of the file tools: the same meaning on every host and in every engine.

`*` and `?` stay within a name, `**` as a whole name crosses folders, `[...]` and `[!...]` are sets, `{a,b}`
alternatives; a backslash makes the next character literal.
"""

import re
from collections.abc import Iterable, Iterator

from forge_tools.errors import InvalidCallError, SandboxError

MAX_ALTERNATIVES = 1000
STAR, DEEP = "*", "**/"
"""Tokens of a pattern that are not expressions: any part of a name, and any folders."""

REST = "[^\0]*"
"""The expression for the rest of a path."""

WILD = re.compile(r"[\\*?\[{]")
"""A character that makes a glob more than a path."""

State = frozenset[tuple[int, int]]
"""The progress of each alternative: its number, and the index of the name it needs next. Empty: no match is possible."""

_DEEP_NAME = "**"
_SPECIAL = re.compile(r"([\\*?\[\]{}!# ])")
_SET_SPECIAL = re.compile(r"([\\\[\]^&~|])")


class Pattern:
    """A glob relative to the searched folder, on its way down: which folders can hold matches, and which names match.

    A path that is literally the glob matches too: `[id]/page.tsx`.
    """

    def __init__(self, glob: str, *, case_sensitive: bool = True) -> None:
        _check(glob)
        self._flags = re.DOTALL if case_sensitive else re.DOTALL | re.IGNORECASE
        self._wanted = [
            [name if name == _DEEP_NAME else _starred(list(_tokens(name, glob))) for name in _names(one)]
            for one in alternatives_of(glob)
        ]
        if WILD.search(glob):
            self._wanted.append([re.escape(name) for name in _names(glob)])
        self._ends: dict[State, re.Pattern[str] | None] = {}
        names = {name for one in self._wanted for name in one if name != _DEEP_NAME}
        self._compiled = {name: _compiled(name, glob, self._flags) for name in names}

    @property
    def start(self) -> State:
        return self._reached((number, 0) for number in range(len(self._wanted)))

    def enter(self, state: State, name: str) -> State:
        """Return the state in a folder of that name."""
        stays = ((number, index) for number, index in state if self._wanted[number][index] == _DEEP_NAME)
        goes = ((number, index + 1) for number, index in state if self._is_inner(number, index, name))
        return self._reached([*stays, *goes])

    def match(self, state: State, names: list[str]) -> list[str]:
        """Return the names that complete the glob."""
        if state not in self._ends:
            self._ends[state] = self._end(state)
        end = self._ends[state]
        return [] if end is None else end.findall("\0" + "\0".join(names) + "\0") if names else []

    def _is_inner(self, number: int, index: int, name: str) -> bool:
        wanted = self._wanted[number]
        if index + 1 == len(wanted) or wanted[index] == _DEEP_NAME:
            return False
        return self._compiled[wanted[index]].fullmatch(name) is not None

    def _end(self, state: State) -> re.Pattern[str] | None:
        """Build one expression for all names of a folder, each between NUL characters, which no name contains."""
        last = {self._wanted[number][index] for number, index in state if index + 1 == len(self._wanted[number])}
        if not last:
            return None
        choices = "[^\0]+" if _DEEP_NAME in last else "|".join(sorted(last))
        return re.compile(f"\0({choices})(?=\0)", self._flags)

    def _reached(self, positions: Iterable[tuple[int, int]]) -> State:
        found = set()
        for number, position in positions:
            wanted, index = self._wanted[number], position
            found.add((number, index))
            while wanted[index] == _DEEP_NAME and index + 1 < len(wanted):  # `**` may match no folder at all
                index += 1
                found.add((number, index))
        return frozenset(found)


def check_text(name: str, text: str) -> None:
    """Refuse what no argument of a process and no name of a file can hold."""
    if "\0" in text:
        raise InvalidCallError(rf"{name} contains a NUL character; in a pattern write it as \x00")
    if text.encode(errors="replace").decode() != text:
        raise InvalidCallError(f"{name} contains half a surrogate pair, which is not a character")


def compile_glob(pattern: str) -> re.Pattern[str]:
    """Turn a glob into an expression for whole relative paths. A pattern without `/` matches names in every folder."""
    if "\n" in pattern:
        raise _invalid("a glob cannot contain a line break")
    alternatives = [expression_of(_path_tokens(_anywhere(one), pattern)) for one in alternatives_of(pattern)]
    return _compiled("|".join(f"(?:{one})" for one in alternatives), pattern, re.DOTALL)


def alternatives_of(pattern: str) -> list[str]:
    """Expand the braces of a glob."""
    found = [pattern]
    while any(spans := [_first_braces(one, pattern) for one in found]):
        found = [expanded for one, span in zip(found, spans, strict=True) for expanded in _expand(one, span)]
        if len(found) > MAX_ALTERNATIVES:
            raise _invalid(f"'{pattern}' has more than {MAX_ALTERNATIVES:,} alternatives")
    return found


def expression_of(tokens: list[str]) -> str:
    """Join the tokens of a pattern: expressions, `STAR`, `DEEP` and slashes.

    A fixed number of names follows `**/`, so the first place where they fit is as good as any other.
    """
    first, *middle = ("/".join(map(_starred, _split(block, "/"))) for block in _split(tokens, DEEP))
    last = middle.pop() if middle else None
    expression = first + "".join(f"(?>(?:[^/\0]*/)*?{block})" for block in middle if block)
    return expression if last is None else f"{expression}(?:[^/\0]*/)*{last}"


def by_path(path: str) -> str:
    """Return a sort key in the order of a walk by names: the content of `a` before `a.py`."""
    return path.replace("/", "\0")


def only(glob: str) -> str:
    """Write rules for an ignore file that hide everything except matches and folders."""
    wanted = (f"!/{_anywhere(one)}" for one in alternatives_of(glob))
    # A space at the end of a rule counts only if it is escaped.
    rules = (f"{rule[:-1]}\\ " if rule.endswith(" ") else rule for rule in ("/**", "!/**/", *wanted))
    return "".join(f"{rule}\n" for rule in rules)


def plain_rule(path: str) -> str:
    """Write a rule that matches exactly this path."""
    quoted = _SPECIAL.sub(r"\\\1", path)
    return f"/{quoted}\n"


def _check(glob: str) -> None:
    if glob.startswith("!"):
        raise _invalid(f"'{glob}': a leading '!' leaves nothing to find. Pass what to leave out as exclude")
    if ".." in glob.split("/"):
        raise _invalid(f"'{glob}' goes up with '..'. Pass the folder to start from as path")
    if not _names(glob):
        raise _invalid(f"'{glob}' names nothing. '*' finds the files of a folder, '**' all below it")
    if "\n" in glob:
        raise _invalid("a glob cannot contain a line break")


def _names(glob: str) -> list[str]:
    return [name for name in glob.split("/") if name not in ("", ".")]


def _anywhere(pattern: str) -> str:
    return pattern.lstrip("/") if "/" in pattern else f"**/{pattern}"


def _first_braces(pattern: str, whole: str) -> tuple[int, int] | None:
    """Find the first outermost pair of unescaped braces."""
    depth, start = 0, 0
    for index, char in _unquoted(pattern):
        if char == "{":
            start = start if depth else index
            depth += 1
        elif char == "}" and depth:
            depth -= 1
            if not depth:
                return start, index
    if depth:
        raise _invalid(f"'{whole}': unclosed '{{' at position {start + 1}")
    return None


def _expand(pattern: str, span: tuple[int, int] | None) -> list[str]:
    """Expand one pair of braces, split at the commas of its level."""
    if span is None:
        return [pattern]
    start, end = span
    before, inside, after = pattern[:start], pattern[start + 1 : end], pattern[end + 1 :]
    choices, depth, begin = [], 0, 0
    for index, char in _unquoted(inside):
        depth += (char == "{") - (char == "}")
        if char == "," and not depth:
            choices.append(inside[begin:index])
            begin = index + 1
    return [before + choice + after for choice in (*choices, inside[begin:])]


def _unquoted(pattern: str) -> Iterator[tuple[int, str]]:
    is_quoted = False
    for index, char in enumerate(pattern):
        if not is_quoted and char != "\\":
            yield index, char
        is_quoted = char == "\\" and not is_quoted


def _path_tokens(pattern: str, whole: str) -> list[str]:
    *folders, last = pattern.split("/")
    tokens: list[str] = []
    for name in folders:
        tokens += [DEEP] if name == _DEEP_NAME else [*_tokens(name, whole), "/"]
    return [*tokens, *([REST] if last == _DEEP_NAME else _tokens(last, whole))]


def _starred(tokens: list[str]) -> str:
    """Join the tokens of one name. All stars but the last take the shortest fit and never backtrack.

    That finds a match whenever there is one, and keeps patterns like `*a*a*a*b` from trying every split.
    """
    first, *middle = ("".join(piece) for piece in _split(tokens, STAR))
    last = middle.pop() if middle else None
    expression = first + "".join(f"(?>[^/\0]*?{piece})" for piece in middle if piece)
    return expression if last is None else f"{expression}[^/\0]*{last}"


def _split(tokens: list[str], mark: str) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    for token in tokens:
        if token == mark:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def _tokens(name: str, whole: str) -> Iterator[str]:
    index = 0
    while index < len(name):
        char, index = name[index], index + 1
        if char == "*":
            yield STAR
        elif char == "?":
            yield "[^/\0]"
        elif char == "[":
            end = name.find("]", index + 1 + (name[index : index + 1] in ("!", "^")))
            if end < 0:
                raise _invalid(f"'{whole}': unclosed '[' at position {whole.find('[') + 1}")
            yield _set(name[index:end])
            index = end + 1
        elif char == "\\" and index < len(name):
            yield re.escape(name[index])
            index += 1
        else:
            yield re.escape(char)


def _set(inside: str) -> str:
    is_negated = inside[0] in "!^"
    members = _SET_SPECIAL.sub(r"\\\1", inside[1:] if is_negated else inside)
    return f"[^/\0{members}]" if is_negated else f"[{members}]"


def _compiled(expression: str, glob: str, flags: int) -> re.Pattern[str]:
    try:
        return re.compile(expression, flags)
    except re.error as error:
        raise _invalid(f"'{glob}': {error.msg}") from None


def _invalid(message: str) -> SandboxError:
    return SandboxError(f"Invalid glob: {message}", "INVALID_GLOB")
