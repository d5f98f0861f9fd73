"""CodebaseMap and DependencyGraph: the definitions that others use most, and which files import which."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from forge_tools.model import ToolResult
from forge_tools.sandbox.paths.workspace import Workspace
from forge_tools.tools.builtin import Deadline, counted, option
from forge_tools.tools.code.codebase import Codebase, CodeTool, below, read
from forge_tools.tools.code.facts import Definition
from forge_tools.tools.code.symbols import Modules, folder_of

Edges = Mapping[str, Mapping[str, int]]

_ROUNDS = 20
_DAMPING = 0.85
_MOST_HOMES = 4
"""If more files than this define a name, a use of it does not show which one is meant."""

_MOST_CYCLES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _MapWish:
    path: str = below()
    max_chars: int = option("Maximum length of the map, in characters.", 16_000, minimum=500, maximum=100_000)
    include_private: bool = option("Show private definitions too.", default=False)


class CodebaseMap(CodeTool):
    """Show the structure of a code base: files with their main definitions, preferring those that other files use most."""

    name = "CodebaseMap"
    aliases = ("get_codebase_map", "codebase_map")
    options = _MapWish

    def _answer(self, wish: _MapWish, workspace: Workspace, deadline: Deadline, max_chars: int) -> ToolResult:
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
        return codebase.answer([head, "", *lines], shown=count, total=len(wanted))


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
    shown: dict[str, list[Definition]] = {}
    for _, path, one in wanted:
        room -= len(_line(one)) + 1 + (0 if path in shown else len(path) + 1)
        if room < 0:
            break
        shown.setdefault(path, []).append(one)
    return shown


def _line(one: Definition) -> str:
    return f"{'  ' * (1 + one.container.count('/') + bool(one.container))}{one.line}: {one.signature}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _GraphWish:
    path: str = below()
    level: Literal["file", "package"] = option("Whether nodes are files or the folders that contain them.", "file")
    format: Literal["text", "json", "mermaid", "dot"] = option("Format of the graph.", "text")
    max_nodes: int = option(
        "Maximum number of nodes shown; those with the most edges come first.", 200, minimum=1, maximum=2000
    )


class DependencyGraph(CodeTool):
    """Show which files or folders import which others, the cycles among them, and what is used most."""

    name = "DependencyGraph"
    aliases = ("build_dependency_graph", "dependency_graph")
    options = _GraphWish

    def _answer(self, wish: _GraphWish, workspace: Workspace, deadline: Deadline, max_chars: int) -> ToolResult:
        codebase = read(workspace, wish.path, deadline)
        edges = _edges(codebase, wish.level, deadline)
        cycles = [sorted(one) for one in cycles_of(edges)]
        incoming = Counter(target for targets in edges.values() for target in targets)
        weight = {node: len(targets) + incoming[node] for node, targets in edges.items()}
        kept = set(sorted(edges, key=lambda node: (-weight[node], node))[: wish.max_nodes])
        drawn = {node: {to: line for to, line in edges[node].items() if to in kept} for node in edges if node in kept}
        facts: dict[str, Any] = {
            "nodes": len(edges),
            "edges": sum(map(len, edges.values())),
            "cycles": cycles[:_MOST_CYCLES],
            "roots": [node for node in drawn if not incoming[node] and edges[node]][:_MOST_CYCLES],
            "most_used": incoming.most_common(10),
        }
        said = _FORMATS[wish.format](drawn)
        if wish.format != "text":
            answer = codebase.answer([said], **facts)
            return answer.model_copy(update={"output": said})  # for programs: what was left out is in the metadata
        imports, rounds = counted(facts["edges"], "import"), counted(len(cycles), "cycle")
        head = [f"{counted(len(edges), wish.level)}, {imports}, {rounds}"]
        head += [f"cycle: {' <-> '.join(one)}" for one in cycles[:_MOST_CYCLES]]
        head += [f"used by {count}: {node}" for node, count in incoming.most_common(10)]
        less = len(edges) - len(drawn)
        left = [f"[{less} with the fewest imports left out]"] if less else []
        return codebase.answer([*head, "", said, *left], **facts)


def _edges(codebase: Codebase, level: str, deadline: Deadline) -> dict[str, dict[str, int]]:
    """Map each node to the nodes it imports, with the line of the first such import."""
    modules = Modules(codebase)

    def node(path: str) -> str:
        return path if level == "file" else folder_of(path) or "."

    edges: dict[str, dict[str, int]] = {node(path): {} for path in codebase.sources}
    for path, source in codebase.sources.items():
        if deadline.is_over:
            codebase.is_partial = True
            break
        for one in source.facts.imports:
            targets = modules.of(one, source)[:1]
            for taken, _ in one.names:
                targets += modules.submodule(one, taken, source)[:1] if taken not in {"", "*"} else []
            for target in targets:
                if node(target) != node(path):
                    edges[node(path)].setdefault(node(target), one.line)
    return edges


def cycles_of(edges: Edges) -> Iterator[list[str]]:
    """Yield the strongly connected components of several nodes (Kosaraju's algorithm, without recursion)."""
    order, back, seen = list[str](), defaultdict[str, list[str]](list), set[str]()
    for node, targets in edges.items():
        order += _reached(node, edges, seen)
        for target in targets:
            back[target].append(node)
    seen.clear()
    for node in reversed(order):
        if len(group := _reached(node, back, seen)) > 1:
            yield group


def _reached(start: str, edges: Mapping[str, Iterable[str]], seen: set[str]) -> list[str]:
    """Return the nodes that one leads to and that were not seen before, each after those that it leads to."""
    found, way = list[str](), [] if start in seen else [(start, iter(edges.get(start, ())))]
    seen.add(start)
    while way:
        node, targets = way[-1]
        new = next((one for one in targets if one not in seen), None)
        if new is None:
            found.append(node)
            way.pop()
        else:
            seen.add(new)
            way.append((new, iter(edges.get(new, ()))))
    return found


def _text(edges: Edges) -> str:
    return "\n".join(f"{node} -> {', '.join(targets)}" for node, targets in edges.items() if targets)


def _json(edges: Edges) -> str:
    links = [{"from": node, "to": to, "line": line} for node, targets in edges.items() for to, line in targets.items()]
    return json.dumps({"nodes": list(edges), "edges": links}, ensure_ascii=False)


def _mermaid(edges: Edges) -> str:
    ids = {node: f"n{number}" for number, node in enumerate(edges)}
    nodes = [f'  {ids[node]}["{node.replace(chr(34), "#quot;")}"]' for node in edges]
    links = [f"  {ids[a]} --> {ids[b]}" for a, targets in edges.items() for b in targets]
    return "\n".join(["graph LR", *nodes, *links])


def _dot(edges: Edges) -> str:
    def quoted(node: str) -> str:
        return json.dumps(node, ensure_ascii=False)

    links = [f"  {quoted(a)} -> {quoted(b)};" for a, targets in edges.items() for b in targets]
    return "\n".join(["digraph {", *(f"  {quoted(node)};" for node in edges), *links, "}"])


_FORMATS = {"text": _text, "json": _json, "mermaid": _mermaid, "dot": _dot}
