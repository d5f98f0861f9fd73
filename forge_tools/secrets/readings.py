"""The ways a text may show a secret with other bytes inside. Standard library only: shell supervisors load little."""

import re
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate, chain

# The alternatives are disjoint, so nothing is tried twice. (Possessive quantifiers lose matches before 3.11.5.)
ESCAPE = (
    r"\x1b(?:"
    r"\[[0-?]*[ -/]*[@-~]"  # control sequences: colours, cursor
    r"|[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)"  # one-line strings: titles, links
    r"|[ -/]+[0-~]"  # character sets
    r"|[PX](?![^\x07\x1b\n]*(?:\x07|\x1b\\))|[0-OQ-WYZ\\`-~]"  # single functions, and unterminated strings
    r")"
)
"""What a terminal interprets instead of showing."""

MOST_UNSEEN = 4096
"""How many bytes of escapes may lie inside one secret; beyond that, a possible beginning of a secret is not held back."""

_LEAST_READ = 6
"""A form that a reading reduces below this length is only searched as written."""

_WIDEST = 12
"""The most bytes that encode one byte of a secret, as in `\\\\U00000068`; dumps with their columns need fewer."""

_PROBE_BYTES = 16
"""How much of a possible beginning of a form is checked first: it nearly always fails, which saves copying the rest."""

FEW = 250
"""Up to this many forms, those of about twenty secrets, are searched one by one, faster than splitting the data."""

_WIDTH = 6
"""How many final bytes of each form are searched first; secrets share beginnings more often than ends."""

_AT_ONCE = 1 << 16
"""How many pieces of the data are compared at once: the set of all is many times its size."""

_UNFINISHED = r"\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b\n]*\x1b?|[ -/]*)"
_DIGIT = "[0-9a-fA-F]"
_HIGH = rf"u[dD][89abAB]{_DIGIT}{{2}}"
_CHARACTER = (
    rf"(?P<pair>{_HIGH}\\+u[dD][c-fC-F]{_DIGIT}{{2}})"
    rf"|u(?P<four>{_DIGIT}{{4}})|u\{{(?P<braced>{_DIGIT}{{1,6}})\}}|U(?P<eight>{_DIGIT}{{8}})"
    rf"|x(?P<byte>{_DIGIT}{{2}})|(?P<octal>[0-3][0-7]{{2}})|(?P<letter>[abefnrtv])"
)
_BEGUN = rf"{_HIGH}(?:\\+(?:u{_DIGIT}{{0,3}})?)?|u{_DIGIT}{{0,3}}|u\{{{_DIGIT}{{0,6}}|U{_DIGIT}{{0,7}}|x{_DIGIT}?|[0-3][0-7]?"
_LETTERS = {b"a": b"\a", b"b": b"\b", b"e": b"\x1b", b"f": b"\f", b"t": b"\t", b"v": b"\v"}

# Dumps as xxd, hexdump -C and od write them: an offset, digits, often the characters beside them.
_GUTTER = r"[^\r\n]{0,120}"
_OFFSET = rf"\r?\n0{_DIGIT}{{5,15}}"
_OFFSET_BEGUN = rf"(?:\r|\r?\n(?:0{_DIGIT}{{0,15}})?)"

_HEXADECIMAL = re.compile(rf"{_DIGIT}{{12,}}".encode())
_STANDS_FOR = re.compile(rb"\\[0-3abeftuvxU]|%[0-9a-fA-F]{2}")
_MOST_UNFINISHED = 256
_BETWEEN = b" \t\r\n:,-"
_BLANK = re.compile(rb"[ \t]")
_DIGITS_AND_BETWEEN = b"0123456789abcdefABCDEF" + _BETWEEN
_DUMPED_LINE = re.compile(rf"\n0{_DIGIT}{{5,15}}:?[ \t]+{_DIGIT}{{2}}".encode())
_DIGITS_LAST = re.compile(rf"(?:\A|[\s:]){_DIGIT}{{1,16}}[\s:,-]*\Z".encode())

_Span = tuple[int, int]


