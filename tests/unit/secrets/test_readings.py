"""Secrets are found even if line ends, blanks, escapes or the columns of a dump interrupt them."""

import base64
import json
import re
from collections.abc import Callable
from copy import copy
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_tools.sandbox.processes.output import StreamScrubber, stream_scrubber
from forge_tools.secrets.scrubber import Scrubber

SECRET = 'corr3ct-h0rse "bättery" stäple\\97/+𝄞 and some more of the same'
PLAIN = "s3cret-key-of-48-chars-0123456789-abcdefghijklmn"


def wrapped(text: str, width: int, end: str = "\n") -> str:
    return end.join(text[at : at + width] for at in range(0, len(text), width))


def pairs(secret: str, between: str) -> str:
    return secret.encode().hex(between)


def dumped(data: bytes, line: Callable[[int, bytes], str]) -> str:
    return "\n".join(line(at, data[at : at + 16]) for at in range(0, len(data), 16)) + "\n"


def shown(part: bytes) -> str:
    return "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)


def xxd(at: int, part: bytes) -> str:
    return f"{at:08x}: {' '.join(part[i : i + 2].hex() for i in range(0, len(part), 2)):39}  {shown(part)}"


def hexdump(at: int, part: bytes) -> str:
    return f"{at:08x}  {part[:8].hex(' '):23}  {part[8:].hex(' '):23}  |{shown(part)}|"


def od(at: int, part: bytes) -> str:
    return f"{at:07o} {part.hex(' ')}"


def od_z(at: int, part: bytes) -> str:
    return f"{at:06x} {part.hex(' '):47}  >{shown(part)}<"


def forms(secret: str) -> dict[str, str]:
    """The secret as programs show it, by a name of the form."""
    data, encoded = secret.encode(), base64.b64encode(secret.encode()).decode()
    utf16 = secret.encode("utf-16-be").hex()
    return {
        **{f"base64 at {width}": wrapped(encoded, width).rstrip("=\n") for width in (1, 4, 19, 64, 76)},
        "base64 with CRLF": wrapped(encoded, 20, "\r\n").rstrip("="),
        "base64, indented": wrapped(encoded, 20, "\n    ").rstrip("="),
        "base64 in JSON": wrapped(encoded, 20, "\\n").rstrip("="),
        **{f"hex with {between!r}": pairs(secret, between) for between in " :-"},
        "HEX with colons": pairs(secret, ":").upper(),
        "hex of twos": wrapped(data.hex(), 4, " "),
        "hex in lines": wrapped(data.hex(), 60),
        "hex pairs in lines": wrapped(pairs(secret, " "), 48, "\r\n"),
        "bytes escaped": "".join(f"\\x{byte:02x}" for byte in data),
        "bytes in octal": "".join(f"\\{byte:03o}" for byte in data),
        "UTF-16 escaped": "".join(f"\\u{utf16[at : at + 4]}" for at in range(0, len(utf16), 4)),
        "UTF-16 twice": "".join(f"\\\\u{utf16[at : at + 4].upper()}" for at in range(0, len(utf16), 4)),
        "points escaped": "".join(f"\\U{ord(one):08x}" for one in secret),
        "points in braces": "".join(f"\\u{{{ord(one):x}}}" for one in secret),
        "some escaped": "".join(f"\\x{ord(one):02x}" if one in "o-/+" else one for one in json.dumps(secret)[1:-1]),
        "every byte quoted": "".join(f"%{byte:02x}" for byte in data),
        "of a shell": re.sub(r"([^\w-])", r"\\\1", secret),
        "ascii": ascii(secret)[1:-1],
        "in lines": wrapped(secret, 9),
        "in lines with CRLF": wrapped(secret, 9, "\r\n"),
        "coloured": wrapped(secret, 9, "\x1b[0m\x1b[31m"),
        "coloured lines of base64": wrapped(encoded, 19, "\x1b[0m\r\n\x1b[1;31m").rstrip("="),
    }


CASES = [(secret, name) for secret in (SECRET, PLAIN) for name in forms(SECRET)]
DUMPS = [xxd, hexdump, od, od_z]


@cache
def unused(secret: str) -> StreamScrubber:
    """What takes a secret out of a stream, to be copied: its forms are made once."""
    return stream_scrubber(Scrubber([secret]))


def everywhere(data: bytes) -> list[list[int]]:
    """Ways to cut data: once at each place of its ends and at every seventh between them, where forms repeat; between all bytes."""
    once = {*range(48), *range(48, len(data) - 24, 7), *range(len(data) - 24, len(data))}
    return [*([cut] for cut in once), [*range(len(data))]]


def streamed(secret: str, data: bytes, cuts: list[int]) -> bytes:
    stream, at, parts = copy(unused(secret)), 0, list[bytes]()
    for cut in [*sorted(cut % (len(data) + 1) for cut in cuts), len(data)]:
        parts.append(stream.feed(data[at:cut]))
        at = cut
    return b"".join([*parts, stream.rest()])


