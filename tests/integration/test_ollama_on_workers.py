"""Ollama's conversations and text tools on workers, and the scripts of their pages."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ollama
import pytest

from forge_tools.adapters.compat import SyncTextTools, TextTools
from forge_tools.adapters.conversation import Conversation
from forge_tools.adapters.ollama import Chat
from forge_tools.adapters.toolset import Toolset
from forge_tools.client import ExecutorClient, SyncExecutorClient
from forge_tools.errors import ConfigurationError, ToolError
from forge_tools.model import ExecutionContext, ExecutionStatus
from tests.fleet import ROOT, Fleet
from tests.model_servers.ollama import OllamaServer
from tests.model_servers.wire import Say
from tests.warm import WarmInterpreter

DATABASES = ("sqlite",)

CALLS = (
    ("", "Sleep", '{"seconds": 0.5}'),
    ("", "EchoInProcess", '{"message": "from a process"}'),
    ("", "Echoo", '{"message": "x"}'),
)
TOLD = ["slept 0.5s", "from a process", "Error: Unknown tool: Echoo (did you mean 'Echo'?)"]


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
async def test_the_calls_of_a_message_to_ollama_run_on_workers_and_each_is_a_row(
    client: ExecutorClient, context: ExecutionContext, streams: bool
) -> None:
    context = context.model_copy(update={"session_id": f"ollama-{streams}"})
    hook = (lambda event: None) if streams else None
    with OllamaServer(Say("I look.", CALLS), Say("Done.")) as server:
        async with ollama.AsyncClient(host=server.url) as sdk:
            conversation = Conversation(Chat("m", sdk), Toolset(client, context=context), on_event=hook)
            turn = await conversation.run("Go")

    rows = await client.history.list(session_id=context.session_id)
    assert (turn.text, server.refusals) == ("Done.", [])
    assert [answer.text for answer in turn.steps[0].answers] == TOLD
    assert {row.tool: row.status for row in rows} == {
        "Sleep": ExecutionStatus.SUCCEEDED,
        "EchoInProcess": ExecutionStatus.SUCCEEDED,
        "Echoo": ExecutionStatus.REJECTED,
    }


async def test_text_tools_run_on_workers_what_a_person_confirms(
    client: ExecutorClient, context: ExecutionContext
) -> None:
    context = context.model_copy(update={"session_id": "text"})
    tools, asked = TextTools(client, context=context), []

    def confirm(question: str) -> bool:
        asked.append(question)
        return "rm" not in question

    refused = await tools.execute_tool("Bash", {"command": "rm -r ."}, confirm)
    done = await tools.execute_tool("Bash", '{"command": "echo hi"}', confirm)
    invalid = await tools.execute_tool("Echo", {"mesage": 3})

    assert refused == "Error: Bash was not run: the call was not confirmed."
    assert "hi" in done
    assert asked[1].startswith("Bash may ")
    assert "Missing required parameter: message" in invalid
    assert "\nEcho requires message (string: " in invalid
    assert len(await client.history.list(session_id="text")) == 2
    with pytest.raises(ToolError, match="Echo requires message"):
        await tools.function("Echo")({})


def test_a_script_has_text_tools_on_workers(fleet: Fleet, context: ExecutionContext) -> None:
    with SyncExecutorClient(fleet.settings) as client:
        tools = SyncTextTools(client, context=context)

        assert tools.execute_tool("Echo", {"message": "x"}) == "x"
        assert tools.function("EchoInProcess")({"message": "from a process"}) == "from a process"
        assert tools.execute_tool("Write", {"file_path": "a", "content": ""}, lambda _: False).startswith("Error: ")


async def test_a_client_of_another_loop_is_refused_by_the_synchronous_face(client: ExecutorClient) -> None:
    with pytest.raises(ConfigurationError, match="share a SyncExecutorClient"):
        SyncTextTools(client).execute_tool("Echo", {"message": "x"})


def snippets() -> list[Any]:
    found = []
    for page in ("ollama", "compat"):
        codes = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / f"{page}.md").read_text(), re.DOTALL)
        found += [pytest.param(page, code, id=f"{page}-{number}") for number, code in enumerate(codes, 1)]
    return found


@pytest.fixture(scope="module")
def warm() -> Iterator[WarmInterpreter]:
    """Forks the scripts of the pages; a warning of what they import or do is an error."""
    made = WarmInterpreter("ollama", "forge_tools.client", options=("-W", "error"))
    yield made
    made.close()


@pytest.mark.parametrize(("page", "code"), snippets())
def test_the_scripts_of_the_pages_run(
    fleet: Fleet, warm: WarmInterpreter, tmp_path: Path, page: str, code: str
) -> None:
    (tmp_path / "celery_tasks.py").write_text("import celery\n")
    with OllamaServer(Say("", (("", "Glob", '{"pattern": "*.py"}'),)), Say("That is all.")) as server:
        environment = fleet.environment() | {"OLLAMA_HOST": server.url}
        done = warm.run(["-c", code], cwd=tmp_path, env=environment)

    assert (done.returncode, done.stderr) == (0, "")
    assert ("hello" if page == "compat" else "That is all.") in done.stdout
    assert server.script == [] or page == "compat"
