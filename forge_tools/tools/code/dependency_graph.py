"""DependencyGraph: which files import which, and the cycles among them."""

import json
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from forge_tools.model import ToolResult
from forge_tools.sandbox.paths.workspace import Workspace
from forge_tools.tools.builtin import counted, option, parameters_of
from forge_tools.tools.code.codebase import Codebase, read
from forge_tools.tools.code.modules import Modules, folder_of
from forge_tools.tools.code.tool import CodeTool, below
from forge_tools.tools.deadline import Deadline

Edges = Mapping[str, Mapping[str, int]]

_MOST_CYCLES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What to graph, and in which format."""

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
    parameters = parameters_of(Wish)

    def _answer(self, workspace: Workspace, deadline: Deadline, options: dict[str, Any]) -> ToolResult:
        wish = Wish(**options)
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
            return ToolResult.ok(said, **facts, index=codebase.index())
        head = [
            f"{counted(len(edges), wish.level)}, {counted(facts['edges'], 'import')}, {counted(len(cycles), 'cycle')}"
        ]
        head += [f"cycle: {' <-> '.join(one)}" for one in cycles[:_MOST_CYCLES]]
        head += [f"used by {count}: {node}" for node, count in incoming.most_common(10)]
        left = f"\n[{len(edges) - len(drawn)} with the fewest imports left out]" if len(drawn) < len(edges) else ""
        return ToolResult.ok("\n".join([*head, "", said]) + left + codebase.note, **facts, index=codebase.index())


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
    """Yield the strongly connected components of several nodes (Tarjan's algorithm, without recursion)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    on_stack: set[str] = set()
    for start in edges:
        work = deque([(start, iter(edges[start]))] if start not in index else [])
        if work:
            index[start] = low[start] = len(index)
            stack.append(start)
            on_stack.add(start)
        while work:
            node, targets = work[-1]
            target = next(targets, None)
            if target is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    group = _popped(stack, on_stack, node)
                    if len(group) > 1:
                        yield group
            elif target not in index:
                index[target] = low[target] = len(index)
                stack.append(target)
                on_stack.add(target)
                work.append((target, iter(edges.get(target, ()))))
            elif target in on_stack:
                low[node] = min(low[node], index[target])


def _popped(stack: list[str], on_stack: set[str], until: str) -> list[str]:
    group: list[str] = []
    while not group or group[-1] != until:
        group.append(stack.pop())
        on_stack.discard(group[-1])
    return group


def _text(edges: Edges) -> str:
    return "\n".join(f"{node} -> {', '.join(targets)}" for node, targets in edges.items() if targets)


def _json(edges: Edges) -> str:
    links = [{"from": node, "to": to, "line": line} for node, targets in edges.items() for to, line in targets.items()]
    return json.dumps({"nodes": list(edges), "edges": links}, ensure_ascii=False)


def _mermaid(edges: Edges) -> str:
    ids = {node: f"n{number}" for number, node in enumerate(edges)}
    nodes = [f'  {ids[node]}["{node.replace(chr(34), "#quot;")}"]' for node in edges]
    return "\n".join(
        ["graph LR", *nodes, *(f"  {ids[a]} --> {ids[b]}" for a, targets in edges.items() for b in targets)]
    )


def _dot(edges: Edges) -> str:
    def quoted(node: str) -> str:
        return json.dumps(node, ensure_ascii=False)

    links = [f"  {quoted(a)} -> {quoted(b)};" for a, targets in edges.items() for b in targets]
    return "\n".join(["digraph {", *(f"  {quoted(node)};" for node in edges), *links, "}"])


_FORMATS = {"text": _text, "json": _json, "mermaid": _mermaid, "dot": _dot}
