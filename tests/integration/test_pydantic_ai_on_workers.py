"""Agents of Pydantic AI whose tools run on workers, and the scripts of their page."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults
from pydantic_ai.messages import ModelMessage, ToolReturnPart
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from forge_tools.adapters.pydantic_ai import pydantic_ai_toolset
from forge_tools.client import ExecutorClient
from forge_tools.model import ExecutionContext, ExecutionStatus
from tests.fleet import ROOT, Fleet
from tests.model_servers.responses import ResponsesServer
from tests.model_servers.wire import Say
from tests.warm import WarmInterpreter

DATABASES = ("sqlite",)

CALLS = (
    ("call_1", "Sleep", '{"seconds": 0.5}'),
    ("call_2", "EchoInProcess", '{"message": "from a process"}'),
    ("call_3", "Login", '{"user": "ada", "password": "hunter22"}'),
    ("call_4", "Echo", '{"message": 3}'),
    ("call_5", "Read", '{"file_path": "nowhere.txt"}'),
)


def model(url: str) -> OpenAIResponsesModel:
    sdk = openai.AsyncOpenAI(base_url=url, api_key="test", max_retries=0)
    return OpenAIResponsesModel("gpt-5.5", provider=OpenAIProvider(openai_client=sdk))


def returned(messages: list[ModelMessage]) -> list[ToolReturnPart]:
    return [part for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]


async def drained(ctx: Any, events: Any) -> None:
    async for _ in events:
        pass


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
async def test_the_calls_of_an_agent_run_on_workers_and_each_is_a_row(
    client: ExecutorClient, context: ExecutionContext, streams: bool
) -> None:
    context = context.model_copy(update={"session_id": f"pydantic-ai-{streams}"})
    with ResponsesServer(Say("I look.", CALLS), Say("Done.")) as server:
        agent = Agent(model(server.url), toolsets=[pydantic_ai_toolset(client, context=context)])
        run = await agent.run("Go", event_stream_handler=drained if streams else None)

    parts = returned(run.all_messages())
    rows = await client.history.list(session_id=context.session_id)
    assert (run.output, server.refusals) == ("Done.", [])
    assert [part.outcome for part in parts] == ["success", "success", "success", "retried", "failed"]
    assert [part.content for part in parts[:4]] == [
        "slept 0.5s",
        "from a process",
        "ada has a password of 8 characters",
        "Error: Invalid type for message: expected string",
    ]
    assert {row.tool: row.status for row in rows} == {
        "Sleep": ExecutionStatus.SUCCEEDED,
        "EchoInProcess": ExecutionStatus.SUCCEEDED,
        "Login": ExecutionStatus.SUCCEEDED,
        "Echo": ExecutionStatus.REJECTED,
        "Read": ExecutionStatus.FAILED,
    }
    assert (await client.history.get(parts[0].metadata["metadata"]["execution_id"])).tool == "Sleep"


async def test_fifty_calls_of_one_reply_run_at_the_same_time(client: ExecutorClient, context: ExecutionContext) -> None:
    calls = tuple((f"call_{n}", "Sleep", '{"seconds": 1}') for n in range(50))
    with ResponsesServer(Say("", calls), Say("Done.")) as server:
        agent = Agent(model(server.url), toolsets=[pydantic_ai_toolset(client, context=context)])
        run = await agent.run("Go")

    parts = returned(run.all_messages())
    rows = [await client.history.get(part.metadata["metadata"]["execution_id"]) for part in parts]
    assert [part.tool_call_id for part in parts] == [f"call_{n}" for n in range(50)]
    assert max(row.started_at for row in rows if row.started_at) < min(
        row.completed_at for row in rows if row.completed_at
    )


async def test_a_call_that_waits_for_approval_is_no_row_before_it(
    client: ExecutorClient, context: ExecutionContext
) -> None:
    context = context.model_copy(update={"session_id": "approval"})
    toolset = pydantic_ai_toolset(client, context=context).approval_required(
        lambda ctx, tool, arguments: tool.metadata["capabilities"]["executes_commands"]
    )
    with ResponsesServer(Say("", (("call_1", "Bash", '{"command": "echo hi"}'),)), Say("Done.")) as server:
        agent = Agent(model(server.url), toolsets=[toolset], output_type=[str, DeferredToolRequests])
        asked = await agent.run("Go")
        before = await client.history.list(session_id="approval")
        approved = DeferredToolResults(approvals={call.tool_call_id: True for call in asked.output.approvals})
        done = await agent.run(message_history=asked.all_messages(), deferred_tool_results=approved)

    [part] = returned(done.all_messages())
    [row] = await client.history.list(session_id="approval")
    assert (len(before), done.output, row.status) == (0, "Done.", ExecutionStatus.SUCCEEDED)
    assert "hi" in part.content


def snippets() -> list[Any]:
    codes = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "pydantic-ai.md").read_text(), re.DOTALL)
    return [pytest.param(code, id=code.partition("\n")[0].removeprefix("# ")) for code in codes]


@pytest.fixture(scope="module")
def warm() -> Iterator[WarmInterpreter]:
    """Forks the scripts of the pages; a warning of what they import or do is an error."""
    made = WarmInterpreter("pydantic_ai.models.openai", "forge_tools.client", options=("-W", "error"))
    yield made
    made.close()


@pytest.mark.parametrize("code", snippets())
def test_the_scripts_of_the_page_run(fleet: Fleet, warm: WarmInterpreter, tmp_path: Path, code: str) -> None:
    (tmp_path / "celery_tasks.py").write_text("import celery\n")
    glob, bash = ("call_1", "Glob", '{"pattern": "*.py"}'), ("call_1", "Bash", '{"command": "wc -l *.py"}')
    with ResponsesServer(Say("", (bash if "approve" in code else glob,)), Say("That is all.")) as server:
        environment = fleet.environment() | {"OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "test"}
        done = warm.run(["-c", code], cwd=tmp_path, env=environment)

    assert (done.returncode, done.stderr, server.script) == (0, "", [])
    assert "That is all." in done.stdout
    assert ("May it run? Bash" in done.stdout) == ("approve" in code)
    assert server.refusals == []
