"""The contract of the insert as a judge, on every database: a call is stored only by the definition that counts, in one statement."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import pytest

from forge_tools.errors import ForgeError
from forge_tools.model import ToolCategory, ToolParameter, ToolSpec
from forge_tools.model.execution import KeyClaim, NewExecution, Wakeup
from forge_tools.storage import Store, ToolChangedError
from tests.contract.calls import SCOPE, call, instance, statuses

FIRST = ToolSpec(name="Grep", description="Search.", category=ToolCategory.FILE)
PATTERN = ToolParameter(name="pattern", type="string", description="What.")
SECOND = FIRST.model_copy(update={"version": "1.1.0", "parameters": (PATTERN,)})

Insert = Callable[[Store, Sequence[NewExecution]], Awaitable[Sequence[object]]]
INSERTS: dict[str, Insert] = {
    "alone": lambda store, rows: store.queue.submit_many(rows),
    "linked": lambda store, rows: store.queue.submit_many([replace(row, claim=key_of(row)) for row in rows]),
}


def key_of(row: NewExecution) -> KeyClaim:
    return KeyClaim("shared", row.id, "{}", 60.0)


@pytest.fixture(params=INSERTS)
def insert(request: pytest.FixtureRequest) -> Insert:
    return INSERTS[request.param]


def by(spec: ToolSpec) -> NewExecution:
    """A call that was checked by this definition."""
    return call(tool_digest=spec.digest)


async def stored(store: Store, rows: Sequence[NewExecution]) -> list[bool]:
    known = await statuses(store, [row.id for row in rows])
    return [row.id in known for row in rows]


async def test_only_calls_by_the_definition_that_counts_are_stored(store: Store, insert: Insert) -> None:
    await store.catalogue.publish([FIRST], "instance-1")
    await store.catalogue.publish([SECOND], "instance-1")
    rows = [by(SECOND), by(FIRST), by(SECOND)]

    answers = await insert(store, rows)

    assert await stored(store, rows) == [True, False, True]
    assert [answers[0], answers[2]] == [None, None]
    assert isinstance(refused := answers[1], ToolChangedError)
    assert (refused.current, refused.is_enabled, refused.code) == (SECOND, True, "TOOL_CHANGED")
    assert refused.current is not None
    assert refused.current.digest == SECOND.digest


async def test_a_pinned_definition_is_the_one_that_counts(store: Store, insert: Insert) -> None:
    for spec in (FIRST, SECOND):
        await store.catalogue.publish([spec], "instance-1")
    await store.catalogue.pin("Grep", FIRST.digest)
    rows = [by(FIRST), by(SECOND)]
    await insert(store, rows)
    await store.catalogue.pin("Grep", None)
    after = [by(FIRST), by(SECOND)]
    await insert(store, after)

    assert await stored(store, [*rows, *after]) == [True, False, False, True]


async def test_a_disabled_tool_is_refused_with_its_definition(store: Store, insert: Insert) -> None:
    await store.catalogue.publish([FIRST], "instance-1")
    await store.catalogue.switch("Grep", is_enabled=False)

    [refused] = await insert(store, [by(FIRST)])

    assert isinstance(refused, ToolChangedError)
    assert (refused.current, refused.is_enabled) == (FIRST, False)


async def test_what_was_stored_before_its_tool_changed_is_not_refused_when_it_is_repeated(
    store: Store, insert: Insert
) -> None:
    await store.catalogue.publish([FIRST], "instance-1")
    row = by(FIRST)
    await insert(store, [row])
    await store.catalogue.publish([SECOND], "instance-1")

    assert list(await insert(store, [row])) == [None]


async def test_a_tool_that_nobody_published_is_not_judged(store: Store, insert: Insert) -> None:
    assert list(await insert(store, [call()])) == [None]


async def test_a_definition_of_newer_code_refuses_without_being_read(store: Store, insert: Insert) -> None:
    await store.catalogue.publish([FIRST], "instance-1")
    await store.database.write(
        lambda connection: connection.exec_driver_sql("UPDATE tools SET spec = '{\"name\": 7}', digest = 'newer'")
    )

    [refused] = await insert(store, [by(FIRST)])

    assert isinstance(refused, ForgeError)
    assert refused.current is None


async def test_queued_calls_run_when_every_worker_was_replaced_by_another_digest_of_the_same_major(
    store: Store,
) -> None:
    await store.workers.register(instance("instance-1"))
    await store.catalogue.publish([FIRST], "instance-1")
    rows = [by(FIRST) for _ in range(200)]
    await store.queue.submit_many(rows)
    await store.catalogue.publish([SECOND], "instance-2")

    claims = await store.queue.claim([Wakeup(row.id, 0) for row in rows], SCOPE)

    assert len(claims) == 200
