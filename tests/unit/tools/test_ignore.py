"""Rules are read and matched as git does: the cases that others get wrong."""

import time

import pytest

from forge_tools.tools.file.ignore import Names, Rules


def ignored(rules: str | bytes, *paths: str, are_folders: bool = False) -> list[str]:
    text = rules if isinstance(rules, bytes) else rules.encode()
    found = []
    for path in paths:
        folder, _, name = path.rpartition("/")
        out, _ = Rules(text).decide(Names([name]), f"{folder}/" if folder else "", are_folders=are_folders)
        found += [path] if out else []
    return found


@pytest.mark.parametrize(
    ("rules", "yes", "no"),
    [
        ("*.log", ["a.log", "x/a.log", ".log"], ["a.logs"]),
        ("/a", ["a"], ["x/a"]),
        ("a/b", ["a/b"], ["x/a/b", "b"]),
        ("**/b", ["b", "x/b", "x/y/b"], ["xb"]),
        ("a/**", ["a/x", "a/x/y"], ["a"]),
        ("a/**/b", ["a/b", "a/x/b", "a/x/y/b"], ["ab", "a/xb"]),
        ("a**/b", ["a/b", "ab", "ax/y/b"], ["b", "x/a/b"]),
        ("?**/b", ["a/b", "ab/b"], ["a/x/b"]),
        ("a*c", ["abc", "ac"], ["a/c"]),
        ("foo\\ ", ["foo "], ["foo"]),
        ("foo  ", ["foo"], ["foo  "]),
        ("foo\\  ", ["foo "], ["foo", "foo  "]),
        ("foo\t", ["foo\t"], ["foo"]),
        ("foo\r\nbar\r", ["foo", "bar"], []),
        ("\\#a\n#b", ["#a"], ["#b", "b"]),
        ("\\!a", ["!a"], ["a"]),
        ("{a,b}", ["{a,b}"], ["a", "b"]),
        ("[[:digit:]_]x", ["1x", "_x"], ["ax", ":x"]),
        ("[[:bad:]]x", [], ["bx", "[x"]),
        ("[a-c]\n[!a-c]z", ["b", "dz"], ["d", "az"]),
        ("[]-]", ["]", "-"], ["a"]),
        ("[\\]a]", ["]", "a"], ["\\"]),
        ("[a-", [], ["a", "[a-", "-"]),
        ("a\\", [], ["a", "a\\"]),
        ("\\a", ["a"], ["\\a"]),
        ("?", ["a"], ["é", "ab"]),
        ("??", ["é", "ab"], ["a"]),
        ("*\n!keep", ["a"], ["keep", "x/keep"]),
        ("!a\na", ["a"], []),
        ("a\n!a\na", ["a"], []),
        ("\ufeffa", ["a"], ["\ufeffa"]),
        ("\n \n\n!\n/\n", [], ["a", "!"]),
    ],
)
def test_a_rule_means_what_git_says(rules: str, yes: list[str], no: list[str]) -> None:
    assert ignored(rules, *yes, *no) == yes


def test_a_rule_for_folders_leaves_files_alone() -> None:
    assert ignored("build/", "build") == []
    assert ignored("build/\n/x/y/\n*z/", "build", "a/build", "x/y", "y", "xyz", are_folders=True) == [
        "build",
        "a/build",
        "x/y",
        "xyz",
    ]


def test_rules_that_are_not_text_match_the_bytes_of_names() -> None:
    assert ignored(b"caf\xe9\n*.\xff\n", "caf\udce9", "a.\udcff", "café") == ["caf\udce9", "a.\udcff"]


def test_all_names_of_a_folder_are_decided_at_once() -> None:
    names = Names(["a.log", "keep.log", "b", "new\nline", "x.tmp"])
    out, kept = Rules(b"*.log\n!keep*\nx.*\n*\\\nline\n").decide(names, "", are_folders=False)
    assert (out, kept) == ({"a.log", "x.tmp"}, {"keep.log"})


@pytest.mark.parametrize("rule", ["*a*a*a*a*a*a*a*a*b", "**/a/**/a/**/a/**/a/**/a/**/b"])
def test_many_stars_do_not_try_every_split(rule: str) -> None:
    started = time.process_time()
    assert ignored(rule, "a" * 255, "a/" * 300 + "a") == []
    assert time.process_time() - started < 0.5
