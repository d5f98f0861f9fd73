"""What a worker still claims when some of its tools are switched off."""

from forge_tools.records import ToolCategory, ToolSpec
from tests.contract.calls import scope
from workers.withdrawal import Withdrawal

GREP = ToolSpec(name="Grep", description="Search.", category=ToolCategory.FILE)
READ = ToolSpec(name="Read", description="Read.", category=ToolCategory.FILE, version="2.1.0")
BOTH = scope(tool_keys=("Grep@1", "Read@2"))


def test_what_is_disabled_is_claimed_no_more_and_again_when_it_is_enabled() -> None:
    withdrawal = Withdrawal({one.name: one for one in (GREP, READ)})
    assert withdrawal.within(BOTH) is BOTH

    withdrawal.hear({"Read"})
    assert withdrawal.within(BOTH) == scope(tool_keys=("Grep@1",))

    withdrawal.hear({"Grep", "Read"})
    assert withdrawal.within(BOTH).tool_keys == ()

    withdrawal.hear(frozenset())
    assert withdrawal.within(BOTH) is BOTH


def test_tools_of_others_make_no_difference() -> None:
    withdrawal = Withdrawal({GREP.name: GREP})

    withdrawal.hear({"Write", "grep"})

    assert withdrawal.within(BOTH) is BOTH


def test_a_tool_that_is_pinned_to_another_definition_is_claimed_no_more_until_it_is_let_go() -> None:
    withdrawal = Withdrawal({one.name: one for one in (GREP, READ)})

    withdrawal.hear(frozenset(), {("Grep", "another"), ("Read", READ.digest), ("Write", "w")})
    assert withdrawal.within(BOTH).tool_keys == ("Read@2",)

    withdrawal.hear({"Read"}, {("Grep", "another")})
    assert withdrawal.within(BOTH).tool_keys == ()

    withdrawal.hear(frozenset(), {("Grep", GREP.digest)})
    assert withdrawal.within(BOTH) is BOTH
