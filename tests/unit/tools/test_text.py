"""Encodings are recognised, binary files too, and everything shown is valid text."""

import codecs

import pytest

from forge_tools.tools.file.text import SAMPLE_BYTES, UNKNOWN, Encoding, as_utf8, binary_kind, sniff, visible


@pytest.mark.parametrize(
    ("sample", "encoding"),
    [
        (b"plain", Encoding("utf-8")),
        (codecs.BOM_UTF8 + b"x", Encoding("utf-8", None, codecs.BOM_UTF8)),
        ("hé".encode("utf-16"), Encoding("utf-16-le", "utf-16-le", codecs.BOM_UTF16_LE)),
        (codecs.BOM_UTF16_BE + b"\0x", Encoding("utf-16-be", "utf-16-be", codecs.BOM_UTF16_BE)),
        ("hé".encode("utf-32"), Encoding("utf-32-le", "utf-32-le", codecs.BOM_UTF32_LE)),
        (b"caf\xe9", Encoding(UNKNOWN, "latin-1")),
        ("日本語のテキスト".encode() + b"\xff", Encoding("utf-8")),
        (b"x" * (SAMPLE_BYTES - 1) + "日".encode()[:1], Encoding("utf-8")),
    ],
)
def test_the_encoding_is_seen_in_the_first_bytes(sample: bytes, encoding: Encoding) -> None:
    assert sniff(sample, None) == encoding


def test_the_encoding_that_was_asked_for_wins() -> None:
    assert sniff("é".encode(), "latin-1").codec == "iso8859-1"
    assert sniff(codecs.BOM_UTF8 + b"x", "utf-8-sig") == Encoding("utf-8", None, codecs.BOM_UTF8)
    assert sniff(codecs.BOM_UTF8 + b"x", "latin-1").bom == b""


@pytest.mark.parametrize("name", ["nope", "rot13", "base64", "", "utf-8\0"])
def test_an_unknown_text_encoding_is_refused(name: str) -> None:
    with pytest.raises((LookupError, ValueError)):
        sniff(b"x", name)


@pytest.mark.parametrize("codec", ["utf-16-le", "utf-32-be", "shift_jis", "gb18030", "latin-1"])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 7])
def test_characters_survive_every_cut_between_chunks(codec: str, size: int) -> None:
    text = "ab\ncé\n" if codec == "latin-1" else "ab\n日本\n"
    data = text.encode(codec)
    chunks = (data[i : i + size] for i in range(0, len(data), size))
    assert b"".join(as_utf8(chunks, Encoding(codec, codec))).decode() == text


@pytest.mark.parametrize(
    ("sample", "kind"),
    [
        (b"text\n", None),
        (b"\x1b[31mcolours\x1b[0m \x08", None),
        (b"a" * 8192 + b"\0", None),
        (b"a\0b", "binary data"),
        (b"\x89PNG\r\n\x1a\n\0\0", "PNG image"),
        (b"\x7fELF\0", "ELF program"),
        (bytes(range(1, 9)) * 10, "binary data"),
    ],
)
def test_what_is_not_text_is_recognised(sample: bytes, kind: str | None) -> None:
    assert binary_kind(sample) == kind


def test_what_cannot_be_printed_is_shown_as_escapes() -> None:
    assert visible("a\x1bb\x00c\rd\ttab\ud800") == "a\\x1bb\\x00c\\rd\ttab\\ud800"
