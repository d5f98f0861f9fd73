"""CodebaseMap: the most important definitions, as many as fit."""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from forge_tools.model import ToolResult
from forge_tools.sandbox.paths.workspace import Workspace
from forge_tools.tools.builtin import option, parameters_of
from forge_tools.tools.code.codebase import Codebase, read
from forge_tools.tools.code.facts import Definition
from forge_tools.tools.code.tool import CodeTool, below
from forge_tools.tools.deadline import Deadline

_ROUNDS = 20
_DAMPING = 0.85
_MOST_HOMES = 4
"""If more files than this define a name, a use of it does not show which one is meant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What to map, and how much of it."""

    path: str = below()
    max_chars: int = option("Maximum length of the map, in characters.", 16_000, minimum=500, maximum=100_000)
    include_private: bool = option("Show private definitions too.", default=False)


class CodebaseMap(CodeTool):
    """Show the structure of a code base: files with their main definitions, preferring those that other files use most."""

    name = "CodebaseMap"
    aliases = ("get_codebase_map", "codebase_map")
    parameters = parameters_of(Wish)

    def _answer(self, workspace: Workspace, deadline: Deadline, options: dict[str, Any]) -> ToolResult:
        wish = Wish(**options)
        codebase = read(workspace, wish.path, deadline)
        ranks, uses = ranked(codebase)
        wanted = sorted(
            (
                (-uses.get(one.name, 0) * ranks[source.path], source.path, one)
                for source, one in codebase.definitions()
                if wish.include_private or one.is_public or (one.kind == "method" and not one.name.startswith("_"))
            ),
            key=lambda found: found[:2],
        )
        shown = _fitting(wanted, wish.max_chars)
        lines = [
            line
            for path in sorted(shown)
            for line in (path, *(_line(one) for one in sorted(shown[path], key=lambda one: one.line)))
        ]
        count = sum(map(len, shown.values()))
        head = f"{len(codebase.sources):,} files, {len(wanted):,} definitions, {count:,} of them shown"
        return ToolResult.ok(
            "\n".join([head, "", *lines]) + codebase.note, shown=count, total=len(wanted), index=codebase.index()
        )


def ranked(codebase: Codebase) -> tuple[dict[str, float], dict[str, int]]:
    """Return the PageRank of each file, where a use of a name links to the files that define it, and how many files use each name."""
    homes: dict[str, set[str]] = defaultdict(set)
    for source, one in codebase.definitions():
        homes[one.name].add(source.path)
    uses: dict[str, int] = defaultdict(int)
    links: dict[str, dict[str, float]] = {path: defaultdict(float) for path in codebase.sources}
    for path, source in codebase.sources.items():
        for word in homes.keys() & source.facts.words.split():
            uses[word] += 1
            if len(homes[word]) <= _MOST_HOMES:
                for home in homes[word] - {path}:
                    links[path][home] += 1 / len(homes[word])
    count = max(1, len(links))
    ranks = dict.fromkeys(links, 1 / count)
    for _ in range(_ROUNDS):
        after = dict.fromkeys(links, (1 - _DAMPING) / count)
        for path, targets in links.items():
            total = sum(targets.values())
            for target, weight in targets.items():
                after[target] += _DAMPING * ranks[path] * weight / total
        ranks = after
    return ranks, uses


def _fitting(wanted: list[tuple[float, str, Definition]], room: int) -> dict[str, list[Definition]]:
    """Return the leading definitions that fit, by file."""
    shown: dict[str, list[Definition]] = {}
    for _, path, one in wanted:
        room -= len(_line(one)) + 1 + (0 if path in shown else len(path) + 1)
        if room < 0:
            break
        shown.setdefault(path, []).append(one)
    return shown


def _line(one: Definition) -> str:
    return f"{'  ' * (1 + one.container.count('/') + bool(one.container))}{one.line}: {one.signature}"
