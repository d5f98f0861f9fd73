"""SearchCode: definitions by name, and code by its structure."""

import re
from dataclasses import dataclass
from typing import Any, Literal

from forge_tools.errors import SandboxError
from forge_tools.model import ToolResult
from forge_tools.sandbox.paths.workspace import Workspace
from forge_tools.tools.builtin import counted, option, parameters_of
from forge_tools.tools.code.codebase import Codebase, Having, read, texts_of
from forge_tools.tools.code.facts import WORD, parsed
from forge_tools.tools.code.tool import CodeTool, below, line, place
from forge_tools.tools.deadline import Deadline
from forge_tools.tools.languages import BY_NAME, Language, is_of

INVALID_PATTERN = "INVALID_PATTERN"

_META = re.compile(r"\$+[A-Z_][A-Z0-9_]*|\$\$\$")
_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_SHOWN = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What to look for."""

    query: str = option(
        "Name or part of one: parse_url, Registry; or code with $HOLES: open($PATH, $$$).", min_length=1, max_length=500
    )
    path: str = below()
    mode: Literal["auto", "symbol", "pattern"] = option(
        "auto: a pattern if it has a hole such as $X, else a symbol.", "auto"
    )
    language: Literal["", "python", "typescript", "tsx", "javascript", "go", "rust", "java", "c", "cpp"] = option(
        "Only this language; .h is both c and cpp.", ""
    )
    kind: str = option("Only this kind of symbol: class, function, method, type, ...", "", max_length=40)
    limit: int = option("Maximum number of hits shown.", 50, minimum=1, maximum=500)


class SearchCode(CodeTool):
    """Find definitions by name, best match first, or code by a pattern: open($PATH, $$$) finds all such calls.

    Knows Python, TypeScript, JavaScript, Go, Rust, Java, C and C++. Grep finds plain text.
    """

    name = "SearchCode"
    aliases = ("search_code",)
    parameters = parameters_of(Wish)

    def _answer(self, workspace: Workspace, deadline: Deadline, options: dict[str, Any]) -> ToolResult:
        wish = Wish(**options)
        is_pattern = wish.mode == "pattern" or (wish.mode == "auto" and _has_holes(wish.query))
        return _matching(wish, workspace, deadline) if is_pattern else _named(wish, workspace, deadline)


def _has_holes(query: str) -> bool:
    """Whether a query is a pattern. `$el` is a name in JavaScript."""
    return "$" in query and not (WORD.fullmatch(query) and _META.search(query) is None)


def _named(wish: Wish, workspace: Workspace, deadline: Deadline) -> ToolResult:
    parts = tuple(part.lower() for part in _PARTS.findall(wish.query))
    codebase = read(workspace, wish.path, deadline, Having(parts, like=True))
    hits = [
        (score, source, one)
        for source, one in codebase.definitions()
        if wish.kind in {"", one.kind} and (not wish.language or is_of(source.path, wish.language))
        if (score := _score(wish.query, one.name, one.path))
    ]
    hits.sort(key=lambda hit: (-hit[0], not hit[2].is_public, hit[1].path, hit[2].line))
    shown = [line(source, one) for _, source, one in hits[: wish.limit]]
    facts = [{**place(source, one), "score": score} for score, source, one in hits[: wish.limit]]
    head = f"{counted(len(hits), 'symbol')} like '{wish.query}'"
    return ToolResult.ok("\n".join([head, *shown]) + codebase.note, hits=facts, total=len(hits), index=codebase.index())


def _score(query: str, name: str, path: str) -> int:
    """Return how well a name matches a query; 0 if it does not."""
    asked, said = query.lower(), name.lower()
    if query in (name, path):
        return 100
    if asked in (said, path.lower(), path.lower().replace("/", ".")):
        return 90
    if said.startswith(asked):
        return 70
    parts = {part.lower() for part in _PARTS.findall(name)}
    wanted = {part.lower() for part in _PARTS.findall(query)}
    if wanted and wanted <= parts:
        return 60
    return 40 if len(asked) > 1 and asked in said else 0


def _matching(wish: Wish, workspace: Workspace, deadline: Deadline) -> ToolResult:
    word = max(re.findall(r"[^\W\d]\w+", _META.sub(" ", wish.query)), key=len, default=None)
    codebase = read(workspace, wish.path, deadline, Having.name(word))
    asked = {"c": {"c", "cpp"}}.get(wish.language, {wish.language})  # headers of C are read as C++
    languages = sorted(codebase.seen.keys() if not wish.language else codebase.seen.keys() & asked)
    usable = {one for one in languages if _is_code(wish.query, BY_NAME[one])}
    if languages and not usable:
        raise SandboxError(
            f"'{wish.query}' is not valid code in {', '.join(languages)}. Write a whole expression or statement",
            INVALID_PATTERN,
        )
    hits = _matches(wish, workspace, codebase, usable, deadline)
    shown = [f"{hit['path']}:{hit['line']}  {hit['text']}" for hit in hits[: wish.limit]]
    head = f"{counted(len(hits), 'place')} like {wish.query}"
    return ToolResult.ok(
        "\n".join([head, *shown]) + codebase.note, hits=hits[: wish.limit], total=len(hits), index=codebase.index()
    )


def _matches(
    wish: Wish, workspace: Workspace, codebase: Codebase, usable: set[str], deadline: Deadline
) -> list[dict[str, Any]]:
    hits: list[dict[str, Any]] = []
    wanted = [
        one
        for one in codebase.sources.values()
        if one.language.name in usable and (not wish.language or is_of(one.path, wish.language))
    ]
    for source, text in texts_of(workspace, wanted):
        if deadline.is_over:
            codebase.is_partial = True
            break
        for node in parsed(text, source.language).find_all(pattern=wish.query):
            start = node.range().start
            said = " ".join(node.text().split())[:_SHOWN]
            hits.append({"path": source.path, "line": start.line + 1, "column": start.column + 1, "text": said})
    return hits


def _is_code(pattern: str, language: Language) -> bool:
    """Whether a pattern can match: it is one node, and parses once its holes are filled; else it would silently find nothing."""
    root = parsed(_META.sub("x", pattern), language)
    try:
        root.find(pattern=pattern)
    except RuntimeError:  # from ast-grep: nothing but a $$$, or several statements
        return False
    return root.find(kind="ERROR") is None
