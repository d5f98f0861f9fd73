"""Whole workers but for their lane: what their services do together, over minutes that pass in seconds."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from forge_tools.model import ExecutionStatus
from tests import virtual_time
from tests.contract.calls import statuses, submitted
from tests.unit.workers.simulation import HEARTBEAT, LEASE, STEP, Simulation

Scenario = Callable[[Simulation], Awaitable[None]]
Play = Callable[[Scenario], None]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    """Play a scenario on a virtual clock."""

    def play(scenario: Scenario) -> None:
        async def live() -> None:
            async with Simulation(tmp_path, monkeypatch) as simulation:
                await scenario(simulation)

        virtual_time.run(live(), step=STEP)

    return play


def test_a_worker_beats_once_a_heartbeat(play: Play) -> None:
    async def scenario(simulation: Simulation) -> None:
        one = await simulation.worker()
        await asyncio.sleep(10 * HEARTBEAT + 1)
        assert 9 <= (await simulation.store.workers.beats())[one.worker.id] <= 12
        assert one.errors == []

    play(scenario)


def test_a_call_whose_message_was_lost_is_found_and_run(play: Play) -> None:
    async def scenario(simulation: Simulation) -> None:
        one = await simulation.worker()
        lost = await submitted(simulation.store)
        await asyncio.sleep(3 * HEARTBEAT)
        assert [claim.id for claim in one.lane.ran] == [lost]
        assert (await simulation.store.queue.results([lost]))[0].success

    play(scenario)


def test_a_cancel_whose_notification_was_lost_is_seen_with_a_heartbeat(play: Play) -> None:
    async def scenario(simulation: Simulation) -> None:
        one = await simulation.worker()
        one.lane.hangs = True
        call = await submitted(simulation.store)
        await asyncio.sleep(3 * HEARTBEAT)
        await simulation.store.transitions.cancel(call, actor="ann")
        await asyncio.sleep(3 * HEARTBEAT)
        assert one.lane.running() == []
        assert (await statuses(simulation.store, [call]))[call] == ExecutionStatus.CANCELLED

    play(scenario)


def test_what_a_dead_worker_ran_is_run_by_another_a_lease_later_and_not_before(play: Play) -> None:
    async def scenario(simulation: Simulation) -> None:
        first = await simulation.worker()
        first.lane.hangs = True
        call = await submitted(simulation.store, idempotent=True, max_attempts=3)
        await asyncio.sleep(3 * HEARTBEAT)
        other = await simulation.worker()
        await asyncio.sleep(1.5 * LEASE)
        assert (len(first.lane.running()), other.lane.ran) == (1, []), "who beats keeps what it runs"

        await first.die()
        await asyncio.sleep(LEASE - HEARTBEAT)
        assert other.lane.ran == []
        await asyncio.sleep(6 * HEARTBEAT)

        assert [(claim.id, claim.attempt) for claim in other.lane.ran] == [(call, 2)]
        assert (await simulation.store.queue.results([call]))[0].success
        assert other.errors == []

    play(scenario)


def test_when_the_leader_dies_the_next_oldest_leads(play: Play) -> None:
    async def scenario(simulation: Simulation) -> None:
        first, second, third = [await simulation.worker() for _ in range(3)]
        await asyncio.sleep(3 * HEARTBEAT)
        assert [one.worker.leadership.is_mine for one in (first, second, third)] == [True, False, False]

        await first.die()
        await asyncio.sleep(LEASE + 6 * HEARTBEAT)

        assert [one.worker.leadership.is_mine for one in (second, third)] == [True, False]

    play(scenario)
