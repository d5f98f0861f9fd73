"""The contract of the catalogue, on every database."""

import asyncio

import pytest
from sqlalchemy import update

from forge_tools.errors import ToolNotFoundError
from forge_tools.model import Capabilities, ExecutionStatus, ToolCategory, ToolParameter, ToolSpec
from forge_tools.storage import Store
from forge_tools.storage.sqlalchemy_tables import tools
from tests.contract.calls import SCOPE, claimed, ended, finish_one, instance, running, scope, submitted

GREP = ToolSpec(
    name="Grep",
    description="Search files \u2713.",
    category=ToolCategory.FILE,
    parameters=(ToolParameter(name="pattern", type="string", description="What.", enum=["a", None], sensitive=True),),
    capabilities=Capabilities(idempotent=True),
    tags=("search",),
    aliases=("grep",),
    lane="async",
    timeout=30.0,
)
OTHER_GREP = GREP.model_copy(update={"description": "Search differently."})


async def test_a_published_tool_is_read_back_as_it_was(store: Store) -> None:
    assert await store.catalogue.publish([GREP], "instance-1") == []
    [spec] = (await store.directories.read()).enabled
    assert spec == GREP
    assert spec.digest == GREP.digest


async def test_of_several_definitions_the_one_seen_last_counts(store: Store) -> None:
    for spec in (GREP, OTHER_GREP, GREP):
        await store.catalogue.publish([spec], "instance-1")
    assert (await store.directories.read()).enabled == [GREP]


async def test_what_a_worker_publishes_later_stands_beside_what_it_hosts_and_touches_nothing_else(store: Store) -> None:
    late = GREP.model_copy(update={"name": "Late", "aliases": ()})
    await store.workers.register(instance("instance-1"))
    await store.catalogue.publish([GREP], "instance-1")
    await store.catalogue.publish([OTHER_GREP], "instance-2")

    await store.catalogue.publish([late], "instance-1")

    assert (await store.directories.read()).enabled == [OTHER_GREP, late]
    assert [await store.catalogue.hosted("instance-1", one.name) for one in (GREP, late)] == [
        (GREP.version, GREP.digest),
        (late.version, late.digest),
    ]


async def test_a_live_worker_with_another_definition_of_the_same_version_is_warned_about(store: Store) -> None:
    for name, spec in (("instance-1", GREP), ("instance-2", GREP)):
        await store.workers.register(instance(name))
        assert await store.catalogue.publish([spec], name) == []
    await store.workers.register(instance("instance-3", hostname="host-3"))
    first, second = await store.catalogue.publish([OTHER_GREP], "instance-3")
    assert "Tool 'Grep' 1.0.0" in first
    assert "instance-1 on host-1" in first
    assert "instance-2" in second
    assert await store.catalogue.disagreements() == [first, second]


async def test_another_version_or_a_stopped_worker_is_no_disagreement(store: Store) -> None:
    await store.workers.register(instance("instance-1"))
    await store.catalogue.publish([GREP], "instance-1")
    await store.workers.register(instance("instance-2"))
    newer = OTHER_GREP.model_copy(update={"version": "1.1.0"})
    assert await store.catalogue.publish([newer], "instance-2") == []
    await store.workers.stop("instance-1")
    assert await store.catalogue.publish([OTHER_GREP], "instance-2") == []


async def test_publishing_nothing_is_fine(store: Store) -> None:
    assert await store.catalogue.publish([], "instance-1") == []
    assert (await store.directories.read()).enabled == []


async def test_a_demoted_tool_says_process_and_publishing_it_again_does_not_undo_that(store: Store) -> None:
    await store.catalogue.publish([GREP], "instance-1")
    await store.catalogue.demote(GREP, "held the event loop \x00")
    await store.catalogue.demote(GREP, "again")
    await store.catalogue.publish([GREP], "instance-2")

    [spec] = (await store.directories.read()).enabled

    assert spec == GREP.model_copy(update={"lane": "process"})
    assert spec.digest == GREP.digest
    assert await store.catalogue.demoted() == {("Grep", GREP.digest)}


async def test_another_definition_of_a_demoted_tool_starts_afresh(store: Store) -> None:
    await store.catalogue.publish([GREP], "instance-1")
    await store.catalogue.demote(GREP, "held the event loop")

    await store.catalogue.publish([OTHER_GREP], "instance-1")

    assert (await store.directories.read()).enabled == [OTHER_GREP]


async def test_demoting_a_tool_moves_its_waiting_calls_and_no_other(store: Store) -> None:
    await store.catalogue.publish([GREP], "instance-1")
    waiting, other = await submitted(store), await submitted(store, tool="Read", tool_key="Read@1")
    at_work = await running(store)

    await store.catalogue.demote(GREP, "held the event loop")

    in_processes = scope(lane="process", tool_keys=("Grep@1", "Read@1"))
    assert [wakeup.id for wakeup in await store.queue.due(in_processes, 10)] == [waiting]
    assert [wakeup.id for wakeup in await store.queue.due(scope(tool_keys=("Grep@1", "Read@1")), 10)] == [other]
    assert await finish_one(store, ended(at_work, ExecutionStatus.QUEUED, give_back=True))
    assert [wakeup.id for wakeup in await store.queue.due(SCOPE, 10)] == [at_work.id]


