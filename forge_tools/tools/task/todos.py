"""Todo lists: their items, what a write makes of them, and how they are shown."""

import json
import secrets
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

from forge_tools.errors import ErrorCode, ToolFailure
from forge_tools.model import Document
from forge_tools.tools.builtin import counted
from forge_tools.tools.file.text import visible

MAX_TODOS = 200

Status = Literal["pending", "in_progress", "completed", "cancelled"]
Priority = Literal["low", "medium", "high"]

ITEM = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "maxLength": 64, "description": "Which todo this is; a new one needs none."},
        "content": {"type": "string", "minLength": 1, "maxLength": 1000, "description": "What is to be done."},
        "status": {"type": "string", "enum": list(get_args(Status))},
        "priority": {"type": "string", "enum": list(get_args(Priority))},
        "active_form": {"type": "string", "maxLength": 1000, "description": "The same while it is being done."},
    },
    "additionalProperties": False,
}

LIST_NAME: dict[str, Any] = {"min_length": 1, "max_length": 64, "keywords": {"pattern": "^[^/]+$"}}
"""What the name of a list is held to."""

_MARKS: dict[Status, str] = {"pending": "[ ]", "in_progress": "[>]", "completed": "[x]", "cancelled": "[-]"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Todo:
    """One item."""

    id: str
    content: str
    status: Status = "pending"
    priority: Priority | None = None
    active_form: str | None = None

    def facts(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


def path_of(name: str) -> str:
    """Where the list of that name is kept."""
    return f"/todos/{name}"


def todos_of(document: Document | None) -> list[Todo]:
    return [Todo(**item) for item in json.loads(document.content)] if document else []


def content_of(todos: Sequence[Todo]) -> str:
    return json.dumps([todo.facts() for todo in todos], ensure_ascii=False)


def written(old: Sequence[Todo], items: Sequence[Mapping[str, Any]], *, merge: bool) -> list[Todo]:
    """What the list is after a write: `items`, or with `merge` the old ones with these changed and added.

    What an item leaves out stays as it was. One without an id is new, but where the list is replaced, the same content keeps its id.

    Raises:
        ToolFailure: two items have one id, there is nothing to change, or there would be too many.
    """
    known = {todo.id: todo for todo in old}
    ids = [(item.get("id") or "").strip() for item in items]
    _require_distinct([one for one in ids if one])
    unnamed = [] if merge else [todo for todo in old if todo.id not in ids]
    new: dict[str, Todo] = {}
    for given, item in zip(ids, items, strict=True):
        own = given or _id_of(item.get("content"), unnamed) or _fresh_id(known, ids)
        new[own] = known[own] = _patched(own, item, known)
    todos = list(known.values() if merge else new.values())
    if len(todos) > MAX_TODOS:
        text = f"The list would have {len(todos):,} todos; the limit is {MAX_TODOS}. Take out what is done."
        raise ToolFailure(text, code=ErrorCode.VALIDATION_ERROR)
    return todos


def warnings_of(old: Sequence[Todo], new: Sequence[Todo]) -> Iterator[str]:
    """What is probably not meant."""
    busy = [todo.id for todo in new if todo.status == "in_progress"]
    if len(busy) > 1:
        yield f"{counted(len(busy), 'todo')} are in_progress at once: {', '.join(busy)}"
    before = {todo.id: todo.content for todo in old}
    for todo in new:
        if todo.id in before and not _words(before[todo.id]) & _words(todo.content):
            yield f"{todo.id} was '{_line(before[todo.id])[:60]}', and stands for something else now"


def difference(old: Sequence[Todo], new: Sequence[Todo]) -> dict[str, list[str]]:
    """The ids of what was added, changed and removed."""
    before, after = ({todo.id: todo for todo in todos} for todos in (old, new))
    return {
        "added": [one for one in after if one not in before],
        "changed": [one for one, todo in after.items() if before.get(one, todo) != todo],
        "removed": [one for one in before if one not in after],
    }


def shown(todos: Sequence[Todo]) -> str:
    """A checklist with ids: `[x] 3f9a1c  Write tests (high)`."""
    return "\n".join(
        f"{_MARKS[one.status]} {visible(one.id)}  {_line(one.content)}{f' ({one.priority})' if one.priority else ''}"
        for one in todos
    )


def facts_of(name: str, version: int, todos: Sequence[Todo]) -> dict[str, Any]:
    """What metadata say of a list."""
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


def _require_distinct(ids: Sequence[str]) -> None:
    twice = sorted(one for one, count in Counter(ids).items() if count > 1)
    if twice:
        text = f"Ids are given to several todos: {', '.join(map(visible, twice))}. Leave out the ids of new ones."
        raise ToolFailure(text, code=ErrorCode.VALIDATION_ERROR)


def _id_of(content: str | None, unnamed: list[Todo]) -> str | None:
    """The id of the first old todo that says the same, which is then taken."""
    same = next((todo for todo in unnamed if todo.content == content), None)
    if same is not None:
        unnamed.remove(same)
    return None if same is None else same.id


def _fresh_id(known: Mapping[str, Todo], ids: Sequence[str]) -> str:
    """A random id, so that an old one is hardly given again to another todo."""
    while (fresh := secrets.token_hex(3)) in known or fresh in ids:
        pass
    return fresh


def _words(text: str) -> set[str]:
    return set(text.casefold().split())


def _line(text: str) -> str:
    return visible(" ".join(text.split()))
