"""Which tools a server offers, and in whose name they are called."""

from typing import Any

import pytest

from forge_tools.mcp.offer import LONG_QUEUE, LONGEST_NAME, Caller, Offer, agent_name
from forge_tools.model import ToolCategory, ToolSpec

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


def test_calls_carry_session_and_client(tmp_path: Any) -> None:
    offer = Offer(working_dir=str(tmp_path), dry_run=True)

    context = offer.context(Caller("s-1", "client/2"), task=True)

    assert (context.session_id, context.agent_id, context.dry_run) == ("s-1", "client/2", True)
    assert context.metadata == {"mcp": {"task": True}}
    assert context.explicit_timeout is None


def test_a_server_without_a_given_session_makes_one_of_its_own() -> None:
    assert Offer().session_id != Offer().session_id


def test_what_a_client_says_of_itself_is_cleaned_and_cut() -> None:
    assert agent_name("agent\x00", "1") == "agent\\x00/1"
    assert len(agent_name("n" * 10_000, "1")) == LONGEST_NAME


def test_long_calls_wait_where_they_starve_nobody_unless_they_are_routed() -> None:
    assert Offer().long_queue(GREP) == LONG_QUEUE
    assert Offer(routes={"Grep": "search"}).long_queue(GREP) is None
    assert Offer(routes={"file": "disks"}).long_queue(GREP) is None