class Rule:
    """What a text omits, or writes in another form.

    `unfinished` matches endings that only more data can resolve; with `is_withheld`, they are held back until then.
    `rest` is removed together with the form that it follows.
    """

    def __init__(self, tokens: str, *unfinished: str, is_withheld: bool = False, rest: str | None = None) -> None:
        self.tokens = re.compile(tokens.encode())
        self.is_withheld = is_withheld
        self.rest = None if rest is None else re.compile(rest.encode())
        self._unfinished = [re.compile(rf"(?:{one})\Z".encode()) for one in unfinished]

    def text(self, data: bytes) -> bytes:
        return self.tokens.sub(_meant if self.is_withheld and _STANDS_FOR.search(data) else b"", data)

    def begun(self, data: bytes) -> list[int]:
        """Return the positions from which only more data can decide."""
        if self.is_withheld and not has_escapes(data):
            return []
        start = 0 if b"\x1b" in data else max(0, len(data) - _MOST_UNFINISHED)
        places = [match.start() for one in self._unfinished if (match := one.search(data, start))]
        if not places or b"\x1b" not in data:
            return places
        whole = [match.span() for match in _ESCAPES.finditer(data)]  # the end of one, a backslash, begins nothing
        return [place for place in places if not any(begin < place < end for begin, end in whole)]


def has_escapes(data: bytes) -> bool:
    """Whether something in the data may mean something else."""
    return b"\\" in data or b"%" in data or b"\x1b" in data


_AS_IT_IS = Rule("(?!)")
_ESCAPES = re.compile(ESCAPE.encode())


def _meaning(between: str) -> Rule:
    return Rule(
        rf"{ESCAPE}|{between}|\\+(?:{_CHARACTER})?|%(?P<quoted>{_DIGIT}{{2}})",
        rf"{_UNFINISHED}|\\+(?:{_BEGUN})?|%{_DIGIT}?",
        is_withheld=True,
    )


_MEANT = _meaning(r"[\r\n]+[ \t]*")
"""Without terminal escapes, line ends and indentation, and with URL escapes and quoting decoded."""

_WITHOUT_BLANKS = _meaning(r"[ \t\r\n]+")
"""The same for forms that contain blanks themselves: a line may begin or end at one."""

_SPACED = Rule(rf"{ESCAPE}|[ \t\r\n:,-]+", _UNFINISHED)
"""Without separators between hexadecimal digits."""

_DUMPED = Rule(
    rf"{ESCAPE}|  {_GUTTER}{_OFFSET}:|(?: [|>]{_GUTTER})?{_OFFSET}(?=[ \t])|[ \t:,-]",
    rf"  {_GUTTER}{_OFFSET_BEGUN}?",
    rf" (?:[|>]{_GUTTER}{_OFFSET_BEGUN}?)?",
    _OFFSET_BEGUN,
    rest=rf"(?:{_DIGIT}{{0,14}}(?: {{1,2}}{_DIGIT}{{2,16}}){{0,32}}  {_GUTTER})?",
)
"""Also without line offsets and the character column beside the digits."""


_REST_BEGUN = re.compile(rf"{_DIGIT}{{0,14}}(?: {{1,2}}{_DIGIT}{{0,16}}){{0,32}} {{0,2}}".encode())


class Readings:
    """The ways to read data, each with the forms to search for in it."""

    def __init__(self, forms: Iterable[bytes]) -> None:
        self.forms = sorted({form for form in forms if form})
        self.most_held = max(MOST_UNSEEN, max(map(len, self.forms), default=1) * _WIDEST)
        self.kinds = [Kind(rule, known) for rule, known in _by_rule(self.forms) if known]
        closed_up = {_closed_up(form) for form in self.forms}
        self._is_anywhere = b"" in closed_up
        self._search = _search_for(sorted(closed_up - {b""}))

    def of(self, data: bytes) -> list["Reading"]:
        """Return the readings that contain forms: nearly always none, which one or two passes over the data show."""
        is_likely = self._is_anywhere or self._search(_closed_up(data))
        kinds = [kind for kind in self.kinds if is_likely or kind.may_hide_in(data)]
        return [reading for kind in kinds if (reading := kind.reading(data)) is not None]

    def begun(self, data: bytes) -> int:
        """Return where something begins, in data that will continue, that may become a form or a longer one."""
        place = min((kind.begun(data) for kind in self.kinds), default=len(data))
        if b"\x1b" in data:  # a split escape would no longer be one
            return next((one.start() for one in _ESCAPES.finditer(data) if one.start() < place < one.end()), place)
        return place

    def replaced(self, data: bytes, by: bytes) -> bytes:
        """Return the data without forms, the same object if there are none."""
        readings, parts, at = self.of(data), list[bytes](), 0
        while (span := first(readings, at)) is not None:
            parts += data[at : span[0]], by
            start, at = span
            while (inner := first(readings, start + 1)) is not None and inner[0] < at:
                start, at = inner[0], max(at, inner[1])  # nor is the rest of a form that begins in another shown
        return b"".join((*parts, data[at:])) if parts else data


