"""SearchCode and FindReferences: definitions by name, code by its structure, and where a symbol is used."""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from forge_tools.errors import SandboxError
from forge_tools.model import ToolResult
from forge_tools.sandbox.paths.workspace import Workspace
from forge_tools.tools.builtin import PATH, Deadline, counted, option
from forge_tools.tools.code.codebase import (
    SYMBOL,
    Codebase,
    CodeTool,
    Having,
    Source,
    below,
    line,
    names_in,
    place,
    read,
    refuse,
    texts_of,
)
from forge_tools.tools.code.facts import WORD, Definition, parsed
from forge_tools.tools.code.symbols import Confidence, Modules
from forge_tools.tools.languages import BY_NAME, Language, is_of

INVALID_PATTERN = "INVALID_PATTERN"

_META = re.compile(r"\$+[A-Z_][A-Z0-9_]*|\$\$\$")
_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_SHOWN = 200
_SHOWN_OF_LINE = 160
_CALLS = frozenset(
    {"call", "call_expression", "method_invocation", "new_expression", "object_creation_expression", "macro_invocation"}
)
_CALLED = ("function", "name", "constructor", "macro", "type")
_IMPORTS = ("import_", "use_declaration", "export_specifier")


@dataclass(frozen=True, slots=True, kw_only=True)
class _SearchWish:
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
    options = _SearchWish

    def _answer(self, wish: _SearchWish, workspace: Workspace, deadline: Deadline, max_chars: int) -> ToolResult:
        is_pattern = wish.mode == "pattern" or (wish.mode == "auto" and _has_holes(wish.query))
        return _matching(wish, workspace, deadline) if is_pattern else _named(wish, workspace, deadline)


def _has_holes(query: str) -> bool:
    """Whether a query is a pattern. `$el` is a name in JavaScript."""
    return "$" in query and not (WORD.fullmatch(query) and _META.search(query) is None)


def _named(wish: _SearchWish, workspace: Workspace, deadline: Deadline) -> ToolResult:
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
    return codebase.answer([head, *shown], hits=facts, total=len(hits))


def _score(query: str, name: str, path: str) -> int:
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


def _matching(wish: _SearchWish, workspace: Workspace, deadline: Deadline) -> ToolResult:
    word = max(re.findall(r"[^\W\d]\w+", _META.sub(" ", wish.query)), key=len, default=None)
    codebase = read(workspace, wish.path, deadline, Having.name(word))
    asked = {"c": {"c", "cpp"}}.get(wish.language, {wish.language})  # headers of C are read as C++
    languages = sorted(codebase.seen.keys() if not wish.language else codebase.seen.keys() & asked)
    usable = {one for one in languages if _is_code(wish.query, BY_NAME[one])}
    if languages and not usable:
        what = f"'{wish.query}' is not valid code in {', '.join(languages)}. Write a whole expression or statement"
        raise SandboxError(what, INVALID_PATTERN)
    hits = _matches(wish, workspace, codebase, usable, deadline)
    shown = [f"{hit['path']}:{hit['line']}  {hit['text']}" for hit in hits[: wish.limit]]
    head = f"{counted(len(hits), 'place')} like {wish.query}"
    return codebase.answer([head, *shown], hits=hits[: wish.limit], total=len(hits))


