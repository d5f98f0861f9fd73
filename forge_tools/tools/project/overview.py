"""ProjectOverview: what a newcomer needs to know first about a project, within a budget that its sections share."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from forge_tools.errors import InvalidCallError
from forge_tools.tools.builtin import PATH, counted, option
from forge_tools.tools.file.text import visible
from forge_tools.tools.languages import title_of
from forge_tools.tools.project.detect import claims_of
from forge_tools.tools.project.survey import Claims, ProjectTool, Survey, is_written, size_of

_README = re.compile(r"readme(?:\.(?:md|rst|txt|adoc))?", re.IGNORECASE)
_TEST = re.compile(r"(?:^|/)(?:tests?|spec|__tests__)/|(?:^|/)test_[^/]+$|[._](?:test|spec)\.\w+$")
_SYMBOL = re.compile(
    r"^(?:export (?:default )?|pub )?(?:async )?(?:class|def|func|function|fn|struct|enum|trait|interface|type) +([A-Za-z]\w*)",
    re.MULTILINE,
)
_PURPOSES = {
    "src": "sources", "lib": "sources", "tests": "tests", "test": "tests", "docs": "documentation", "doc": "documentation",
    "examples": "examples", "scripts": "scripts", "bin": "programs", "cmd": "programs", "migrations": "schema changes",
    "benchmarks": "benchmarks", ".github": "CI and templates", "deploy": "deployment", "vendor": "third-party code",
}  # fmt: skip
_PROSE = {None, "Markdown", "HTML", "CSS", "Jupyter"}
_HASH = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_REF = re.compile(r"ref: (refs/[\w./-]+)")
_ENTRY = re.compile(
    r"^\w+ (?P<id>\w+) (?P<who>[^\n<]*)<[^>\n]*> (?P<time>\d{1,11}) [+-]\d{4}\t(?P<what>[^\n]*)$", re.MULTILINE
)
_MAX_BYTES = 4 << 20
_LEAD_LINES = 12
_LEAST_CHARS, _MOST_CHARS = 500, 200_000
_MAX_READ = 200
_MAX_SYMBOLS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wish:
    path: str = option("Folder of the project, by default the working directory.", ".", **PATH)
    max_chars: int = option(
        "Maximum length of the answer, in characters.", 12_000, minimum=_LEAST_CHARS, maximum=_MOST_CHARS
    )
    sections: Sequence[str] | None = option(
        "Only these sections: readme, type, entry_points, layout, symbols, scripts, tests, dependencies, git, size.",
        None,
        items={"type": "string"},
    )

    def __post_init__(self) -> None:
        if unknown := [name for name in self.sections or () if name not in _SECTIONS]:
            raise InvalidCallError(f"Unknown section {unknown[0]!r}. There are: {', '.join(_SECTIONS)}")


class ProjectOverview(ProjectTool):
    """Describe a project: README, type, entry points, layout, symbols, commands, tests, dependencies, git and size.

    Nothing of the project is run, not even git. Sections share the budget: what one does not use, the others get.
    """

    name = "ProjectOverview"
    aliases = ("get_project_overview",)
    options = _Wish

    def _described(self, survey: Survey, wish: _Wish, max_chars: int) -> tuple[str, dict[str, Any]]:
        claims, budget = claims_of(survey), min(wish.max_chars, max(max_chars, _LEAST_CHARS))
        told = {name: _SECTIONS[name](survey, claims) for name in wish.sections or _SECTIONS}
        if survey.notes:
            told["not understood"] = [visible(note) for note in survey.notes]
        text, cut = shared({name: lines for name, lines in told.items() if lines}, budget)
        if not cut:
            return text, {"truncated": False}
        # Requested without the others, they have more room.
        sections = [name for name in cut if name in _SECTIONS]
        more = {"sections": sections, "max_chars": min(4 * wish.max_chars, _MOST_CHARS)}
        return text, {"truncated": True, "next": more}


def shared(sections: dict[str, list[str]], budget: int) -> tuple[str, list[str]]:
    """Join sections within a budget of characters, in whole lines; also return the names of those that were cut.

    Each gets an equal share of the remaining budget, shortest first, so that longer ones get what shorter ones do not use.
    """
    sizes = {name: sum(len(line) + 1 for line in lines) for name, lines in sections.items()}
    heads = {name: f"## {name.replace('_', ' ').capitalize()}" for name in sections}
    left, rooms = budget - sum(len(head) + 1 for head in heads.values()), dict[str, int]()
    for waiting, name in zip(range(len(sizes), 0, -1), sorted(sizes, key=lambda one: sizes[one]), strict=True):
        rooms[name] = min(sizes[name], left // waiting)
        left -= rooms[name]
    told, cut = list[str](), list[str]()
    for name, lines in sections.items():
        kept = lines if rooms[name] == sizes[name] else _fitting(lines, rooms[name])
        told += [heads[name], *kept]
        cut += [] if kept is lines else [name]
    return "\n".join(told)[:budget], cut


def _fitting(lines: list[str], room: int) -> list[str]:
    kept, used, mark = list[str](), 0, "[omitted: pass sections or a larger max_chars]"
    for line in lines:
        if used + len(line) + 1 > room - len(mark) - 1:
            break
        kept.append(line)
        used += len(line) + 1
    return [*kept, mark]


def _readme(survey: Survey, _: Claims) -> list[str]:
    path = next((path for path in survey.files if _README.fullmatch(path)), None)
    if path is None:
        return []
    lines = [visible(line)[:400] for line in survey.text(path).split("\n") if line.strip()]
    return [f"[{survey.shown(path)}:1; certain]", *lines[:_LEAD_LINES]]


def _of(*keys: str) -> Callable[[Survey, Claims], list[str]]:
    return lambda _, claims: [f"- {claim}" for key in keys for claim in claims.of(key)]


def _layout(survey: Survey, _: Claims) -> list[str]:
    sizes, files, first = Counter[str](), Counter[str](), dict[str, str]()
    for path, size in survey.files.items():
        top = path.partition("/")[0] + ("/" if "/" in path else "")
        sizes[top] += size
        files[top] += 1
        first.setdefault(top, path)
    lines = []
    for top in sorted(files, key=lambda name: (not name.endswith("/"), name)):
        purpose = _PURPOSES.get(top.rstrip("/"))
        told = f": {purpose}" if purpose and top.endswith("/") else ""
        sure = "guess" if told else "certain"
        lines.append(f"- {survey.shown(top.rstrip('/'))}{'/' * top.endswith('/')}{told} "
                     f"({size_of(sizes[top], files[top])}) [{survey.shown(first[top])}:1; {sure}]")  # fmt: skip
    return lines


def _symbols(survey: Survey, _: Claims) -> list[str]:
    """List the top-level names that occur in most other files, from the files nearest to the top."""
    paths = [path for path in survey.files if _is_code(path) and is_written(path) and not _TEST.search(path)]
    paths = sorted(paths, key=lambda path: (path.count("/"), path))[:_MAX_READ]
    places, users = dict[str, str](), Counter[str]()
    for path in paths:
        for found in _SYMBOL.finditer(survey.text(path)):
            places.setdefault(found[1], survey.line(path, found.start(1)))
    for path in paths:
        users.update(set(re.findall(r"\w+", survey.text(path))) & places.keys())
    ranked = sorted(places, key=lambda name: (-users[name], name))[:_MAX_SYMBOLS]
    return [f"- {name} (named in {counted(users[name], 'file')}) [{places[name]}; likely]" for name in ranked]


def _tests(survey: Survey, _: Claims) -> list[str]:
    found = [path for path in survey.files if _TEST.search(path) and _is_code(path)]
    return [f"- {counted(len(found), 'test file')} [{survey.shown(found[0])}:1; likely]"] if found else []


def _is_code(path: str) -> bool:
    return title_of(path) not in _PROSE


def _git(survey: Survey, _: Claims) -> list[str]:
    return [f"- {claim}" for claim in _repository(survey).of("git")]


def _repository(survey: Survey) -> Claims:
    """Read branch and last commit of the repository in the folder from its files; git is not run, since its settings may run programs."""
    claims, git = Claims(), ".git/"
    head = _read(survey, ".git/HEAD")
    if head is None:
        if (link := _read(survey, ".git")) is not None and link.startswith("gitdir:"):
            what = "a worktree or submodule, whose repository is kept elsewhere"
            claims.add("git", what, f"{survey.shown('.git')}:1")
            return claims
        if {"HEAD", "config"} <= survey.files.keys() and (head := _read(survey, "HEAD")) is not None:
            git = ""
            claims.add("git", "a bare repository", f"{survey.shown('HEAD')}:1")
    if head is None:
        return claims
    where, ref, commit = f"{survey.shown(f'{git}HEAD')}:1", _REF.match(head), _HASH.match(head)
    if ref:
        claims.add("git", f"branch {ref[1].removeprefix('refs/heads/')}", where)
        commit = _HASH.match(_read(survey, f"{git}{ref[1]}") or "") or _packed(survey, git, ref[1])
    elif commit:
        claims.add("git", "detached head, on no branch", where)
    if commit is None:
        claims.add("git", "no commit yet", where, "likely")
        return claims
    claims.add("git", f"last commit {commit[0][:12]}", where)
    log = _read(survey, f"{git}logs/HEAD") or ""
    for entry in list(_ENTRY.finditer(log))[-1:]:
        when = datetime.fromtimestamp(int(entry["time"]), UTC).strftime("%Y-%m-%d")
        line = log.count("\n", 0, entry.start()) + 1
        what = f"last entry of its log: {when}, {visible(entry['what'])}"
        claims.add("git", what, f"{survey.shown(f'{git}logs/HEAD')}:{line}", "likely")
    return claims


def _packed(survey: Survey, git: str, ref: str) -> re.Match[str] | None:
    packed = _read(survey, f"{git}packed-refs") or ""
    found = re.search(rf"^(\w+) {re.escape(ref)}$", packed, re.MULTILINE)
    return _HASH.match(found[1]) if found else None


def _read(survey: Survey, path: str) -> str | None:
    data = survey.data(path, _MAX_BYTES)
    return None if data is None else data.decode("utf-8", "replace")


def _size(survey: Survey, _: Claims) -> list[str]:
    return [f"- {size_of(sum(survey.files.values()), len(survey.files))}, without ignored files"]


_SECTIONS: dict[str, Callable[[Survey, Claims], list[str]]] = {
    "readme": _readme,
    "type": _of("languages", "kinds", "frameworks", "package_managers", "members", "ci", "containers"),
    "entry_points": _of("entry_points"),
    "layout": _layout,
    "symbols": _symbols,
    "scripts": _of("commands"),
    "tests": _tests,
    "dependencies": _of("dependencies"),
    "git": _git,
    "size": _size,
}
