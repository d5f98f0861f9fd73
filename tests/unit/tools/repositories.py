"""Random repositories, to compare what git lists with what a walk lists."""

import os
import random
import subprocess
from pathlib import Path

ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "LC_ALL": "C.UTF-8",
}
NAMES = (
    "a", "b", "ab", "abc", "foo", "bar", "build", "a.log", "b.log", "keep.log", "x.py", "x.pyc", "#h", "!n", " sp", "sp ",
    "[x]", "{a,b}", "é", "a b", "-d", "a\\b", "a*b", "Z9", ".hid", "foo.bar.log", "a\nb",
)  # fmt: skip
PIECES = (
    "a", "b", "foo", "*", "**", "?", "[ab]", "[!a]", "[^a-c]", "*.log", "*.py*", "[[:alpha:]]", "[[:digit:]z]", "\\*", "\\[x]",
    "{a,b}", "é", "??", "build", "a**", "**b", "a*b*", "[]a]", "[a-", "\\", "sp\\ ", "#h", "\\#h", "\\!n", "[[:bad:]]",
    "[\\]]", "[a\\-c]", "***", "x.py", "keep.log", ".*", "*.*", "[z-a]", "[!]", "[x]", "a\\b", "a\\\\b", "[--b]", "[é]", "Z[0-9]",
)  # fmt: skip


def git(folder: Path, *arguments: str) -> bytes:
    """Run git as on a machine where nobody has set anything."""
    return subprocess.run(["git", *arguments], cwd=folder, env=ENVIRONMENT, check=True, capture_output=True).stdout


def listed_by_git(folder: Path) -> list[str]:
    """The files that git tracks or would offer to track."""
    listed = git(folder, "ls-files", "--cached", "--others", "--exclude-standard", "-z")
    return sorted({os.fsdecode(name) for name in listed.split(b"\0") if name})


def make_repository(root: Path, seed: int) -> None:
    """Fill a folder with files, links and rules of every kind, and track some of the files whatever the rules say."""
    chance = random.Random(seed)
    _fill(chance, root, 0)
    git(root, "init", "-q")
    if chance.random() < 0.5:
        (root / ".git/info").mkdir(exist_ok=True)
        (root / ".git/info/exclude").write_text(_rules(chance))
    files = [str(path.relative_to(root)) for path in sorted(root.rglob("*")) if not path.is_dir()]
    files = [name for name in files if not name.startswith(".git/")]
    if files and chance.random() < 0.5:
        git(root, "update-index", "--index-version", chance.choice("234"))
        git(root, "--literal-pathspecs", "add", "-f", "--", *chance.sample(files, min(len(files), 5)))


def _fill(chance: random.Random, folder: Path, depth: int) -> None:
    folder.mkdir(exist_ok=True)
    for name in chance.sample(NAMES, chance.randint(2, 9)):
        if depth < 3 and chance.random() < 0.4:
            _fill(chance, folder / name, depth + 1)
        elif chance.random() < 0.08:
            (folder / name).symlink_to(chance.choice(["a", "..", "/etc"]))
        else:
            (folder / name).write_text("hit\n")
    if chance.random() < (0.3 if depth else 0.9):
        (folder / ".gitignore").write_text(_rules(chance))


def _rules(chance: random.Random) -> str:
    text = "".join(_rule(chance) + chance.choice(["\n", "\n", "\n", "\r\n"]) for _ in range(chance.randint(1, 6)))
    text = f"\ufeff{text}" if chance.random() < 0.1 else text
    return text.rstrip("\n") if chance.random() < 0.2 else text


def _rule(chance: random.Random) -> str:
    pieces = [
        "".join(chance.choices(PIECES, k=1 if chance.random() < 0.8 else 2))
        for _ in range(chance.choice([1, 1, 1, 2, 2, 3, 4]))
    ]
    rule = "/".join(pieces)
    rule = f"/{rule}" if chance.random() < 0.2 else rule
    rule = f"{rule}/" if chance.random() < 0.25 else rule
    rule = f"!{rule}" if chance.random() < 0.3 else rule
    return rule + chance.choice([" ", "  ", "\\ ", "\t", " \\ ", " \\  "]) if chance.random() < 0.15 else rule
