"""Where a text occurs in a file, and by which rule it was matched."""

import pytest

from forge_tools.tools.file.matches import Match, find_matches, reindented


def spans(text: str, old: str, *, with_blanks: bool = False) -> tuple[str, list[tuple[int, int]]]:
    found = find_matches(text, old, lambda: None, with_blanks=with_blanks)
    return found.way if found else "", [(match.start, match.end) for match in found]


@pytest.mark.parametrize(
    ("text", "old", "found"),
    [
        ("abcabc", "bc", ("exact", [(1, 3), (4, 6)])),
        ("aaa", "aa", ("exact", [(0, 2)])),
        ("a\r\nb", "a\nb", ("line-endings", [(0, 4)])),
        ("a\nb", "a\r\nb", ("line-endings", [(0, 3)])),
        ("a\r\nb a\nb", "a\nb", ("exact", [(5, 8)])),
        ("a.b", "a\n.", ("", [])),
        ("x  y", "x y", ("", [])),
    ],
)
def test_the_strictest_way_that_finds_anything_counts(
    text: str, old: str, found: tuple[str, list[tuple[int, int]]]
) -> None:
    assert spans(text, old) == found


@pytest.mark.parametrize(
    ("text", "old", "expected"),
    [
        ("  a\n  b\n", "a\nb", [(0, 7)]),
        ("  a\n  b\n", "a\nb\n", [(0, 8)]),
        ("a \nb\t\n", "a\nb", [(0, 5)]),
        ("a\n\n    \nb", "a\n\n\nb", [(0, 9)]),
        ("\ta\r\n\tb\r\n", "a\nb\n", [(0, 8)]),
        ("  a\n b\n", "a\nb", []),
        ("\ta\n    b\n", "a\nb", []),
        ("a\nb\n", "    a\n    b", [(0, 3)]),
        ("  a b\n", "a  b", []),
        ("x a\n", "a", [(2, 3)]),
        ("a\n", " \n ", []),
        ("  a\n  b\n  a\n  b\n", "a\nb", [(0, 7), (8, 15)]),
    ],
)
def test_blanks_may_differ_at_line_ends_and_by_one_indentation(
    text: str, old: str, expected: list[tuple[int, int]]
) -> None:
    assert spans(text, old, with_blanks=True)[1] == expected


def test_new_text_gets_the_indentation_of_its_place() -> None:
    assert reindented("a\n\n  b", Match(0, 1, added="\t")) == "\ta\n\n\t  b"
    assert reindented("    a\n      b", Match(0, 1, removed="    ")) == "a\n  b"
    assert reindented("a", Match(0, 1)) == "a"