async def test_what_comes_to_the_async_lane_after_a_demotion_is_diverted(store: Store) -> None:
    late = await submitted(store)

    assert await store.catalogue.divert(["Grep@1", "Read@1"]) == 1
    assert await store.catalogue.divert(["Grep@1"]) == 0
    assert await store.catalogue.divert([]) == 0

    assert (await claimed(store, late, by=scope(lane="process"))).id == late


async def test_a_disabled_tool_is_offered_no_more_until_it_is_enabled(store: Store) -> None:
    read = GREP.model_copy(update={"name": "Read", "aliases": ()})
    await store.catalogue.publish([GREP, read], "instance-1")

    assert await store.catalogue.switch("Grep", is_enabled=False) == "Grep"
    assert await store.catalogue.switch("Grep", is_enabled=False) == "Grep"

    assert (await store.directories.read()).enabled == [read]
    assert (await store.directories.read())[:2] == ([read], [GREP])
    assert (await store.catalogue.switches())[0] == {"Grep"}
    assert await store.catalogue.switch("Grep", is_enabled=True) == "Grep"
    assert (await store.directories.read())[:2] == ([GREP, read], [])
    assert (await store.catalogue.switches())[0] == frozenset()


async def test_a_tool_is_switched_by_its_alias_too(store: Store) -> None:
    await store.catalogue.publish([GREP], "instance-1")

    assert await store.catalogue.switch("grep", is_enabled=False) == "Grep"
    assert await store.catalogue.switch("grep", is_enabled=True) == "Grep"


async def test_every_definition_of_a_disabled_tool_is_disabled_those_to_come_included(store: Store) -> None:
    newer = OTHER_GREP.model_copy(update={"version": "2.0.0"})
    await store.catalogue.publish([GREP], "instance-1")
    await store.catalogue.switch("Grep", is_enabled=False)

    await store.catalogue.publish([OTHER_GREP], "instance-1")
    await store.catalogue.publish([newer], "instance-1")

    assert (await store.directories.read())[:2] == ([], [newer])
    await store.catalogue.switch("Grep", is_enabled=True)
    await store.catalogue.publish([GREP], "instance-1")
    assert (await store.directories.read())[:2] == ([GREP], [])


@pytest.mark.parametrize(("name", "hint"), [("Gerp", r" \(did you mean 'Grep'\?\)"), ("", ""), ("x\x00", "")])
async def test_a_tool_that_nobody_published_cannot_be_switched(store: Store, name: str, hint: str) -> None:
    await store.catalogue.publish([GREP], "instance-1")

    with pytest.raises(
        ToolNotFoundError, match=rf"No worker ever published it{hint}\. What there is: forge-tools tools$"
    ):
        await store.catalogue.switch(name, is_enabled=False)


async def test_a_switch_that_meets_a_deployment_holds_for_what_is_deployed(store: Store) -> None:
    await store.catalogue.publish([GREP], "instance-1")
    for number in range(20):
        is_enabled = bool(number % 2)
        new = GREP.model_copy(update={"version": f"1.{number}.0"})
        switch = store.catalogue.switch("Grep", is_enabled=is_enabled)
        await asyncio.gather(store.catalogue.publish([new], "instance-1"), switch)
        assert [spec.version for spec in (await store.directories.read()).enabled] == [new.version] * is_enabled
        assert (await store.catalogue.switches())[0] == (frozenset() if is_enabled else {"Grep"})


async def newer(store: Store, spec: ToolSpec, **fields: object) -> None:
    """Let newer code have published a tool, with fields or values that this code does not know."""
    await store.catalogue.publish([spec], "instance-1")
    known = spec.model_dump(mode="json") | fields
    statement = update(tools).where(tools.c.digest == spec.digest).values(spec=known)
    await store.database.write(lambda connection: connection.execute(statement))


async def test_a_definition_that_only_newer_code_can_read_takes_no_other_with_it(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    await store.catalogue.publish([GREP], "instance-1")
    await newer(store, GREP.model_copy(update={"name": "Browse"}), category="browser")

    for _ in range(3):
        assert (await store.directories.read()).enabled == [GREP]

    [said] = [message for message in caplog.messages if "left out" in message]
    assert "Tool 'Browse' 1.0.0" in said
    assert "category: Input should be 'file'" in said
    with pytest.raises(ToolNotFoundError):
        await store.catalogue.versions("Browse")


async def test_what_newer_code_adds_to_a_definition_is_ignored_and_its_digest_kept(store: Store) -> None:
    await newer(store, GREP, colour="blue", capabilities=GREP.capabilities.model_dump() | {"flies": True})

    [spec] = (await store.directories.read()).enabled

    assert (spec, spec.digest) == (GREP, GREP.digest)


async def test_versions_that_cannot_be_read_are_left_out_of_those_of_a_tool(store: Store) -> None:
    later = GREP.model_copy(update={"version": "2.0.0"})
    await newer(store, later, lane="gpu")
    await store.catalogue.publish([GREP], "instance-1")

    assert [one.spec for one in await store.catalogue.versions("Grep")] == [GREP]
    assert await store.catalogue.definition("Grep", "2.0.0", later.digest) is None
    assert (await store.catalogue.pin("Grep", "1.0.0")).is_pinned
