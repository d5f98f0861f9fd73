"""How files look, whatever they do: rules that readers rely on and no linter checks."""

import ast
import inspect
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ("forge_tools", "workers", "migrations")
EVERYTHING = (*SHIPPED, "benchmarks", "examples", "tests")

MAX_LINES = 450

NAMELESS = {"utils", "util", "helpers", "helper", "common", "manager", "managers", "misc", "shared"}

READERS = {
    "forge_tools/config.py": "Settings: the sole reader",
    "forge_tools/project.py": "finds the folder for this user's sockets",
    "forge_tools/environment.py": "secrets, settings of tools, names that nothing reads",
    "forge_tools/sandbox/processes/environment.py": "builds what a process may see, and marks what a body starts",
    "forge_tools/sandbox/walls/cgroups.py": "tells what a worker starts the limits of a call",
    "forge_tools/embedded/stack.py": "hands its own environment on to the servers and workers it starts",
    "workers/forkserver.py": "gives each worker that it forks its own",
    "forge_tools/cli/live.py": "asks what terminal this is",
    "workers/lanes/process_state.py": "puts back what a tool changed",
    "workers/lanes/child.py": "forgets URLs and passwords before any tool runs",
}
"""Who else may touch the environment, and what for: nobody here reads a setting."""

UNFINISHED = re.compile(r"\b(TO" r"DO|FIX" r"ME|X" r"XX|HA" r"CK)\b")
PREFIXED = re.compile(r"_*Forge([A-Z0-9_]|$)")
NAMED = re.compile(r"\bclass[\s\\]+_*Forge")
EXEMPTION = re.compile(r"noqa|type:\s*ignore|pragma:\s*no cover|nosec|pylint:")
REASONED = (
    re.compile(r"#\s*noqa: [A-Z]+\d+(, ?[A-Z]+\d+)*\s+\S+\s+\S"),
    re.compile(r"#\s*type: ignore\[[\w-]+(, ?[\w-]+)*\]\s+#\s*\S+\s+\S"),
    re.compile(r"#\s*pragma: no cover\W+\w+\s+\w"),
)


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def tokens(text: str) -> Iterator[tokenize.TokenInfo]:
    return tokenize.generate_tokens(io.StringIO(text).readline)


def docstring(path: Path) -> str | None:
    """That of the module, without a look at the rest of it."""
    first = next(one for one in tokens(path.read_text()) if one.type not in (tokenize.COMMENT, tokenize.NL))
    return inspect.cleandoc(ast.literal_eval(first.string)) if first.type == tokenize.STRING else None


def comments(path: Path, pattern: re.Pattern[str]) -> Iterator[tuple[str, str]]:
    """Every comment with that in it, and the place where it stands."""
    text = path.read_text()
    for token in tokens(text) if pattern.search(text) else ():
        if token.type == tokenize.COMMENT and pattern.search(token.string):
            yield f"{shown(path)}:{token.start[0]}", token.string


def readers(path: Path) -> Iterator[str]:
    """Every place where the environment is touched."""
    text = path.read_text()
    for node in ast.walk(ast.parse(text)) if any(one.partition(".")[2] in text for one in TOUCHES) else ():
        is_attribute = isinstance(node, ast.Attribute) and ast.unparse(node) in TOUCHES
        is_import = (
            isinstance(node, ast.ImportFrom)
            and node.module == "os"
            and any(f"os.{a.name}" in TOUCHES for a in node.names)
        )
        if is_attribute or is_import:
            yield f"{shown(path)}:{node.lineno}"


TOUCHES = {"os.environ", "os.environb", "os.getenv", "os.getenvb", "os.putenv", "os.unsetenv"}


def is_sentence(docstring: str | None) -> bool:
    first, *_ = (docstring or "").splitlines() or [""]
    return first.endswith(".") and (first[0].isupper() or not first.split()[0].isalpha())


def test_a_module_says_in_one_sentence_what_it_owns() -> None:
    modules = sources(*EVERYTHING)

    assert [shown(path) for path in modules if not is_sentence(docstring(path))] == []
    assert len(modules) > 900, "the search finds too few: it looks in the wrong place"
    assert not any(map(is_sentence, (None, "", "no sentence.", "No end")))


def test_a_file_is_short() -> None:
    lines = {shown(path): len(path.read_text().splitlines()) for path in sources(*EVERYTHING)}

    assert {path: count for path, count in lines.items() if count > MAX_LINES} == {}, "find the second noun in it"


def test_no_module_has_a_name_that_says_nothing() -> None:
    assert [shown(path) for path in sources(*EVERYTHING) if NAMELESS & {path.stem, path.parent.name}] == []


def test_no_comment_puts_work_off() -> None:
    assert [place for path in sources(*EVERYTHING) for place, _ in comments(path, UNFINISHED)] == []


def test_every_exemption_carries_its_reason() -> None:
    exempt = [one for path in sources(*EVERYTHING) for one in comments(path, EXEMPTION)]

    assert [place for place, text in exempt if not any(rule.search(text) for rule in REASONED)] == []
    assert exempt, "the search finds none at all: it looks in the wrong place"


@pytest.mark.parametrize(
    "comment",
    ["# noqa", "# noqa: S603", "# type: ignore", "# type: ignore[misc]", "# pragma: no cover", "# noqa: BLE001 why"],
)
def test_an_exemption_without_a_reason_is_seen(comment: str) -> None:
    assert EXEMPTION.search(comment)
    assert not any(rule.search(comment) for rule in REASONED)


def test_no_test_names_what_is_private_to_get_around_the_linter() -> None:
    named = re.compile(r"(?:[sg]et|del)attr\([^()]*[\"'.](_[a-z]\w*)[\"']|patch\.object\([^()]*\"(_\w+)\"")
    found = [
        f"{shown(path)}: {name}"
        for path in sources("tests", "benchmarks")
        for match in named.finditer(path.read_text())
        if (name := match[1] or match[2]) not in {"_exit", "_execute"}  # of `os`, and what authors of tools write
    ]

    assert found == [], "test what it does, or make it public"


def test_only_settings_read_the_environment() -> None:
    found = {place.partition(":")[0] for path in sources("forge_tools", "workers") for place in readers(path)}

    assert found - READERS.keys() == set(), "take the value from Settings, as an argument"
    assert READERS.keys() - found == set(), "listed, but touches it no longer"


def test_no_class_but_the_root_of_errors_carries_the_name_of_the_package() -> None:
    named = [
        f"{shown(path)}: {node.name}"
        for path in sources(*EVERYTHING)
        if NAMED.search(text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef) and PREFIXED.match(node.name)
    ]

    assert named == ["forge_tools/errors.py: ForgeError"]
