"""TodoRead: what a session has to do."""

from dataclasses import dataclass
from typing import Any, Literal

from forge_tools.model import ExecutionContext, ToolCategory, ToolResult
from forge_tools.tools.builtin import ReadingTool, counted, option, parameters_of
from forge_tools.tools.task.documents import Documents
from forge_tools.tools.task.todos import LIST_NAME, facts_of, path_of, shown, todos_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """Which todos to read."""

    list: str = option("Name of the list.", "default", **LIST_NAME)
    status: Literal["pending", "in_progress", "completed", "cancelled"] | None = option(
        "Show only those that are so.", None
    )


class TodoRead(ReadingTool):
    """Read the todo list of this session, with the ids of its items and its version."""

    name = "TodoRead"
    aliases = ("todo_read",)
    category = ToolCategory.TASK
    parameters = parameters_of(Wish)

    async def _execute(self, context: ExecutionContext, **options: Any) -> ToolResult:
        wish, kept = Wish(**options), Documents(context, "session", self.name, options)
        document = await kept.read(path_of(wish.list))
        todos = todos_of(document)
        wanted = [todo for todo in todos if wish.status in (None, todo.status)]
        facts = facts_of(wish.list, document.version if document else 0, todos)
        facts["todos"] = [todo.facts() for todo in wanted]
        total = counted(len(todos), "todo")
        return ToolResult.ok(shown(wanted) or f"Nothing to show: {total} in list {wish.list}", **facts)
