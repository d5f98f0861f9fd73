"""The contract of worker rows and leases, on every database."""

from datetime import UTC, datetime

from forge_tools.model import ToolCategory, ToolSpec
from forge_tools.model.overview import ServerState, WorkerWalls
from forge_tools.model.tools import ToolWalls
from forge_tools.storage import Store
from tests.contract.calls import beat, instance, running, scope
from tests.waiting import reached


async def test_a_registered_instance_is_listed_with_what_it_serves(store: Store) -> None:
    await store.workers.register(instance(queues=("default", "background"), concurrency=200))
    [worker] = await store.workers.list()
    assert (worker.id, worker.hostname, worker.pid, worker.lane) == ("instance-1", "host-1", 11, "async")
    assert (worker.queues, worker.concurrency, worker.beat) == (("default", "background"), 200, 0)
    assert worker.started_at is not None
    assert worker.stopped_at is None
    assert worker.silent_seconds < 30


async def test_how_the_servers_of_live_instances_are_is_told_to_all(store: Store) -> None:
    failing = ServerState(
        server="files", prefix="mcp__files__", status="failing", since=datetime.now(UTC), why="no \\x00", failures=2
    )
    serving = ServerState(server="web", prefix="mcp__web__", status="serving", since=datetime.now(UTC), tools=3)
    await store.workers.register(instance(servers=(failing,)))
    await store.workers.register(instance("instance-2", servers=(serving,)))
    assert [one.why for one in (await store.directories.read(30)).servers] == [failing.why, ""]

    await store.workers.tell_servers("instance-1", [serving])
    await store.workers.stop("instance-2")

    told = serving.model_copy(update={"hostname": "host-1"})
    assert (await store.directories.read(30)).servers == (told,)
    assert {one.id: one.servers for one in await store.workers.list()}["instance-1"] == (told,)


async def test_what_live_instances_withhold_for_want_of_walls_is_told_unless_another_hosts_it(store: Store) -> None:
    code = ToolSpec(name="Code", description="x", category=ToolCategory.OTHER)
    less = WorkerWalls(tier="plain", why="landlock: ENOSYS", withheld={"Code": "landlock the tool"})
    there = {"lane": "process", "queues": ("default", "code")}
    await store.workers.register(instance(**there))
    await store.catalogue.publish([code], "instance-1", walls=less, places={"Code": ToolWalls("landlock")})

    walls = (await store.directories.read(30)).walls
    withheld = walls.withheld["Code", "default", "process"]
    assert (withheld.asked, withheld.whose, withheld.hostname) == ("landlock", "the tool", "host-1")
    assert (withheld.given, walls.tier_of(code)) == (less, "landlock")
    assert [one.walls for one in await store.workers.list()] == [less]

    await store.workers.register(instance("instance-2", lane="process"))
    await store.catalogue.publish([code], "instance-2", walls=WorkerWalls(tier="landlock"))
    assert set((await store.directories.read(30)).walls.withheld) == {("Code", "code", "process")}
    await store.workers.stop("instance-1")
    assert (await store.directories.read(30)).walls.withheld == {}


async def test_which_tools_live_instances_host_is_told_by_place_and_major_version(store: Store) -> None:
    build = ToolSpec(name="build", description="x", category=ToolCategory.OTHER, version="2.1.0")
    await store.workers.register(instance(lane="process", queues=("default", "host.a")))
    await store.workers.register(instance("instance-2", lane="process", queues=("default", "host.b")))
    for name, spec in (("instance-1", build), ("instance-2", build.model_copy(update={"name": "other"}))):
        await store.catalogue.publish([spec], name)

    found = await store.directories.read(30)
    hosted = {queue: found.is_hosted(build.key, queue, "process") for queue in ("default", "host.a", "host.b")}
    assert hosted == {"default": True, "host.a": True, "host.b": False}
    assert not found.is_hosted(build.key, "default", "async")
    assert found.is_hosted("build@2")
    assert not found.is_hosted("build@1")

    await store.workers.withdraw("instance-1")
    assert not (await store.directories.read(30)).is_hosted(build.key)
    await store.workers.register(instance("instance-3"))
    assert (await store.directories.read(30)).is_hosted(build.key), "it is starting, and publishes its tools next"


