"""Memory: notes that outlive a conversation, as text documents below /memories."""

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from forge_tools.errors import InvalidCallError, ToolFailure
from forge_tools.model import Capabilities, ExecutionContext, ToolCategory, ToolResult
from forge_tools.model.documents import Document, is_below
from forge_tools.tools.builtin import BuiltinTool, counted, option
from forge_tools.tools.file.text import visible
from forge_tools.tools.task.documents import Documents, require_version

ROOT = "/memories"
MAX_CHARS = 100_000
MAX_PATH = 256
NOT_FOUND = "DOCUMENT_NOT_FOUND"
EXISTS = "DOCUMENT_EXISTS"

_TEXT: dict[str, Any] = {"max_length": MAX_CHARS}
_PATH: dict[str, Any] = {"min_length": 1, "max_length": MAX_PATH}
_LINES_SHOWN = 3
_NEEDS = {
    "create": ("content",), "str_replace": ("old_str",), "insert": ("insert_line", "content"), "rename": ("new_path",),
    "search": ("query",),
}  # fmt: skip

Before = Mapping[str, Document]
After = dict[str, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wish:
    command: Literal["view", "create", "str_replace", "insert", "delete", "rename", "search", "list"] = option(
        "view a document or folder; create a document; str_replace or insert text in one; delete or rename a document or "
        "folder; search for words; list documents."
    )
    path: str = option("Document or folder, such as /memories/notes.md.", ROOT, aliases=("old_path",), **_PATH)
    content: str | None = option("create, insert: the text.", None, aliases=("file_text", "insert_text"), **_TEXT)
    old_str: str | None = option("str_replace: text that occurs once in the document.", None, min_length=1, **_TEXT)
    new_str: str = option("str_replace: text to put in its place.", "", **_TEXT)
    insert_line: int | None = option("insert: the line to insert after; 0 is the start.", None, minimum=0)
    view_range: Sequence[int] | None = option(
        "view: first and last line to show; -1 means the last line of the document.",
        None,
        items={"type": "integer"},
        keywords={"minItems": 2, "maxItems": 2},
    )
    new_path: str | None = option("rename: the new path.", None, **_PATH)
    query: str | None = option(
        "search: words that a document must have, in any order and case.", None, min_length=1, max_length=200
    )
    limit: int = option("search, list: maximum number of documents shown.", 50, minimum=1, maximum=200)
    scope: Literal["agent", "session", "workspace"] = option(
        "Whose memory: this agent's, this session's, or that of everyone in this workspace.", "agent"
    )
    expected_version: int | None = option(
        "Write only if the document still has this version, which view and the last write returned.", None, minimum=1
    )


class Memory(BuiltinTool):
    """Keep notes beyond this conversation: create, view, change, search and delete text documents below /memories.

    They are kept in the database, versioned and the same on every host. Concurrent writes of several agents lose nothing.
    """

    name = "Memory"
    aliases = ("memory",)
    category = ToolCategory.TASK
    capabilities = Capabilities(idempotent=True, retryable=True)
    options = _Wish

    async def _execute(self, context: ExecutionContext, **options: Any) -> ToolResult:
        wish = _Wish(**options)
        for name in _NEEDS.get(wish.command, ()):
            if getattr(wish, name) is None:
                raise InvalidCallError(f"{wish.command} needs {name}")
        path, kept = normalised(wish.path), Documents(context, wish.scope, self.name, options)
        if wish.command in _READS:
            return await _READS[wish.command](wish, path, kept)
        to = normalised(wish.new_path) if wish.command == "rename" and wish.new_path else path
        revise, did = _WRITES[wish.command]

        def decide(before: Before) -> After:
            require_version(path, before.get(path), wish.expected_version)
            return revise(wish, path, to, before)

        paths = [f"{path}/", f"{to}/"] if wish.command in _OF_FOLDERS else [path]
        after = await kept.change(list(dict.fromkeys(paths)), decide, dry_run=context.dry_run)
        document = None if context.dry_run else after.get(to)
        facts: dict[str, Any] = {"path": to, "scope": wish.scope}
        facts |= {"version": document.version} if document else {}
        version = f" (version {document.version})" if document else ""
        return ToolResult.ok(f"{did.format(path=path, to=to)}{version}{kept.note}", **facts)

    async def _dry_run(self, context: ExecutionContext, **options: Any) -> ToolResult:
        result = await self._execute(context, **options)
        result.output = f"[Dry Run] {result.output}"
        return result


def normalised(path: str) -> str:
    """Return the path in the form that documents use: below /memories, composed characters, no empty parts."""
    parts = [part for part in unicodedata.normalize("NFC", path).split("/") if part]
    if parts[:1] == [ROOT[1:]]:
        parts = parts[1:]
    if any(part in {".", ".."} for part in parts) or not "".join(parts).isprintable():
        what = "has '.', '..' or characters that cannot be shown; leave them out"
        raise InvalidCallError(f"Path {visible(path)!r} {what}")
    return "/".join([ROOT, *parts])


# Commands that read.


async def _view(wish: _Wish, path: str, kept: Documents) -> ToolResult:
    document = await kept.read(path)
    if document is None:
        return await _list(wish, path, kept)
    lines = document.content.split("\n")
    first, last = wish.view_range or (1, -1)
    last = len(lines) if last == -1 else min(last, len(lines))
    if not 1 <= first <= last:
        raise InvalidCallError(f"view_range {first}-{last} is not in {path}, which has {counted(len(lines), 'line')}")
    text = "\n".join(f"{number:6}\t{visible(line)}" for number, line in enumerate(lines[first - 1 : last], first))
    return ToolResult.ok(text, **_facts(document), scope=wish.scope, lines=len(lines))


async def _list(wish: _Wish, path: str, kept: Documents) -> ToolResult:
    found = await kept.find(path, limit=wish.limit + 1)
    if not found and path != ROOT:
        raise _not_found(path)
    told = [
        f"{one.path}  version {one.version}, {one.updated_at:%Y-%m-%d %H:%M} UTC"
        + (f" by {visible(one.author)}" if one.author else "")
        for one in found
    ]
    return _listed(wish, found, told, "There are no documents yet")


async def _search(wish: _Wish, path: str, kept: Documents) -> ToolResult:
    words = (wish.query or "").split()
    if not words:
        raise InvalidCallError("query contains no word")
    found = await kept.find(path, words, limit=wish.limit + 1)
    told = ["\n".join([one.path, *_hits(one, words)]) for one in found]
    return _listed(wish, found, told, f"No document has all of: {visible(' '.join(words))}")


def _listed(wish: _Wish, found: Sequence[Document], told: Sequence[str], nothing: str) -> ToolResult:
    more = len(found) > wish.limit
    notes = [f"[there are more than {wish.limit}; pass a path or words for fewer]"] if more else []
    shown = [*told[: wish.limit], *notes] or [nothing]
    facts = [_facts(one) for one in found[: wish.limit]]
    return ToolResult.ok("\n".join(shown), documents=facts, truncated=more, scope=wish.scope)


def _facts(one: Document) -> dict[str, Any]:
    written = one.updated_at.isoformat(timespec="milliseconds")
    return {"path": one.path, "version": one.version, "author": one.author, "updated_at": written}


def _hits(one: Document, words: Sequence[str]) -> list[str]:
    lines = enumerate(one.content.split("\n"), 1)
    hits = [(number, line) for number, line in lines if any(word.lower() in line.lower() for word in words)]
    return [f"{number:6}\t{visible(line[:200])}" for number, line in hits[:_LINES_SHOWN]]


# Commands that write: each returns the new contents of the documents it is given.


def _create(wish: _Wish, path: str, _: str, before: Before) -> After:
    if path == ROOT:
        raise InvalidCallError(f"{ROOT} is the top folder; give the document a name, such as {ROOT}/notes.md")
    if (there := before.get(path)) and wish.expected_version is None:
        way_out = f"Pass expected_version={there.version} to replace it, or use str_replace or insert."
        raise ToolFailure(f"{path} already exists, at version {there.version}. {way_out}", code=EXISTS)
    return {path: wish.content}


def _replace(wish: _Wish, path: str, _: str, before: Before) -> After:
    content, old = _content(path, before), wish.old_str or ""
    count = content.count(old)
    if count != 1:
        code, how = ("EDIT_NOT_UNIQUE", f"occurs {count} times in") if count else ("EDIT_NO_MATCH", "is not in")
        way_out = "Add the text around it." if count else "View it, and copy the text exactly."
        raise ToolFailure(f"old_str {how} {path}. {way_out}", code=code)
    return {path: _fitting(path, content.replace(old, wish.new_str))}


def _insert(wish: _Wish, path: str, _: str, before: Before) -> After:
    lines, at = _content(path, before).split("\n"), wish.insert_line or 0
    if at > len(lines):
        raise InvalidCallError(f"insert_line {at} is past the end of {path} ({counted(len(lines), 'line')})")
    new = (wish.content or "").removesuffix("\n").split("\n")
    return {path: _fitting(path, "\n".join([*lines[:at], *new, *lines[at:]]))}


def _delete(_: _Wish, path: str, __: str, before: Before) -> After:
    if not before:
        raise _not_found(path)
    return dict.fromkeys(before)


def _rename(_: _Wish, path: str, to: str, before: Before) -> After:
    moved = [one for one in before.values() if is_below(one.path, path)]
    if not moved:
        raise _not_found(path)
    if is_below(to, path) or is_below(path, to):
        raise InvalidCallError(f"{path} cannot be renamed to {to}: one is inside the other")
    if len(moved) < len(before):
        raise ToolFailure(f"{to} exists. Delete it first, or choose another path.", code=EXISTS)
    new: After = {f"{to}{one.path.removeprefix(path)}": one.content for one in moved}
    if (longest := max(map(len, new))) > MAX_PATH:
        raise InvalidCallError(f"A path would have {longest} characters; the limit is {MAX_PATH}")
    return new | dict.fromkeys(one.path for one in moved)


def _content(path: str, before: Before) -> str:
    if path not in before:
        raise _not_found(path)
    return before[path].content


def _fitting(path: str, content: str) -> str:
    if len(content) > MAX_CHARS:
        raise InvalidCallError(f"{path} would have {len(content):,} characters; the limit is {MAX_CHARS:,}")
    return content


def _not_found(path: str) -> ToolFailure:
    return ToolFailure(f"There is no {path}. Use list to see what there is.", code=NOT_FOUND)


_READS = {"view": _view, "list": _list, "search": _search}
_OF_FOLDERS = ("delete", "rename")
_WRITES: dict[str, tuple[Callable[[_Wish, str, str, Before], After], str]] = {
    "create": (_create, "Wrote {path}"),
    "str_replace": (_replace, "Edited {path}"),
    "insert": (_insert, "Inserted into {path}"),
    "delete": (_delete, "Deleted {path}"),
    "rename": (_rename, "Renamed {path} to {to}"),
}
