"""Globs of the file tools: one meaning on every host and in every engine.

`*` and `?` stay within a name, `**` as a whole name crosses folders, `[...]` and `[!...]` are sets, `{a,b}` alternatives, a
backslash takes the meaning from the next character.
"""

import re
from collections.abc import Iterator

from forge_tools.errors import SandboxError

MAX_ALTERNATIVES = 1000
_SPECIAL = re.compile(r"([\\*?\[\]{}!# ])")
_SET_SPECIAL = re.compile(r"([\\\[\]^&~|])")
_STAR = "*"


def compile_glob(pattern: str) -> re.Pattern[str]:
    """Turn a glob into an expression for whole relative paths. A pattern without `/` matches names in every folder.

    Raises:
        SandboxError: what is wrong with it, and where (INVALID_GLOB).
    """
    if "\n" in pattern:
        raise invalid("a glob holds no line break")
    alternatives = [_expression(_anywhere(one), pattern) for one in alternatives_of(pattern)]
    try:
        return re.compile("|".join(f"(?:{one})" for one in alternatives), re.DOTALL)
    except re.error as error:
        raise invalid(f"'{pattern}': {error.msg}") from None


def alternatives_of(pattern: str) -> list[str]:
    """Write out the braces of a glob.

    Raises:
        SandboxError: an unclosed brace, or too many alternatives (INVALID_GLOB).
    """
    found = [pattern]
    while any(spans := [_first_braces(one, pattern) for one in found]):
        found = [expanded for one, span in zip(found, spans, strict=True) for expanded in _expand(one, span)]
        if len(found) > MAX_ALTERNATIVES:
            raise invalid(f"'{pattern}' has more than {MAX_ALTERNATIVES:,} alternatives")
    return found


def by_path(path: str) -> str:
    """Order as a walk does that takes names one by one: what is in `a` before `a.py`."""
    return path.replace("/", "\0")


def only(glob: str) -> str:
    """Write rules for an ignore file that hide all but what matches, folders excepted."""
    wanted = (f"!/{_anywhere(one)}" for one in alternatives_of(glob))
    # A space at the end of a rule counts only when it is quoted.
    rules = (f"{rule[:-1]}\\ " if rule.endswith(" ") else rule for rule in ("/**", "!/**/", *wanted))
    return "".join(f"{rule}\n" for rule in rules)


def plain_rule(path: str) -> str:
    """Write a rule that means this one path."""
    quoted = _SPECIAL.sub(r"\\\1", path)
    return f"/{quoted}\n"


def _anywhere(pattern: str) -> str:
    return pattern.lstrip("/") if "/" in pattern else f"**/{pattern}"


def _first_braces(pattern: str, whole: str) -> tuple[int, int] | None:
    """Find the first outermost pair of braces that is not quoted."""
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
        raise invalid(f"'{whole}': unclosed '{{' at position {start + 1}")
    return None


def _expand(pattern: str, span: tuple[int, int] | None) -> list[str]:
    if span is None:
        return [pattern]
    start, end = span
    before, inside, after = pattern[:start], pattern[start + 1 : end], pattern[end + 1 :]
    return [before + choice + after for choice in _split(inside)]


def _split(inside: str) -> list[str]:
    """Split at the commas of this level."""
    choices, depth, begin = [], 0, 0
    for index, char in _unquoted(inside):
        depth += (char == "{") - (char == "}")
        if char == "," and not depth:
            choices.append(inside[begin:index])
            begin = index + 1
    return [*choices, inside[begin:]]


def _unquoted(pattern: str) -> Iterator[tuple[int, str]]:
    is_quoted = False
    for index, char in enumerate(pattern):
        if not is_quoted and char != "\\":
            yield index, char
        is_quoted = char == "\\" and not is_quoted


def _expression(pattern: str, whole: str) -> str:
    first, *rest = _blocks(pattern, whole)
    if not rest:
        return "/".join(first)
    *middle, last = rest
    expression = "".join(f"{name}/" for name in first)
    for block in filter(None, middle):  # a fixed number of names: the first place where it fits is as good as any
        expression += f"(?>(?:[^/\0]+/)*?{'/'.join(block)}/)"
    return expression + (f"(?:[^/\0]+/)*{'/'.join(last)}" if last else ".*")


def _blocks(pattern: str, whole: str) -> list[list[str]]:
    """The expressions of the names between one `**` and the next."""
    blocks: list[list[str]] = [[]]
    for name in pattern.split("/"):
        if name == "**":
            blocks.append([])
        else:
            blocks[-1].append(name_expression(name, whole))
    return blocks


def name_expression(name: str, whole: str) -> str:
    """Translate one name of a glob into an expression, to be matched with zero characters or nothing around it.

    All stars but the last take the shortest way that fits and never go back on it: that finds a match whenever there is one, and keeps
    patterns like `*a*a*a*b` from trying every split.
    """
    pieces = [""]
    for token in _tokens(name, whole):
        if token == _STAR:
            pieces.append("")
        else:
            pieces[-1] += token
    if len(pieces) == 1:
        return pieces[0]
    first, *middle, last = pieces
    return first + "".join(f"(?>[^/\0]*?{piece})" for piece in middle if piece) + "[^/\0]*" + last


def _tokens(name: str, whole: str) -> Iterator[str]:
    index = 0
    while index < len(name):
        char, index = name[index], index + 1
        if char == "*":
            yield _STAR
        elif char == "?":
            yield "[^/\0]"
        elif char == "[":
            end = name.find("]", index + 1 + (name[index : index + 1] in ("!", "^")))
            if end < 0:
                raise invalid(f"'{whole}': unclosed '[' at position {whole.find('[') + 1}")
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


def invalid(message: str) -> SandboxError:
    """Word what is wrong with a glob."""
    return SandboxError(f"Invalid glob: {message}", "INVALID_GLOB")
