"""Globs mean the same in every engine."""

import time

import pytest

from forge_tools.errors import SandboxError
from forge_tools.tools.file.globs import alternatives_of, compile_glob, only, plain_rule


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
        ("a\nb", "no line break"),
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
