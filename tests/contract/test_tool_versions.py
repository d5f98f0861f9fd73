"""The contract of a tool's versions, on every database: nothing that was published is forgotten, and one definition counts."""

from typing import Any

import pytest
from sqlalchemy import update

from forge_tools.errors import ToolNotFoundError
from forge_tools.model import ExecutionStatus, ToolCategory, ToolParameter, ToolSpec
from forge_tools.model.overview import StuckReason
from forge_tools.storage import Store
from forge_tools.storage.functions import from_now
from forge_tools.storage.sqlalchemy_tables import execution_queue, tools
from tests.contract.calls import ended, finish_one, instance, running, submitted

FIRST = ToolSpec(name="Grep", description="Search.", category=ToolCategory.FILE, aliases=("grep",), lane="async")
SECOND = FIRST.model_copy(
    update={"parameters": (ToolParameter(name="pattern", type="string", description="What."),), "version": "1.1.0"}
)
THIRD = FIRST.model_copy(update={"version": "2.0.0"})


async def published(store: Store, *specs: ToolSpec, **options: Any) -> None:
    for spec in specs:
        await store.catalogue.publish([spec], "instance-1", **options)


async def named(store: Store) -> list[str]:
    return [one.spec.version for one in await store.catalogue.versions("Grep")]


async def test_every_definition_is_kept_the_one_that_counts_first(store: Store) -> None:
    await published(store, FIRST, SECOND, FIRST)

    newest, older = await store.catalogue.versions("grep")

    assert (newest.spec, newest.digest, newest.is_default, newest.is_pinned) == (FIRST, FIRST.digest, True, False)
    assert (older.spec, older.is_default, older.is_enabled) == (SECOND, False, True)
    assert older.first_seen_at > newest.first_seen_at
    assert older.last_seen_at < newest.last_seen_at


async def test_the_definition_an_execution_named_is_found_however_many_came_after(store: Store) -> None:
    await published(store, FIRST, SECOND)
    await submitted(store, tool_version="1.1.0", tool_digest=SECOND.digest)
    await published(store, THIRD)
    [record] = await store.history.list()

    found = await store.catalogue.definition(record.tool, record.tool_version, record.tool_digest)

    assert found == SECOND
    assert await store.catalogue.definition("Grep", "1.1.0", FIRST.digest) is None
    assert await store.catalogue.definition("Grep\x00", "1.1.0", "") is None


async def test_what_a_worker_hosted_is_known_when_it_has_long_stopped(store: Store) -> None:
    await store.workers.register(instance("instance-1"))
    await published(store, SECOND)
    claim = await running(store, tool_digest=SECOND.digest)
    await finish_one(store, ended(claim, ExecutionStatus.SUCCEEDED))
    await store.workers.stop("instance-1")
    record = await store.history.get(claim.id)

    assert record.worker_id is not None
    assert await store.catalogue.hosted(record.worker_id, "Grep") == ("1.1.0", SECOND.digest)
    assert await store.catalogue.hosted(record.worker_id, "Read") is None
    assert await store.catalogue.hosted("ghost", "Grep") is None


async def test_a_pinned_definition_counts_whatever_is_published_until_it_is_let_go(store: Store) -> None:
    await published(store, FIRST, SECOND)

    pinned = await store.catalogue.pin("grep", FIRST.digest)
    await published(store, SECOND, THIRD)

    assert (pinned.spec, pinned.is_pinned, pinned.is_default) == (FIRST, True, True)
    assert (await store.directories.read()).enabled == [FIRST]
    assert (await store.catalogue.switches())[1] == {("Grep", FIRST.digest)}
    assert (await store.catalogue.pin("Grep", None)).spec == THIRD
    assert (await store.directories.read()).enabled == [THIRD]


async def test_another_pin_takes_the_place_of_the_first(store: Store) -> None:
    await published(store, FIRST, SECOND)
    for definition in (FIRST.digest[:6], "1.1.0"):
        await store.catalogue.pin("Grep", definition)

    assert (await store.catalogue.switches())[1] == {("Grep", SECOND.digest)}
    assert await named(store) == ["1.1.0", "1.0.0"]


@pytest.mark.parametrize(
    ("definition", "said"),
    [
        ("9.9.9", "is neither a version of it nor a digest"),
        ("", "nor a digest"),
        ("1.1.0", "means several definitions"),
    ],
)
async def test_a_pin_that_names_none_or_several_says_which_there_are(store: Store, definition: str, said: str) -> None:
    other = SECOND.model_copy(update={"description": "Search differently."})
    await published(store, FIRST, SECOND, other)

    with pytest.raises(ToolNotFoundError, match=said) as caught:
        await store.catalogue.pin("Grep", definition)

    assert all(spec.digest in str(caught.value) for spec in (FIRST, SECOND, other))
    assert (await store.catalogue.switches())[1] == frozenset()


async def test_under_the_policy_pinned_what_was_the_default_stays_it(store: Store) -> None:
    await published(store, FIRST)
    await published(store, SECOND, THIRD, keeps_first=True)

    assert (await store.directories.read()).enabled == [FIRST]
    assert (await store.catalogue.switches())[1] == {("Grep", FIRST.digest)}


async def test_under_the_policy_pinned_the_first_definition_of_a_new_tool_is_it(store: Store) -> None:
    await published(store, SECOND, FIRST, keeps_first=True)

    assert (await store.directories.read()).enabled == [SECOND]


async def test_a_worker_is_told_what_it_will_not_run(store: Store) -> None:
    await published(store, FIRST)
    await store.catalogue.pin("Grep", "1.0.0")
    await store.workers.register(instance("instance-2"))

    [warning] = await store.catalogue.publish([SECOND], "instance-2")

    assert f"'Grep' 1.1.0 ({SECOND.digest}) is hosted here, but pinned to 1.0.0" in warning
    assert f"tools pin Grep {SECOND.digest}" in warning
    assert await store.catalogue.publish([FIRST], "instance-2") == []


async def test_a_digest_is_the_one_that_was_published_though_this_code_reckons_another(store: Store) -> None:
    await published(store, FIRST)
    older = update(tools).values(digest="feedfacefeedface")
    await store.database.write(lambda connection: connection.execute(older))

    [spec] = (await store.directories.read()).enabled

    assert (spec, spec.digest) == (FIRST, "feedfacefeedface")


@pytest.mark.parametrize(("hosted", "pin"), [(THIRD, None), (SECOND, "1.0.0")])
async def test_calls_that_only_another_version_could_run_say_what_they_need_and_what_there_is(
    store: Store, hosted: ToolSpec, pin: str | None
) -> None:
    await published(store, FIRST)
    await submitted(store, tool_digest=FIRST.digest)
    await store.workers.register(instance("instance-1"))
    await published(store, hosted)
    if pin:
        await store.catalogue.pin("Grep", pin)
    late = update(execution_queue).values(not_before=from_now(-11.0))
    await store.database.write(lambda connection: connection.execute(late))

    [stuck] = (await store.overviews.read(window=1.0, lease=15, patience=10)).stuck

    assert stuck.reason == StuckReason.OTHER_VERSION
    assert stuck.wanted == (f"1.0.0 ({FIRST.digest})" if pin else "Grep@1")
    assert stuck.hosted == (f"{hosted.version} ({hosted.digest})",)
