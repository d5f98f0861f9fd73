"""Which tools a server offers, in whose name they are called, and what is told meanwhile without secrets."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mcp.types import Implementation

from forge_tools.mcp.calls import LONG_QUEUE, LONGEST_NAME, Calls, Offer, agent_name, told_here
from forge_tools.model import ExecutionContext, ToolCategory, ToolSpec
from forge_tools.tool import tool
from forge_tools.tool.executor import ToolExecutor
from forge_tools.tool.registry import ScopedRegistry
from tests.unit.mcp.conftest import Local

GREP = ToolSpec(
    name="Grep", description="Search.", category=ToolCategory.FILE, tags=("search", "safe"), aliases=("grep",)
)


@pytest.mark.parametrize(
    ("wanted", "is_offered"),
    [
        ({}, True),
        ({"categories": {"file"}}, True),
        ({"categories": {"web"}}, False),
        ({"tags": {"safe", "other"}}, True),
        ({"tags": {"other"}}, False),
        ({"names": {"grep"}}, True),
        ({"names": {"Bash"}}, False),
        ({"names": frozenset()}, False),
        ({"categories": {"file"}, "tags": {"other"}}, False),
    ],
)
def test_a_tool_is_offered_if_every_filter_admits_it(wanted: dict[str, Any], is_offered: bool) -> None:
    assert Offer(**wanted).admits(GREP) is is_offered


def test_a_name_that_the_protocol_forbids_is_not_offered() -> None:
    assert not Offer().admits(GREP.model_copy(update={"name": "no spaces"}))


def asked_by(client: Implementation | None) -> Any:
    """A request of that client on a transport without sessions."""
    params = None if client is None else SimpleNamespace(client_info=client)
    return SimpleNamespace(request=None, session=SimpleNamespace(client_params=params))


def test_calls_carry_session_and_client(local: Local, tmp_path: Path) -> None:
    calls = Calls(local, Offer(working_dir=str(tmp_path), dry_run=True, session_id="s-1"))

    context = calls.context(asked_by(Implementation(name="client", version="2")), task=True)

    assert (context.session_id, context.agent_id, context.dry_run) == ("s-1", "client/2", True)
    assert context.metadata == {"mcp": {"task": True}}
    assert "timeout" not in context.model_fields_set


def test_a_server_without_a_given_session_makes_one_of_its_own(local: Local) -> None:
    one, other = (Calls(local, Offer()).context(asked_by(None)) for _ in range(2))

    assert one.session_id != other.session_id


def test_what_a_client_says_of_itself_is_cleaned_and_cut() -> None:
    assert agent_name(Implementation(name="agent\x00", version="1")) == "agent\\x00/1"
    assert len(agent_name(Implementation(name="n" * 10_000, version="1"))) == LONGEST_NAME


def test_long_calls_wait_where_they_starve_nobody_unless_they_are_routed() -> None:
    assert Offer().long_queue(GREP) == LONG_QUEUE
    assert Offer(routes={"Grep": "search"}).long_queue(GREP) is None
    assert Offer(routes={"file": "disks"}).long_queue(GREP) is None


@tool(sensitive=["pin"])
async def apart(context: ExecutionContext, pin: str) -> str:
    """Tell a secret in parts."""
    context.emit(f"it is {pin[:4]}")
    context.progress(1, 2, f"with {pin}")
    context.emit(f"{pin[4:]}, not {pin[:4]}")
    return "done"


async def test_a_secret_that_is_told_in_parts_is_told_in_no_notification() -> None:
    told: list[str | None] = []

    async def report_progress(number: float, total: float | None, message: str | None) -> None:
        told.append(message)

    registry = ScopedRegistry()
    registry.register(apart)
    session = SimpleNamespace(report_progress=report_progress)
    ctx: Any = SimpleNamespace(session=session, params={}, protocol_version="2026-07-28")

    result = await told_here(ctx, ToolExecutor(registry).call("apart", {"pin": "hunter22"}))

    assert result.output == "done"
    assert told == ["it is [redacted], not hunt", "with [redacted]"]
