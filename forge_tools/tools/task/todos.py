"""TodoRead and TodoWrite: the todo lists of a session, written as a whole or item by item."""

import json
import secrets
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

from forge_tools.errors import ErrorCode, ToolFailure
from forge_tools.model import Capabilities, ExecutionContext, ToolCategory, ToolResult
from forge_tools.model.documents import Document
from forge_tools.tools.builtin import BuiltinTool, ReadingTool, counted, option
from forge_tools.tools.file.text import visible
from forge_tools.tools.task.documents import Documents, require_version

MAX_TODOS = 200

Status = Literal["pending", "in_progress", "completed", "cancelled"]
Priority = Literal["low", "medium", "high"]

ITEM = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "maxLength": 64, "description": "Id of an existing todo; leave it out for a new one."},
        "content": {"type": "string", "minLength": 1, "maxLength": 1000, "description": "What is to be done."},
        "status": {"type": "string", "enum": list(get_args(Status))},
        "priority": {"type": "string", "enum": list(get_args(Priority))},
        "active_form": {
            "type": "string",
            "maxLength": 1000,
            "description": "The same in the present continuous: what is being done.",
        },
    },
    "additionalProperties": False,
}

LIST_NAME: dict[str, Any] = {"min_length": 1, "max_length": 64, "keywords": {"pattern": "^[^/]+$"}}
_MARKS: dict[Status, str] = {"pending": "[ ]", "in_progress": "[>]", "completed": "[x]", "cancelled": "[-]"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReadWish:
    list: str = option("Name of the list.", "default", **LIST_NAME)
    status: Literal["pending", "in_progress", "completed", "cancelled"] | None = option(
        "Show only todos with this status.", None
    )


class TodoRead(ReadingTool):
    """Read the todo list of this session, with the ids of its items and its version."""

    name = "TodoRead"
    aliases = ("todo_read",)
    category = ToolCategory.TASK
    options = _ReadWish

    async def _execute(self, context: ExecutionContext, **options: Any) -> ToolResult:
        wish, kept = _ReadWish(**options), Documents(context, "session", self.name, options)
        document = await kept.read(f"/todos/{wish.list}")
        todos = todos_of(document)
        wanted = [todo for todo in todos if wish.status in (None, todo.status)]
        facts = facts_of(wish.list, document.version if document else 0, todos)
        facts["todos"] = [todo.facts() for todo in wanted]
        total = counted(len(todos), "todo")
        return ToolResult.ok(shown(wanted) or f"Nothing to show: {total} in list {wish.list}", **facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class _WriteWish:
    todos: Sequence[Mapping[str, Any]] = option(
        "The whole list; with merge, only the items to change (by id) or to add.",
        items=ITEM, keywords={"maxItems": MAX_TODOS},
    )  # fmt: skip
    merge: bool = option("Change and add these items, and leave all others as they are.", default=False)
    expected_version: int | None = option(
        "Write only if the list still has this version, which the last read or write returned; 0: if there is none.",
        None,
        minimum=0,
    )
    list: str = option("Name of the list.", "default", **LIST_NAME)


class TodoWrite(BuiltinTool):
    """Write the todo list of this session: replace it, or with merge change and add single items. New items get ids.

    It is kept in the database, the same on every host. Items that several agents add at once are all kept.
    """

    name = "TodoWrite"
    aliases = ("todo_write",)
    category = ToolCategory.TASK
    capabilities = Capabilities(idempotent=True, retryable=True)
    options = _WriteWish

    async def _execute(self, context: ExecutionContext, **options: Any) -> ToolResult:
        wish, kept = _WriteWish(**options), Documents(context, "session", self.name, options)
        path, old, new = f"/todos/{wish.list}", list[Todo](), list[Todo]()

        def revise(before: Mapping[str, Document]) -> Mapping[str, str | None]:
            document = before.get(path)
            old[:] = todos_of(document)
            facts = [todo.facts() for todo in old]
            require_version(f"Todo list {wish.list}", document, wish.expected_version, todos=facts)
            new[:] = written(old, wish.todos, merge=wish.merge)
            if document and new == old:
                return {}
            return {path: json.dumps([todo.facts() for todo in new], ensure_ascii=False)}

        document = (await kept.change([path], revise, dry_run=context.dry_run)).get(path)
        todos = new if context.dry_run else todos_of(document)
        warnings = list(warnings_of(old, new))
        facts = facts_of(wish.list, document.version if document else 0, todos) | difference(old, new)
        facts |= {"warnings": warnings} if warnings else {}
        text = shown(todos) or f"The list {wish.list} is empty"
        return ToolResult.ok("\n".join([text, *(f"[warning: {one}]" for one in warnings)]) + kept.note, **facts)

    async def _dry_run(self, context: ExecutionContext, **options: Any) -> ToolResult:
        result = await self._execute(context, **options)
        result.output = f"[Dry Run] The list would be:\n{result.output}"
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class Todo:
    id: str
    content: str
    status: Status = "pending"
    priority: Priority | None = None
    active_form: str | None = None

    def facts(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


def todos_of(document: Document | None) -> list[Todo]:
    return [Todo(**item) for item in json.loads(document.content)] if document else []


def written(old: Sequence[Todo], items: Sequence[Mapping[str, Any]], *, merge: bool) -> list[Todo]:
    """Return the list after a write: `items`, or with `merge` the old todos with these changed and added.

    Fields that an item leaves out keep their value. An item without an id is new, unless the list is replaced and an old todo has
    the same content: then it keeps that one's id.
    """
    known = {todo.id: todo for todo in old}
    ids = [(item.get("id") or "").strip() for item in items]
    if twice := sorted(one for one, count in Counter(filter(None, ids)).items() if count > 1):
        text = f"Several todos have the same id: {', '.join(map(visible, twice))}. Leave out the ids of new ones."
        raise ToolFailure(text, code=ErrorCode.VALIDATION_ERROR)
    unnamed = [] if merge else [todo for todo in old if todo.id not in ids]
    new: dict[str, Todo] = {}
    for given, item in zip(ids, items, strict=True):
        same = None if given else next((todo for todo in unnamed if todo.content == item.get("content")), None)
        if same is not None:
            unnamed.remove(same)
        own = given or (same.id if same else _fresh_id(known, ids))
        new[own] = known[own] = _patched(own, item, known)
    todos = list(known.values() if merge else new.values())
    if len(todos) > MAX_TODOS:
        text = f"The list would have {len(todos):,} todos; the limit is {MAX_TODOS}. Remove completed ones."
        raise ToolFailure(text, code=ErrorCode.VALIDATION_ERROR)
    return todos


def warnings_of(old: Sequence[Todo], new: Sequence[Todo]) -> Iterator[str]:
    """Yield warnings about changes that are probably mistakes."""
    busy = [todo.id for todo in new if todo.status == "in_progress"]
    if len(busy) > 1:
        yield f"{counted(len(busy), 'todo')} are in_progress at once: {', '.join(busy)}"
    before = {todo.id: todo.content for todo in old}
    for todo in new:
        if todo.id in before and not {*before[todo.id].casefold().split()} & {*todo.content.casefold().split()}:
            yield f"{todo.id} was '{_line(before[todo.id])[:60]}', and now means something else"


def difference(old: Sequence[Todo], new: Sequence[Todo]) -> dict[str, list[str]]:
    before, after = ({todo.id: todo for todo in todos} for todos in (old, new))
    return {
        "added": [one for one in after if one not in before],
        "changed": [one for one, todo in after.items() if before.get(one, todo) != todo],
        "removed": [one for one in before if one not in after],
    }


def shown(todos: Sequence[Todo]) -> str:
    """Return a checklist with ids: `[x] 3f9a1c  Write tests (high)`."""
    return "\n".join(
        f"{_MARKS[one.status]} {visible(one.id)}  {_line(one.content)}{f' ({one.priority})' if one.priority else ''}"
        for one in todos
    )


def facts_of(name: str, version: int, todos: Sequence[Todo]) -> dict[str, Any]:
    counts = {status: sum(todo.status == status for todo in todos) for status in _MARKS}
    return {"list": name, "version": version, "counts": counts, "todos": [todo.facts() for todo in todos]}


def _patched(id: str, item: Mapping[str, Any], known: Mapping[str, Todo]) -> Todo:
    fields = {name: value for name, value in item.items() if value is not None} | {"id": id}
    if id in known:
        return replace(known[id], **fields)
    if "content" not in fields:
        there = ", ".join(list(known)[:10]) or "none"
        text = f"There is no todo '{visible(id)}' to change, and a new one needs content. There are: {there}."
        raise ToolFailure(text, code=ErrorCode.VALIDATION_ERROR)
    return Todo(**fields)


def _fresh_id(known: Mapping[str, Todo], ids: Sequence[str]) -> str:
    """Return an unused id; it is random, so that one of a removed todo is hardly ever used again."""
    while (fresh := secrets.token_hex(3)) in known or fresh in ids:
        pass
    return fresh


def _line(text: str) -> str:
    return visible(" ".join(text.split()))
