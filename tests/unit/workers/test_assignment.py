"""Which child a call goes to: one of its own walls, or a fresh one, or one that is forked in the place of another."""

from dataclasses import replace
from typing import Any

import pytest

from forge_tools.model.execution import Claim
from forge_tools.sandbox.walls.profile import Profile
from tests.unit.workers.child_bench import CLAIM, Bench, Speaker, a_process
from tests.waiting import is_alive
from workers.lanes import process
from workers.lanes.walls import Walls

PROFILES = {name: Profile(write=(f"/{name}",)) for name in ("one", "other")}


class ByTool(Walls):
    """Gives each call the profile that its tool is called by, and remembers whose folders are removed."""

    def __init__(self) -> None:
        self.removed: list[int] = []

    def profile(self, claim: Claim) -> Profile | None:
        return PROFILES.get(claim.tool)

    def worth_telling(self, claim: Claim, profile: Profile | None) -> str | None:
        return None

    def around(self, pid: int, profile: Profile) -> dict[str, Any]:
        return {"write": profile.write}

    def remove(self, pid: int) -> None:
        self.removed.append(pid)

    def close(self) -> None: ...


@pytest.fixture
def walls() -> ByTool:
    return ByTool()


@pytest.fixture
async def bench(walls: ByTool) -> Any:
    bench = Bench()
    bench.lane = bench.lane_with(walls=walls)
    await bench.lane.start(bench)
    yield bench
    await bench.lane.stop()


async def one_idle_and_one_busy(bench: Bench, pids: dict[str, int]) -> dict[str, Speaker]:
    """Connect a child for each tool; the first one's call is over."""
    children = {tool: await bench.connect(pid) for tool, pid in pids.items()}
    for tool, child in children.items():
        bench.lane.run([call(tool)])
        await child.hear()
    first = next(iter(children))
    children[first].finish(call(first))
    await bench.until(bench.lane.free_slots)
    return children


def call(tool: str, id_: str = CLAIM.id) -> Claim:
    return replace(CLAIM, tool=tool, id=id_, token=id_)


async def test_a_fresh_child_wears_the_walls_of_its_first_call_and_gets_only_calls_of_them(bench: Bench) -> None:
    with a_process() as first, a_process() as second:
        children = {pid: await bench.connect(pid) for pid in (first, second)}
        for tool, speaker in zip(("one", "other"), children.values(), strict=True):
            bench.lane.run([call(tool)])
            assert (await speaker.hear())["walls"] == {"write": [f"/{tool}"]}
            speaker.finish(call(tool))
            await bench.until(lambda: bench.lane.free_slots() == 2)

        bench.lane.run([call("other"), call("one", "b")])

        assert [(await speaker.hear())["run"]["tool"] for speaker in children.values()] == ["one", "other"]


async def test_a_call_that_no_child_fits_waits_until_one_is_forked_in_place_of_the_least_used(
    bench: Bench, walls: ByTool
) -> None:
    with a_process() as first, a_process() as second:
        child = await bench.connect(first)
        bench.lane.run([call("plain")])
        await child.hear()
        child.finish(call("plain"))
        await bench.until(bench.lane.free_slots)

        bench.lane.run([call("one")])
        assert (bench.lane.running(), bench.lane.free_slots()) == ([call("one")], 0)
        await bench.until(lambda: not is_alive(first))
        successor = await bench.connect(second)

        assert (await successor.hear())["run"]["tool"] == "one"
        successor.finish(call("one"))
        await bench.until(lambda: bench.outcomes[1:])
        bench.lane.run([call("plain")])
        await bench.until(lambda: not is_alive(second))
        successor.die()
        await bench.until(lambda: walls.removed == [second])


async def test_a_call_waits_behind_a_running_child_of_its_walls_while_others_were_just_used(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "SPARED_SECONDS", 600.0)
    with a_process() as first, a_process() as second:
        children = await one_idle_and_one_busy(bench, {"one": first, "other": second})

        bench.lane.run([call("other", "b")])
        assert bench.lane.free_slots() == 1  # for a call of the other walls
        bench.lane.run([call("other", "c")])
        assert bench.lane.free_slots() == 0
        assert is_alive(first)
        children["other"].finish(call("other"))
        assert (await children["other"].hear())["run"]["id"] == "b"
        children["other"].finish(call("other", "b"))
        assert (await children["other"].hear())["run"]["id"] == "c"
        bench.lane.run([call("one", "d")])

        assert (await children["one"].hear())["run"]["id"] == "d"