def _matches(
    wish: _SearchWish, workspace: Workspace, codebase: Codebase, usable: set[str], deadline: Deadline
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReferencesWish:
    symbol: str = option("Name, or path of names: parse, Registry/get.", **SYMBOL)
    file: str | None = option("File that defines it, if several do.", None, **PATH)
    path: str = below()
    include_definition: bool = option("Show the definition too.", default=False)
    limit: int = option("Maximum number of places shown.", 200, minimum=1, maximum=2000)


class FindReferences(CodeTool):
    """List where a symbol is used: calls, imports and other uses, by file and line; comments and strings do not count.

    `exact`: the imports of the file lead to the definition. `likely`: it is the only one of its name. `guess`: there are others.
    """

    name = "FindReferences"
    aliases = ("find_references",)
    options = _ReferencesWish

    def _answer(self, wish: _ReferencesWish, workspace: Workspace, deadline: Deadline, max_chars: int) -> ToolResult:
        name = names_in(wish.symbol)[-1]
        file = None
        if wish.file is not None:
            with workspace.open_file(wish.file) as handle:
                file = workspace.shown(workspace.inside(handle), handle.root)
        codebase = read(workspace, wish.path, deadline, Having.name(name))
        defined = codebase.named(wish.symbol, file=file)
        if not defined:
            refuse(read(workspace, wish.path, deadline), wish.symbol, wish.file or wish.path)
        target = Target(name, defined, len(codebase.named(name)) == len(defined), Modules(codebase))
        found: list[dict[str, Any]] = []
        using = sorted((one for one in codebase.sources.values() if one.facts.has(name)), key=lambda one: one.path)
        for source, text in texts_of(workspace, using):
            if deadline.is_over:
                codebase.is_partial = True
                break
            uses = target.uses(source, text)
            found += (one for one in uses if wish.include_definition or one["kind"] != "definition")
        form = "{path}:{line}  {kind} [{confidence}]  {text}"
        shown = [form.format(**one) for one in found[: wish.limit]]
        files = len({one["path"] for one in found})
        head = f"{counted(len(found), 'reference')} to {wish.symbol} in {counted(files, 'file')}, defined at "
        head += ", ".join(f"{source.path}:{one.line}" for source, one in defined[:5])
        return codebase.answer([head, *shown], references=found[: wish.limit], total=len(found))


@dataclass(frozen=True, slots=True)
class Target:
    """A name and the definitions that are meant; `is_only` if nothing else has that name."""

    name: str
    defined: Sequence[tuple[Source, Definition]]
    is_only: bool
    modules: Modules

    def uses(self, source: Source, text: str) -> Iterator[dict[str, Any]]:
        lines = {one.line for home, one in self.defined if home.path == source.path}
        sure, said = self._confidence(source), text.split("\n")
        for above, node in _nodes(self.name, said, source):
            start = node.range().start
            line = above + start.line + 1
            above_it = [one.kind() for one in node.ancestors()][:4]
            is_definition = line in lines and any(kind in source.language.definitions for kind in above_it)
            yield {
                "path": source.path,
                "line": line,
                "column": start.column + 1,
                "kind": "definition" if is_definition else _kind(node),
                "confidence": sure,
                "text": said[line - 1].strip()[:_SHOWN_OF_LINE],
            }

    def _confidence(self, source: Source) -> Confidence:
        homes = {home.path for home, _ in self.defined}
        if source.path in homes:
            return "exact"
        found = self.modules.resolve(self.name, source)
        if found and found.source:
            return found.confidence if found.source.path in homes else "guess"
        return "likely" if self.is_only else "guess"


def _nodes(name: str, lines: Sequence[str], source: Source) -> Iterator[tuple[int, Any]]:
    """Yield the nodes of a name with the number of lines above the part of the file that was parsed."""
    rule = {"any": [{"kind": kind} for kind in source.language.leaves], "regex": f"^{re.escape(name)}$"}
    for above, text in _parts(name, lines, source.facts.starts):
        seen: set[int] = set()
        for node in parsed(text, source.language).find_all({"rule": rule}):
            at = node.range().start.index
            if at not in seen and not node.children():
                seen.add(at)
                yield above, node


def _parts(name: str, lines: Sequence[str], starts: Sequence[int]) -> Iterator[tuple[int, str]]:
    """Yield the parts of a file that contain a name, with the number of lines above: the rest need not be parsed."""
    cuts = [0, *starts[1:], len(lines)]
    for after in dict.fromkeys(bisect_right(cuts, number) for number, said in enumerate(lines) if name in said):
        yield cuts[after - 1], "\n".join(lines[cuts[after - 1] : cuts[after]])


def _kind(node: Any) -> str:
    above = list(node.ancestors())[:5]
    if any(one.kind().startswith(_IMPORTS) for one in above):
        return "import"
    for one in above[:2]:
        if one.kind() in _CALLS:
            called = next(filter(None, map(one.field, _CALLED)), None)
            if called is not None and called.range().start.index <= node.range().start.index < called.range().end.index:
                return "call"
    return "use"
