"""Engines for tests without Celery: a worker without its messages."""

import asyncio
import threading
import time

from forge_tools.config import Settings
from forge_tools.model import Lane
from forge_tools.model.execution import Wakeup
from forge_tools.sandbox.reach import Reach
from forge_tools.tool.base import BaseTool
from forge_tools.tool.executor import ToolExecutor
from forge_tools.tool.registry import ScopedRegistry
from tests.waiting import reached, wait_until
from workers.artifacts import ArtifactDesk
from workers.engine import Engine
from workers.worker import Setup


def setup_of(
    settings: Settings,
    *tools: type[BaseTool],
    lane: Lane = "async",
    concurrency: int = 10,
    reach: Reach | None = None,
) -> Setup:
    """A worker of the default queue."""
    registry = ScopedRegistry()
    registry.register_many([tool() for tool in tools])
    executor = ToolExecutor(registry, history_limit=0, reach=reach)
    return Setup(
        settings=settings,
        lane=lane,
        queues=("default",),
        concurrency=concurrency,
        executor=executor,
        artifacts=ArtifactDesk(settings),
    )


def begun(engine: Engine) -> Engine:
    """Start it, and wait until its first pull is over: with slow heartbeats the next one is seconds away."""
    engine.start()
    claims = engine.worker.claims
    lane = engine.worker.lane
    wait_until(lambda: claims.pulled_at and claims.free_slots() == lane.free_slots(), 10, "nothing was pulled")
    time.sleep(0.05)
    return engine


def threads(*names: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name in names]


async def take(engine: Engine, *ids: str, is_bulk: bool = False) -> None:
    """Hand a message over as Celery's thread does, and wait until the engine has dealt with it."""
    taken = threading.Event()
    async with asyncio.timeout(30):
        claims = engine.worker.claims
        claims.hand_over([Wakeup(one, 0) for one in ids], "default", is_bulk=is_bulk, taken=taken.set)
        await asyncio.sleep(0.01)
        await reached(taken.is_set)