class Kind:
    """One way to read data, and the forms searched for in it."""

    def __init__(self, rule: Rule, forms: list[bytes]) -> None:
        self._rule = rule
        self._forms = forms
        self._found_in = _search_for(forms)
        self._longest = max(map(len, forms))
        self._beginnings = {form[:length] for form in forms for length in (1, 2)}

    def may_hide_in(self, data: bytes) -> bool:
        """Whether forms may be present even if removing only blanks and the like reveals none."""
        if self._rule.is_withheld:
            return has_escapes(data)
        if self._rule is _DUMPED:
            return _DUMPED_LINE.search(data) is not None
        return self._rule is _SPACED and b"\x1b" in data

    def reading(self, data: bytes) -> "Reading | None":
        """Return the data read that way, if it contains forms."""
        there = sorted(self._found_in(self._rule.text(data)), key=len, reverse=True)
        return Reading(data, self._rule, re.compile(b"|".join(map(re.escape, there)))) if there else None

    def begun(self, data: bytes) -> int:
        """Return where everything up to the end is the beginning of a form; the end of the data if nowhere."""
        cuts = self._rule.begun(data)
        ends = cuts if cuts and self._rule.is_withheld else [*cuts, len(data)]
        begun = [place for end in ends if (place := self._begun_before(data[:end])) is not None]
        return min((*begun, *(cuts if self._rule.is_withheld else ())), default=len(data))

    def _begun_before(self, data: bytes) -> int | None:
        if self._rule is _DUMPED and b"\x1b" not in data and not _DIGITS_LAST.search(data[-40:]):
            return None
        start = 0
        if self._rule is _SPACED and b"\x1b" not in data:
            start = len(data.rstrip(_DIGITS_AND_BETWEEN))
        reading = Reading(data[start:], self._rule)
        text, beginnings = reading.text, self._beginnings
        for at in range(max(0, len(text) - self._longest + 1), len(text)):
            if (
                text[at : at + 2] in beginnings
                and self._is_beginning(text[at : at + _PROBE_BYTES])
                and self._is_beginning(text[at:])
            ):
                return start + reading.place(at)[0]
        return None

    def _is_beginning(self, data: bytes) -> bool:
        """Whether a form continues after `data`. Such forms follow it directly in sort order."""
        following = bisect_right(self._forms, data)
        return following < len(self._forms) and self._forms[following].startswith(data)