@pytest.mark.parametrize(("secret", "name"), CASES)
def test_a_secret_is_found_in_a_text_whatever_stands_between_its_characters(secret: str, name: str) -> None:
    form = forms(secret)[name]

    assert Scrubber([secret]).text(f"before\n({form})\nafter") == "before\n([redacted])\nafter"


@pytest.mark.parametrize(("secret", "name"), CASES)
def test_a_secret_is_found_in_a_stream_wherever_that_is_cut(secret: str, name: str) -> None:
    data = f"before\n({forms(secret)[name]})\nafter".encode()

    clean = {streamed(secret, data, cuts) for cuts in everywhere(data)}

    assert clean == {b"before\n([redacted])\nafter"}


@given(st.sampled_from(CASES), st.lists(st.integers(0, 1000), max_size=9))
def test_a_secret_is_found_in_a_stream_of_many_parts(case: tuple[str, str], cuts: list[int]) -> None:
    secret, name = case
    data = f"before\n({forms(secret)[name]})\nafter".encode()

    assert streamed(secret, data, cuts) == b"before\n([redacted])\nafter"


@pytest.mark.parametrize("line", DUMPS)
@pytest.mark.parametrize("before", [0, 1, 7, 12, 15])
@pytest.mark.parametrize("secret", [SECRET, PLAIN, "pässword"])
def test_neither_the_digits_nor_the_characters_of_a_dump_show_a_secret(
    line: Callable[[int, bytes], str], before: int, secret: str
) -> None:
    text = dumped(b"." * before + secret.encode() + b"\nand what follows it is shown", line)

    clean = Scrubber([secret]).text(text)

    assert "[redacted]" in clean
    assert clean.endswith(text[-20:])
    assert not re.search(r"corr3|more|of the same|s3cret|abcd|klmn|p..ssw|word", clean), clean


@pytest.mark.parametrize("line", DUMPS)
def test_a_dump_in_a_stream_is_read_as_if_it_came_at_once(line: Callable[[int, bytes], str]) -> None:
    text = dumped(b"it is: " + SECRET.encode() + b"\nand what follows it is shown", line)
    data = f"$ dump\n{text}\n$ ".encode()

    clean = {streamed(SECRET, data, cuts) for cuts in everywhere(data)}

    assert clean == {Scrubber([SECRET]).text(data.decode()).encode()}


def changed(secret: str) -> str:
    """As long, of the same characters, and another."""
    return secret[:3] + secret[4] + secret[3] + secret[5:]


@pytest.mark.parametrize(("secret", "name"), CASES)
def test_what_is_similar_to_a_secret_stays_as_it_is(secret: str, name: str) -> None:
    text = f"before\n({forms(changed(secret))[name]})\nafter"

    assert Scrubber([secret]).text(text) == text
    assert streamed(secret, text.encode(), [*range(0, len(text), 5)]).decode() == text


@pytest.mark.parametrize("line", DUMPS)
def test_a_dump_of_something_similar_stays_as_it_is(line: Callable[[int, bytes], str]) -> None:
    text = dumped(b"it is: " + changed(SECRET).encode() + b"\nand what follows", line)

    assert Scrubber([SECRET]).text(text) == text
    assert streamed(SECRET, text.encode(), [*range(len(text))]).decode() == text


@pytest.mark.parametrize("text", ["p4ss w0rd", "p4ss:w0rd", "p4ss, w0rd", "p4ss-w0rd", "p4ss\n-w0rd"])
def test_blanks_between_the_characters_of_a_secret_make_it_another(text: str) -> None:
    assert Scrubber(["p4ssw0rd"]).text(text) == text


def test_a_secret_of_which_a_reading_leaves_hardly_anything_is_found_as_it_is_alone() -> None:
    scrubber = Scrubber(["\\\\\\\\\\n\\x41"])

    assert scrubber.text("A, A\\x41 and \\\\\\\\\\n\\x41") == "A, A\\x41 and [redacted]"


def test_a_private_key_is_found_though_its_lines_are_others() -> None:
    key = "-----BEGIN X-----\nMIIBVwIBADANBgkqhkiG9w0BAQEF\nAASCAT8wggE7AgEAAkEAq7BFUpkG\n-----END X-----\n"

    text = Scrubber([key]).text(json.dumps({"key": key.replace("\n", "\n    ")}) + wrapped(key.replace("\n", ""), 20))

    assert "MIIB" not in text
    assert "CAT8" not in text


def test_lines_of_a_stream_are_handed_on_as_they_come() -> None:
    stream = stream_scrubber(Scrubber([PLAIN]))
    for line in ("no secret in it\n", "what  x |\n", "\\done\n", "00000010: 41  A\n", "100%\n"):
        assert stream.feed(line.encode()) == line.encode()
