"""Globs mean the same in every engine."""

import random
import time
from itertools import product

import pytest

from forge_tools.errors import SandboxError
from forge_tools.tools.file.globs import Pattern, alternatives_of, compile_glob, only, plain_rule

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
    state = pattern.start
    for folder in folders:
        state = pattern.enter(state, folder)
    return pattern.match(state, [name]) == [name]


@pytest.mark.parametrize("seed", range(40))
def test_going_down_finds_what_the_whole_path_matches(seed: int) -> None:
    chance = random.Random(seed)
    glob = "/".join(chance.choices(PIECES, k=chance.randint(1, 4)))
    whole = compile_glob(f"/{glob}")
    assert [path for path in PATHS if is_found(glob, path)] == [path for path in PATHS if whole.fullmatch(path)]


def test_folders_that_can_hold_no_match_are_not_entered() -> None:
    pattern = Pattern("src/*/x.py")
    inner = pattern.enter(pattern.start, "src")
    assert not pattern.enter(pattern.start, "lib")
    assert pattern.enter(inner, "any")
    assert not pattern.enter(pattern.enter(inner, "any"), "deeper")


def test_many_names_are_matched_at_once_and_none_twice() -> None:
    pattern = Pattern("*a*")
    assert pattern.match(pattern.start, ["xa", "b", "ax", "a\nb", "aa"]) == ["xa", "ax", "a\nb", "aa"]
    assert pattern.match(pattern.start, []) == []