async def test_a_child_that_nobody_uses_makes_room_for_a_call_whose_own_children_are_busy(bench: Bench) -> None:
    with a_process() as first, a_process() as second, a_process() as third:
        children = await one_idle_and_one_busy(bench, {"one": first, "other": second})
        bench.lane.run([call("other", "b")])

        await bench.until(lambda: not is_alive(first))
        children["one"].die()
        children["other"].finish(call("other"))
        assert (await children["other"].hear())["run"]["id"] == "b"  # it came first
        await bench.connect(third)
        await bench.until(bench.lane.free_slots)


async def test_a_call_waits_for_a_child_that_comes_with_its_walls_before_another_makes_room(bench: Bench) -> None:
    with a_process() as first, a_process() as second, a_process() as third:
        children = [await bench.connect(first), await bench.connect(second)]
        calls = [call("plain"), call("plain", "b")]
        bench.lane.run(calls)
        for child, claim in zip(children, calls, strict=True):
            await child.hear()
            child.finish(claim)
        await bench.until(lambda: bench.lane.free_slots() == 2)

        bench.lane.run([call("one", "c")])
        bench.lane.run([call("one", "d")])
        await bench.until(lambda: not (is_alive(first) and is_alive(second)))
        assert is_alive(first) or is_alive(second)
        (gone, kept) = children if is_alive(second) else children[::-1]
        gone.die()
        successor = await bench.connect(third)

        assert (await successor.hear())["run"]["id"] == "c"
        successor.finish(call("one", "c"))
        assert (await successor.hear())["run"]["id"] == "d"
        assert is_alive(kept.pid)


async def test_a_new_child_is_for_the_call_that_it_was_forked_for(bench: Bench) -> None:
    with a_process() as first, a_process() as second, a_process() as third:
        children = await one_idle_and_one_busy(bench, {"one": first, "plain": second})
        bench.lane.run([call("plain", "behind"), call("other", "forked")])

        await bench.until(lambda: not is_alive(first))
        children["one"].die()
        assert (await (await bench.connect(third)).hear())["run"]["id"] == "forked"


async def test_a_call_that_waits_can_be_cancelled_and_is_handed_back_when_its_worker_stops(bench: Bench) -> None:
    with a_process() as first, a_process() as second:
        calls = [call("plain"), call("plain", "b")]
        children = [await bench.connect(first), await bench.connect(second)]
        bench.lane.run(calls)
        for child, claim in zip(children, calls, strict=True):
            child.finish(claim)
        await bench.until(lambda: bench.lane.free_slots() == 2)
        bench.lane.run([call("one"), call("other", "b")])

        bench.lane.cancel(CLAIM.id, 1)
        left = await bench.lane.stop()

        assert left == []
        assert [(one.status.value, one.give_back) for one in bench.outcomes[2:]] == [
            ("cancelled", False),
            ("queued", True),
        ]


async def test_a_call_waits_a_bounded_time(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    with a_process() as pid:
        child = await bench.connect(pid)
        bench.lane.run([call("plain")])
        child.finish(call("plain"))
        await bench.until(bench.lane.free_slots)
        bench.lane.run([call("one")])

        assert bench.lane.running() == [call("one")]
        monkeypatch.setattr(process, "FORK_SECONDS", 0.0)
        await bench.until(lambda: bench.outcomes[1:])
        assert (bench.outcomes[1].give_back, bench.lane.running()) == (True, [])


async def test_a_call_that_waits_while_every_child_is_busy_goes_back_for_other_workers(bench: Bench) -> None:
    with a_process() as first, a_process() as second:
        await one_idle_and_one_busy(bench, {"one": first, "other": second})
        bench.lane.run([call("other", "behind"), call("one", "long")])
        assert [claim.id for claim in bench.lane.running()] == ["long", CLAIM.id, "behind"]

        await bench.until(lambda: bench.outcomes[1:])

        assert (bench.outcomes[1].token, bench.outcomes[1].give_back) == ("behind", True)


async def test_a_late_call_keeps_a_child_free_until_that_makes_room(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    with a_process() as first, a_process() as second:
        await one_idle_and_one_busy(bench, {"one": first, "other": second})
        bench.lane.run([call("other", "b")])
        assert bench.lane.free_slots() == 1

        monkeypatch.setattr(process, "SPARED_SECONDS", 0.0)

        assert bench.lane.free_slots() == 0
        await bench.until(lambda: not is_alive(first))
