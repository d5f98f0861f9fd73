"""A glob that is followed down a tree finds what the whole path would match."""

import random
from itertools import product

import pytest

from forge_tools.tools.file.globs import Pattern, compile_glob

NAMES = ("a", "b", "ab", "a.py", "b.ts", ".x")
PATHS = ["/".join(names) for length in (1, 2, 3) for names in product(NAMES, repeat=length)]
PIECES = ("a", "*", "**", "?", "[ab]", "[!a]*", "*.py", "{a,b}", "{*.ts,ab}", "a*", "**b", "\\a")


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