class Reading:
    """The text that some data contain, its secret parts, and their positions in the data."""

    def __init__(self, data: bytes, rule: Rule, forms: re.Pattern[bytes] | None = None) -> None:
        self._data, self._rest, self._forms = data, rule.rest, forms
        matches = list(rule.tokens.finditer(data)) if rule.tokens is not _AS_IT_IS.tokens else []
        said = [_meant(match) for match in matches]
        self._starts, self._ends = [match.start() for match in matches], [match.end() for match in matches]
        # By match: how many bytes shorter than the data the text is before it, and where it ends in the text.
        self._lost = [0, *accumulate(len(match[0]) - len(one) for match, one in zip(matches, said, strict=True))]
        self._until = [end - lost for end, lost in zip(self._ends, self._lost[1:], strict=True)]
        kept = map(data.__getitem__, map(slice, [0, *self._ends], [*self._starts, len(data)]))
        self.text = b"".join(chain.from_iterable(zip(kept, [*said, b""], strict=True)))
        self._found: _Span | None = (-1, -1)

    def place(self, position: int) -> _Span:
        """Return the span of data that encodes that byte of the text."""
        before = bisect_right(self._until, position)
        if before < len(self._starts) and position >= self._starts[before] - self._lost[before]:
            return self._starts[before], self._ends[before]
        place = position + self._lost[before]
        return place, place + 1

    def position(self, place: int) -> int:
        """Return the position in the text of the first byte that begins at or after that place in the data."""
        before = bisect_right(self._ends, place)
        if before < len(self._starts) and self._starts[before] < place:
            return self._until[before]
        return place - self._lost[before]

    def next(self, place: int) -> _Span | None:
        """Return the span of data of the first form that begins at or after that place."""
        if self._forms is not None and self._found is not None and self._found[0] < place:
            match = self._forms.search(self.text, self.position(place))
            self._found = None if match is None else self._span(match)
        return self._found

    def may_grow(self, span: _Span) -> bool:
        """Whether more data may extend what was found there."""
        if self._rest is None or span != self._found:
            return False
        return span[1] == len(self._data) or _REST_BEGUN.fullmatch(self._data, span[1]) is not None

    def _span(self, match: re.Match[bytes]) -> _Span:
        start, end = self.place(match.start())[0], self.place(match.end() - 1)[1]
        rest = self._rest.match(self._data, end) if self._rest is not None else None
        return start, end if rest is None else rest.end()


def first(readings: Iterable[Reading], place: int) -> _Span | None:
    """Return the first form that begins at or after that place; of several, the longest."""
    spans = [span for reading in readings if (span := reading.next(place)) is not None]
    return min(spans, key=lambda span: (span[0], -span[1]), default=None)


def _search_for(forms: list[bytes]) -> Callable[[bytes], list[bytes]]:
    """Build the function that returns which of the forms are in some data; its time hardly grows with their number."""
    few = [form for form in forms if len(forms) <= FEW or len(form) < _WIDTH]
    by_end: dict[bytes, list[bytes]] = {}
    for form in forms if len(forms) > FEW else ():
        by_end.setdefault(form[-_WIDTH:], []).append(form)

    def search(data: bytes) -> list[bytes]:
        found = [form for form in few if form in data]
        for start in range(0, len(data) - _WIDTH + 1, _AT_ONCE) if by_end else ():
            pieces = {data[at : at + _WIDTH] for at in range(start, min(start + _AT_ONCE, len(data) - _WIDTH + 1))}
            for end in by_end.keys() & pieces:
                found += [form for form in by_end[end] if form in data]
        return found

    return search


def _by_rule(forms: list[bytes]) -> Iterator[tuple[Rule, list[bytes]]]:
    with_blanks = {form for form in forms if _BLANK.search(_MEANT.text(form))}
    digits = [form for form in forms if _HEXADECIMAL.fullmatch(form)]
    yield _AS_IT_IS, forms
    yield _MEANT, _left(_MEANT, {*forms} - with_blanks)
    yield _WITHOUT_BLANKS, _left(_WITHOUT_BLANKS, with_blanks)
    yield _SPACED, digits
    yield _DUMPED, digits


def _closed_up(data: bytes) -> bytes:
    return data.translate(None, _BETWEEN)


def _left(rule: Rule, forms: Iterable[bytes]) -> list[bytes]:
    """Return the forms as that reading leaves them, except those that are too short or not text."""
    read = {(form, rule.text(form)) for form in forms}
    return sorted({text for form, text in read if text == form or (len(text) >= _LEAST_READ and _is_text(text))})


def _is_text(data: bytes) -> bool:
    return data.decode("utf-8", "replace").encode() == data


def _meant(match: re.Match[bytes]) -> bytes:
    kind = match.lastgroup
    if kind is None:
        return b""
    shown = match[kind]
    if kind == "letter":
        return _LETTERS.get(shown, b"")
    if kind in {"byte", "quoted"}:
        return bytes.fromhex(shown.decode())
    if kind == "octal":
        return bytes((int(shown, 8),))
    if kind == "pair":
        return bytes.fromhex((shown[1:5] + shown[-4:]).decode()).decode("utf-16-be").encode()
    code = int(shown, 16)
    return chr(code).encode("utf-8", "surrogatepass") if code <= sys.maxunicode else b""
