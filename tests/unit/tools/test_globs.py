"""Globs mean the same in every engine, and rules are read and matched as git does: the cases that others get wrong."""

import random
import time
from itertools import product

import pytest

from forge_tools.errors import SandboxError
from forge_tools.tools.file.globs import Names, Pattern, Rules, alternatives_of, compile_glob
from forge_tools.tools.file.ripgrep import only, plain_rule

NAMES = ("a", "b", "ab", "a.py", "b.ts", ".x")
PATHS = ["/".join(names) for length in (1, 2, 3) for names in product(NAMES, repeat=length)]
PIECES = ("a", "*", "**", "?", "[ab]", "[!a]*", "*.py", "{a,b}", "{*.ts,ab}", "a*", "**b", "\\a")


@pytest.mark.parametrize(
    ("glob", "yes", "no"),
    [
        ("*.py", ["a.py", "x/y/a.py", ".py"], ["a.pyc", "a.py/b"]),
        ("src/*.py", ["src/a.py"], ["src/x/a.py", "x/src/a.py"]),
        ("/*.py", ["a.py"], ["x/a.py"]),
        ("src/**/*.py", ["src/a.py", "src/x/y/a.py"], ["a.py"]),
        ("**/test_*", ["test_a", "x/test_b"], ["x/atest_"]),
        ("src/**", ["src/a", "src/x/a"], ["src", "a"]),
        ("a?c", ["abc", "x/aéc"], ["a/c", "ac"]),
        ("[ab].txt", ["a.txt"], ["c.txt"]),
        ("[!ab].txt", ["c.txt"], ["a.txt", "/.txt"]),
        ("[]a].txt", ["].txt", "a.txt"], ["b.txt"]),
        ("[^a-c]", ["d"], ["b"]),
        ("[[&~|]", ["[", "&", "~", "|"], ["a"]),
        ("*.{ts,tsx}", ["a.ts", "x/a.tsx"], ["a.t"]),
        ("{a,{b,c}}/*", ["a/x", "b/x", "c/x"], ["d/x"]),
        ("{a}", ["a"], ["{a}"]),
        ("\\*.py", ["*.py"], ["a.py"]),
        ("\\{x\\}", ["{x}"], ["x"]),
        ("a**b", ["ab", "axxb"], ["a/b"]),
        ("**/**/a", ["a", "x/y/a"], ["b"]),
        ("a.c+(d)$", ["a.c+(d)$"], ["abc+(d)$"]),
        ("*x*y*z", ["xyz", "1x2y3z", "xyxyz"], ["zyx", "xy"]),
    ],
)
def test_a_glob_means_the_same_everywhere(glob: str, yes: list[str], no: list[str]) -> None:
    matcher = compile_glob(glob)
    assert [path for path in yes if not matcher.fullmatch(path)] == []
    assert [path for path in no if matcher.fullmatch(path)] == []


@pytest.mark.parametrize(
    ("glob", "says"),
    [
        ("[ab", r"unclosed '\[' at position 1"),
        ("x/[!", r"unclosed '\[' at position 3"),
        ("{a,b", "unclosed '{' at position 1"),
        ("[z-a]", "bad character range"),
        ("a\nb", "cannot contain a line break"),
        ("{a,b}" * 11, "more than 1,000 alternatives"),
    ],
)
def test_a_broken_glob_is_refused_with_the_place(glob: str, says: str) -> None:
    with pytest.raises(SandboxError, match=says) as refused:
        compile_glob(glob)
    assert refused.value.code == "INVALID_GLOB"


def test_many_stars_do_not_try_every_split() -> None:
    started = time.process_time()
    assert not compile_glob("*a*a*a*a*a*a*a*a*b").fullmatch("a" * 255)
    assert time.process_time() - started < 0.5


def test_alternatives_are_written_out_in_order() -> None:
    assert alternatives_of("x{a,b{1,2}}y") == ["xay", "xb1y", "xb2y"]


def test_rules_hide_all_but_what_matches() -> None:
    assert only("a/{b,c}*.py").splitlines() == ["/**", "!/**/", "!/a/b*.py", "!/a/c*.py"]
    assert only("x ") == "/**\n!/**/\n!/**/x\\ \n"


def test_a_rule_for_one_path_has_no_signs_in_it() -> None:
    assert plain_rule("a b/[x]{y}#*?!\\") == "/a\\ b/\\[x\\]\\{y\\}\\#\\*\\?\\!\\\\\n"


def test_many_folders_in_a_glob_are_matched_at_once() -> None:
    started = time.process_time()

    assert not compile_glob("**/" * 40 + "zz").fullmatch("/".join("abcdefghij"))

    assert time.process_time() - started < 1


def is_found(glob: str, path: str) -> bool:
    pattern, (*folders, name) = Pattern(glob), path.split("/")
    ways = ["".join(f"{one}/" for one in folders[:count]) for count in range(len(folders) + 1)]
    return all(map(pattern.may_be_in, ways)) and pattern.match(ways[-1], [name]) == [path]


@pytest.mark.parametrize("seed", range(40))
def test_going_down_finds_what_the_whole_path_matches(seed: int) -> None:
    chance = random.Random(seed)
    glob = "/".join(chance.choices(PIECES, k=chance.randint(1, 4)))
    whole = compile_glob(f"/{glob}")
    assert [path for path in PATHS if is_found(glob, path)] == [path for path in PATHS if whole.fullmatch(path)]


def test_folders_that_can_hold_no_match_are_not_entered() -> None:
    pattern = Pattern("src/*/x.py")
    assert [folder for folder in ("", "src/", "lib/", "src/any/", "src/any/deeper/") if pattern.may_be_in(folder)] == [
        "",
        "src/",
        "src/any/",
    ]


def test_a_glob_of_very_many_folders_is_read() -> None:
    assert Pattern("a/" * 500 + "b").match("a/" * 500, ["b", "c"]) == ["a/" * 500 + "b"]


def test_many_names_are_matched_at_once_and_none_twice() -> None:
    pattern = Pattern("*a*")
    assert pattern.match("", ["xa", "b", "ax", "a\nb", "aa"]) == ["xa", "ax", "a\nb", "aa"]
    assert pattern.match("", []) == []


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
def test_many_stars_in_a_rule_do_not_try_every_split(rule: str) -> None:
    started = time.process_time()
    assert ignored(rule, "a" * 255, "a/" * 300 + "a") == []
    assert time.process_time() - started < 0.5
