"""TodoWrite: what a session has to do, written as a whole or item by item."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forge_tools.model import Capabilities, Document, ExecutionContext, ToolCategory, ToolResult
from forge_tools.tools.builtin import BuiltinTool, option, parameters_of
from forge_tools.tools.task.documents import Documents, require_version
from forge_tools.tools.task.todos import (
    ITEM,
    LIST_NAME,
    MAX_TODOS,
    Todo,
    content_of,
    difference,
    facts_of,
    path_of,
    shown,
    todos_of,
    warnings_of,
    written,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What is written."""

    todos: Sequence[Mapping[str, Any]] = option(
        "The whole list; with merge only the items to change, by their ids, and to add.",
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

    It is kept in the database, the same on every host. Of items that several agents add at once none is lost.
    """

    name = "TodoWrite"
    aliases = ("todo_write",)
    category = ToolCategory.TASK
    capabilities = Capabilities(idempotent=True, retryable=True)
    parameters = parameters_of(Wish)

    async def _execute(self, context: ExecutionContext, **options: Any) -> ToolResult:
        wish, kept = Wish(**options), Documents(context, "session", self.name, options)
        path, old, new = path_of(wish.list), list[Todo](), list[Todo]()

        def revise(before: Mapping[str, Document]) -> Mapping[str, str | None]:
            document = before.get(path)
            old[:] = todos_of(document)
            facts = [todo.facts() for todo in old]
            require_version(f"Todo list {wish.list}", document, wish.expected_version, todos=facts)
            new[:] = written(old, wish.todos, merge=wish.merge)
            return {} if document and new == old else {path: content_of(new)}

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
