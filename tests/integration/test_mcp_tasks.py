"""Tasks of the protocol of 2025-11-25 as rows of each database, for a client that writes lines itself."""

import asyncio
from collections.abc import Iterator

import pytest

from forge_tools.client import ExecutorClient
from forge_tools.mcp import tasks
from tests.fleet import Fleet
from tests.mcp_process import McpProcess

DATABASES = ("postgres",)

SECONDS = {"seconds": 60}


@pytest.fixture
def raw(fleet: Fleet) -> Iterator[McpProcess]:
    server = McpProcess(fleet.environment(), fleet.folder)
    yield server.greet()
    server.stop()


async def test_a_task_outlives_the_server_that_made_it(raw: McpProcess, fleet: Fleet) -> None:
    made = raw.ask("tools/call", {"name": "Sleep", "arguments": {"seconds": 2}, "task": {"ttl": 60_000}})["task"]
    assert (made["status"], made["ttl"]) == ("working", 60_000)
    await asyncio.to_thread(raw.hang_up)

    again = McpProcess(fleet.environment(), fleet.folder).greet()
    try:
        answer = again.ask("tasks/result", {"taskId": made["taskId"]})
        told = again.ask("tasks/get", {"taskId": made["taskId"]})
    finally:
        again.stop()
    assert answer["content"][0]["text"] == "slept 2s"
    assert answer["_meta"]["io.modelcontextprotocol/related-task"] == {"taskId": made["taskId"]}
    assert (told["status"], told["taskId"]) == ("completed", made["taskId"])


async def test_long_lists_of_tasks_come_in_pages(raw: McpProcess) -> None:
    call = {"name": "Echo", "arguments": {"message": "m"}, "task": {}}
    made = [raw.ask("tools/call", call)["task"]["taskId"] for _ in range(tasks.PAGE + 3)]
    first = raw.ask("tasks/list")
    second = raw.ask("tasks/list", {"cursor": first["nextCursor"]})
    wrong = raw.answer(raw.begin("tasks/list", {"cursor": "?"}))

    listed = [task["taskId"] for page in (first, second) for task in page["tasks"]]
    assert (len(first["tasks"]), "nextCursor" in second) == (tasks.PAGE, False)
    assert listed == made[::-1]
    assert wrong["error"]["code"] == -32602


async def test_tasks_are_listed_cancelled_and_forgotten(raw: McpProcess, client: ExecutorClient) -> None:
    ids = [
        raw.ask("tools/call", {"name": "Sleep", "arguments": SECONDS, "task": {}})["task"]["taskId"] for _ in range(3)
    ]
    raw.call("Echo", message="no task")
    assert [task["taskId"] for task in raw.ask("tasks/list")["tasks"]] == ids[::-1]

    cancelled = [raw.ask("tasks/cancel", {"taskId": id_})["status"] for id_ in ids]
    again = raw.answer(raw.begin("tasks/cancel", {"taskId": ids[0]}))
    assert cancelled == ["cancelled"] * 3
    assert again["error"]["code"] == -32602
    assert raw.ask("tasks/result", {"taskId": ids[0]})["isError"]

    brief = raw.ask("tools/call", {"name": "Echo", "arguments": {"message": "m"}, "task": {"ttl": 1}})["task"]["taskId"]
    await client.calls.attach(brief).result(30)
    gone = raw.answer(raw.begin("tasks/get", {"taskId": brief}))
    assert "has expired" in gone["error"]["message"]


async def test_no_ttl_is_too_long_or_too_short(raw: McpProcess, client: ExecutorClient) -> None:
    call = {"name": "Echo", "arguments": {"message": "m"}}
    made = [raw.ask("tools/call", {**call, "task": {"ttl": ttl}})["task"] for ttl in (10**30, -5)]
    for task in made:
        await client.calls.attach(task["taskId"]).result(30)

    assert [task["ttl"] for task in made] == [tasks.LONGEST_TTL_MS, 0]
    assert raw.ask("tasks/get", {"taskId": made[0]["taskId"]})["status"] == "completed"


async def test_a_task_that_fails_says_so_and_one_that_is_refused_was_never_queued(raw: McpProcess) -> None:
    refused = raw.ask("tools/call", {"name": "Echo", "arguments": {}, "task": {}})["task"]

    assert refused["status"] == "failed"
    assert "message" in raw.ask("tasks/result", {"taskId": refused["taskId"]})["content"][0]["text"]


async def test_only_tasks_are_shown_as_tasks(raw: McpProcess, client: ExecutorClient) -> None:
    raw.call("Echo", message="secret")
    record = (await client.history.list(tool="Echo", limit=1))[0]
    answers = [
        raw.answer(raw.begin("tasks/get", {"taskId": id_})) for id_ in (record.id, record.id[:8], "x", "", "0" * 10_000)
    ]

    assert {answer["error"]["code"] for answer in answers} == {-32602}