async def test_a_queue_whose_calls_are_to_have_walls_is_told_and_who_withholds_it_where_nobody_serves_it(
    store: Store,
) -> None:
    raised = WorkerWalls(queues=("low",))
    less = WorkerWalls(tier="plain", withheld={"queue:low": "landlock FORGE_WALLS_OF"}, queues=("low",))
    await store.workers.register(instance(walls=raised))
    await store.workers.register(instance("instance-2", lane="process", walls=less))

    walls = (await store.directories.read(30)).walls
    assert walls.queues == {"low"}
    assert walls.withheld["", "low", "process"].given == less

    await store.workers.register(instance("instance-3", lane="process", queues=("low",)))
    assert (await store.directories.read(30)).walls.withheld == {}


async def test_a_beat_only_grows(store: Store) -> None:
    await store.workers.register(instance())
    for _ in range(3):
        assert await beat(store, "instance-1") == []
    assert await store.workers.beats() == {"instance-1": 3}


async def test_registering_again_keeps_the_beat(store: Store) -> None:
    await store.workers.register(instance())
    await beat(store, "instance-1")
    await store.workers.register(instance(concurrency=9))
    [worker] = await store.workers.list()
    assert (worker.beat, worker.concurrency) == (1, 9)


async def test_a_stopped_instance_serves_nothing_and_need_not_be_watched(store: Store) -> None:
    await store.workers.register(instance())
    await store.workers.register(instance("instance-2", lane="process", queues=("default", "background")))
    await store.workers.stop("instance-1")
    assert (await store.directories.read(30)).queues == {("default", "process"): 1, ("background", "process"): 1}
    assert await store.workers.beats() == {"instance-2": 0}


async def test_an_instance_that_takes_no_more_calls_lives_and_serves_nothing(store: Store) -> None:
    await store.workers.register(instance())
    await store.workers.withdraw("instance-1")
    await beat(store, "instance-1")
    assert (await store.directories.read(30)).queues == {}
    [worker] = await store.workers.list(seen_within=30)
    assert (worker.queues, worker.serves, worker.stopped_at) == ((), "none: it is stopping", None)


async def test_a_silent_instance_serves_nothing(store: Store) -> None:
    await store.workers.register(instance())

    async def is_silent() -> bool:
        return not (await store.directories.read(0.2)).queues

    await reached(is_silent)
    assert await store.workers.list(seen_within=0.2) == []
    [worker] = await store.workers.list()
    assert worker.silent_seconds >= 0.2


async def test_a_stopped_instance_that_owns_running_rows_is_still_watched(store: Store) -> None:
    await store.workers.register(instance())
    await running(store)
    await store.workers.stop("instance-1")
    assert await store.workers.beats() == {"instance-1": 0}


async def test_an_owner_without_a_row_is_reported_as_minus_one(store: Store) -> None:
    claim = await running(store, by=scope(instance="ghost"))
    assert await store.workers.beats() == {"ghost": -1}
    assert await store.transitions.recover("ghost", "no row") == ([], [claim.id])
    assert await store.workers.beats() == {}


async def test_a_recovered_instance_counts_as_stopped_until_it_beats_again(store: Store) -> None:
    await store.workers.register(instance())
    await store.transitions.recover("instance-1", "silent")
    assert await store.workers.beats() == {}
    await beat(store, "instance-1")
    assert await store.workers.beats() == {"instance-1": 1}


async def test_a_lease_has_one_holder_until_it_runs_out(store: Store) -> None:
    assert await store.workers.take_lease("recovery", "a", 30)
    assert not await store.workers.take_lease("recovery", "b", 30)
    assert await store.workers.take_lease("recovery", "a", 0.2)
    assert await store.workers.take_lease("sweep", "b", 30)

    async def is_free() -> bool:
        return await store.workers.take_lease("recovery", "b", 30)

    await reached(is_free)
    assert not await store.workers.take_lease("recovery", "a", 30)


async def test_instances_that_stopped_are_told_from_those_that_live_or_came_back(store: Store) -> None:
    for name in ("stopped", "back", "living"):
        await store.workers.register(instance(name))
    await store.workers.stop("stopped")
    await store.workers.stop("back")
    await beat(store, "back")

    assert await store.workers.stopped({"stopped", "back", "living", "unknown"}) == {"stopped"}
    assert await store.workers.stopped(set()) == set()
