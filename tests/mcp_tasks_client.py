"""The client's half of the tasks extension: accepts a task as an answer and polls until it ends."""

import asyncio
from collections.abc import Sequence
from typing import Any, Literal

from mcp.client import ClaimContext, ClientExtension, ResultClaim
from mcp.types import CallToolResult, Request, RequestParams, Result
from pydantic import ConfigDict

from forge_tools.mcp.tasks import EXTENSION
from tests.waiting import within


class TaskCreated(Result):
    """What a server answers in place of a result."""

    result_type: Literal["task"] = "task"
    task_id: str
    status: str


class TaskParams(RequestParams):
    task_id: str


class TaskRequest(Request[TaskParams, str]):
    """Any of the requests about one task."""

    method: str
    params: TaskParams


class Anything(Result):
    """A result with whatever it holds."""

    model_config = ConfigDict(extra="allow")

    @property
    def held(self) -> dict[str, Any]:
        return self.model_extra or {}


async def ask(session: Any, method: str, task_id: str) -> dict[str, Any]:
    """Send one request about a task."""
    request = TaskRequest(method=method, params=TaskParams(task_id=task_id))
    return (await session.send_request(request, Anything)).held


class TasksExtension(ClientExtension):
    """Polls a task to its end, as clients do; `seen` has what they were told in between."""

    identifier = EXTENSION

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []

    def claims(self) -> Sequence[ResultClaim[Any]]:
        return [ResultClaim(result_type="task", model=TaskCreated, resolve=self._resolve)]

    async def _resolve(self, created: TaskCreated, context: ClaimContext) -> CallToolResult:
        for _ in within(100, "the task is working"):
            self.seen.append(told := await ask(context.session, "tasks/get", created.task_id))
            if told["status"] != "working":
                break
            await asyncio.sleep(0.1)
        return CallToolResult.model_validate(told.get("result", {"content": [], "isError": True}))
