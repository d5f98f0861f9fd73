"""Which calls a worker claims: those of its tools but for what blocks, is disabled or is pinned to another definition."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from forge_tools.config import Settings
from forge_tools.errors import DatabaseUnavailableError
from forge_tools.model import Lane, ToolCategory, ToolSpec
from forge_tools.storage import Store
from forge_tools.storage.heartbeat import Answers, Heartbeat
from tests.contract.calls import SCOPE, instance, scope, submitted
from tests.waiting import reached
from workers.services import tools as module
from workers.services.service import Leadership, keep
from workers.services.tools import HostedTools

GREP = ToolSpec(name="Grep", description="Search.", category=ToolCategory.FILE, lane="async")
READ = ToolSpec(name="Read", description="Read.", category=ToolCategory.FILE, lane="async", version="2.1.0")
MENDED = ToolSpec(name="Grep", description="Search without blocking.", category=ToolCategory.FILE, lane="async")
KEYS = ("Grep@1", "Read@2")


class Hosted:
    """The tools of a worker, and what its lane was told to ban."""

    def __init__(self, store: Store, *specs: ToolSpec, lane: Lane = "async", **settings: Any) -> None:
        self.banned: set[str] = set()
        self.store = store
        self.specs = list(specs)
        executor: Any = SimpleNamespace(specs=lambda: self.specs)
        loaded = Settings.load(heartbeat=0.01, **settings)
        self.tools = HostedTools(store, scope(lane=lane), executor, self.banned.update, loaded)

    async def beat(self) -> None:
        """One heartbeat of this worker."""
        self.tools.hear(await self.store.workers.beat(Heartbeat(SCOPE, tuple(self.tools.ask()))))

    def hear(self, **answers: Any) -> None:
        """One heartbeat that brings this, and nothing else."""
        self.tools.hear(Answers({"demoted": [], "misplaced": False, "disabled": [], "pinned": []} | answers))


async def hosting(store: Store, *specs: ToolSpec, lane: Lane = "async", **settings: Any) -> Hosted:
    """A worker that has published these."""
    hosted = Hosted(store, *specs, lane=lane, **settings)
    await hosted.tools.publish()
    return hosted


@pytest.fixture(autouse=True)
async def _registered(store: Store) -> None:
    await store.workers.register(instance())


async def test_nothing_is_claimed_before_it_is_published(store: Store) -> None:
    hosted = Hosted(store, GREP)
    assert hosted.tools.scope.tool_keys == ()
    await hosted.tools.publish()
    assert hosted.tools.scope.tool_keys == ("Grep@1",)


async def test_what_comes_later_is_published_alone_and_claimed_from_then_on(store: Store) -> None:
    hosted = await hosting(store, GREP)
    published: list[list[str]] = []
    publish = store.catalogue.publish

    async def noted(specs: Any, *arguments: Any, **options: Any) -> Any:
        published.append([spec.name for spec in specs])
        return await publish(specs, *arguments, **options)

    store.catalogue.publish = noted
    await hosted.tools.publish()
    hosted.specs.append(READ)
    await hosted.tools.publish()

    assert published == [["Read"]]
    assert hosted.tools.scope.tool_keys == KEYS


async def test_a_tool_that_blocks_is_claimed_no_more(store: Store) -> None:
    tools = (await hosting(store, GREP, READ)).tools
    assert tools.scope.tool_keys == KEYS

    tools.demote("Grep", "held the event loop")

    assert tools.scope.tool_keys == ("Read@2",)


async def test_it_is_written_with_its_waiting_calls_moved_and_other_workers_learn_of_it(store: Store) -> None:
    here, elsewhere = await hosting(store, GREP, READ), await hosting(store, GREP, READ)
    waiting = await submitted(store)

    here.tools.demote("Grep", "held the event loop")
    await here.tools.settle()
    await elsewhere.tools.settle()

    assert (here.banned, elsewhere.banned) == ({"Grep"}, {"Grep"})
    assert elsewhere.tools.scope.tool_keys == ("Read@2",)
    assert [wakeup.id for wakeup in await store.queue.due(scope(lane="process"), 9)] == [waiting]
    assert {spec.name: spec.lane for spec in (await store.directories.read()).enabled} == {
        "Grep": "process",
        "Read": "async",
    }


async def test_a_tool_below_the_minimum_runs_in_the_process_lane_for_as_long_as_there_is_one(store: Store) -> None:
    hosted = await hosting(store, GREP, READ, walls_of={"Grep": "landlock"})

    assert (hosted.banned, hosted.tools.scope.tool_keys) == ({"Grep"}, ("Read@2",))
    assert {spec.name: spec.lane for spec in (await store.directories.read()).enabled} == {
        "Grep": "process",
        "Read": "async",
    }

    again = await hosting(store, GREP, READ)

    assert (again.banned, again.tools.scope.tool_keys) == (set(), KEYS)
    assert {spec.lane for spec in (await store.directories.read()).enabled} == {"async"}


async def test_a_tool_below_the_minimum_that_cannot_move_is_claimed_by_nobody_and_its_worker_says_so(
    store: Store,
) -> None:
    bash = GREP.model_copy(update={"name": "Bash", "category": ToolCategory.EXECUTION})
    hosted = await hosting(store, bash, walls_minimum="landlock")

    assert hosted.tools.scope.tool_keys == ()
    [worker] = await store.workers.list()
    assert worker.walls.withheld == {"Bash": "landlock FORGE_WALLS_MINIMUM"}
    assert await store.catalogue.hosted(worker.id, "Bash") is None


async def test_a_worker_with_another_definition_keeps_its_own(store: Store) -> None:
    await hosting(store, GREP)
    await store.catalogue.demote(GREP, "held the event loop")

    newer = await hosting(store, MENDED)

    assert (newer.banned, newer.tools.scope.tool_keys) == (set(), ("Grep@1",))


async def test_calls_that_still_come_are_moved_at_the_next_heartbeat(store: Store) -> None:
    hosted = await hosting(store, GREP)
    await store.catalogue.demote(GREP, "held the event loop")
    keeping = asyncio.create_task(keep(hosted.tools, Leadership("any")))
    await hosted.beat()
    await reached(lambda: hosted.banned)

    late = await submitted(store)
    await hosted.beat()

    await reached(
        lambda: store.queue.due(scope(lane="process"), 9), when=lambda due: [wakeup.id for wakeup in due] == [late]
    )
    keeping.cancel()


async def test_a_heartbeat_that_shows_nothing_new_costs_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    await hosting(store, GREP)
    await store.catalogue.demote(GREP, "held the event loop")
    hosted = await hosting(store, GREP)
    steps: list[None] = []

    async def settle() -> None:
        steps.append(None)

    monkeypatch.setattr(hosted.tools, "settle", settle)
    keeping = asyncio.create_task(keep(hosted.tools, Leadership("any")))

    for _ in range(3):
        await hosted.beat()
    await asyncio.sleep(0.05)
    keeping.cancel()

    assert steps == []


async def test_news_is_settled_at_once_and_soon_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    hosted = await hosting(store, GREP)
    steps: list[None] = []

    async def settle() -> None:
        steps.append(None)

    monkeypatch.setattr(hosted.tools, "settle", settle)
    monkeypatch.setattr(module, "SETTLE_SECONDS", 0.02)
    keeping = asyncio.create_task(keep(hosted.tools, Leadership("any")))

    hosted.tools.demote("Grep", "held the event loop")
    await reached(lambda: len(steps) == 2)
    await asyncio.sleep(0.1)
    keeping.cancel()

    assert len(steps) == 2


async def test_what_cannot_be_written_is_written_later(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    hosted = await hosting(store, GREP)
    failures, demote = [DatabaseUnavailableError("away")] * 2, store.catalogue.demote

    async def flaky(spec: ToolSpec, reason: str) -> None:
        if failures:
            raise failures.pop()
        await demote(spec, reason)

    monkeypatch.setattr(store.catalogue, "demote", flaky)
    keeping = asyncio.create_task(keep(hosted.tools, Leadership("any")))

    hosted.tools.demote("Grep", "held the event loop")
    await reached(store.catalogue.demoted, when=lambda demoted: demoted == {("Grep", GREP.digest)})
    keeping.cancel()


async def test_in_the_process_lane_no_tool_is_demoted(store: Store) -> None:
    await hosting(store, GREP)
    await store.catalogue.demote(GREP, "held the event loop")
    hosted = await hosting(store, GREP, lane="process")

    hosted.tools.demote("Grep", "cannot be")
    await hosted.tools.settle()

    assert (hosted.tools.scope.tool_keys, hosted.banned) == (("Grep@1",), set())


async def test_what_is_disabled_is_claimed_no_more_and_again_when_it_is_enabled(store: Store) -> None:
    hosted = await hosting(store, GREP, READ)

    hosted.hear(disabled=["Read"])
    assert hosted.tools.scope.tool_keys == ("Grep@1",)

    hosted.hear(disabled=["Grep", "Read"])
    assert hosted.tools.scope.tool_keys == ()

    hosted.hear()
    assert hosted.tools.scope.tool_keys == KEYS


async def test_what_was_disabled_before_a_worker_came_is_never_claimed(store: Store) -> None:
    await hosting(store, GREP, READ)
    await store.catalogue.switch("Read", is_enabled=False)
    assert (await hosting(store, GREP, READ)).tools.scope.tool_keys == ("Grep@1",)


async def test_tools_of_others_make_no_difference(store: Store) -> None:
    hosted = await hosting(store, GREP)

    hosted.hear(disabled=["Write", "grep"])

    assert hosted.tools.scope.tool_keys == ("Grep@1",)


async def test_a_tool_that_is_pinned_to_another_definition_is_claimed_no_more_until_it_is_let_go(store: Store) -> None:
    hosted = await hosting(store, GREP, READ)

    hosted.hear(pinned=[["Grep", "another"], ["Read", READ.digest], ["Write", "w"]])
    assert hosted.tools.scope.tool_keys == ("Read@2",)

    hosted.hear(disabled=["Read"], pinned=[["Grep", "another"]])
    assert hosted.tools.scope.tool_keys == ()

    hosted.hear(pinned=[["Grep", GREP.digest]])
    assert hosted.tools.scope.tool_keys == KEYS
