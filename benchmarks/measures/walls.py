"""What walls cost: around the commands of `Bash`, and around the children of the process lane; each beside `plain`."""

import asyncio
import os
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks import fleets, raw_celery
from benchmarks.agent import Agent
from benchmarks.apart import apart
from benchmarks.figures import Bar, LeftOutError, Measure, Readings, Row
from benchmarks.measures.burst import bursts_by_turns
from benchmarks.meter import Meter
from benchmarks.pairs import MILLISECONDS, Work, by_turns
from benchmarks.scene import CONTEXT, Scene, succeeded
from forge_tools.client import ExecutorClient
from forge_tools.config import Settings
from forge_tools.sandbox.processes.spawner import CommandWalls
from forge_tools.sandbox.walls.landlock import abi, prepare
from forge_tools.sandbox.walls.privileges import drop_capabilities
from forge_tools.sandbox.walls.probe import given
from forge_tools.sandbox.walls.profile import Profile, needed_to_run
from forge_tools.setting_types import RootSettings, WorkspaceSettings

AT_ONCE = 3
DAEMONS = 300
TIMEOUT_SECONDS = 3
TURNS = 5
WARM_UPS = 2
TIERS = ("plain", "landlock")
WORKSPACES = ("first", "second")


def commands(scene: Scene) -> Readings:
    """Run the same commands with and without namespaces, in turns."""
    if why := given().no_namespaces:
        raise LeftOutError(f"this machine gives no namespaces: {why}")
    cache = scene.folder / "cache"
    network = CommandWalls("namespace", "host", closed=(), hidden=(), opened=(), cache=cache)
    walls: Mapping[str, CommandWalls] = {"plain": CommandWalls(), "namespace": network}
    return asyncio.run(_commands(scene, {name: Agent(scene.folder, commands=one) for name, one in walls.items()}))


async def _commands(scene: Scene, agents: Mapping[str, Agent]) -> dict[str, float]:
    async def several(agent: Agent) -> None:
        await asyncio.gather(*(agent.call("Bash", command="true") for _ in range(AT_ONCE)))

    lone: dict[str, Work] = {
        f"{name} lone": partial(agent.call, "Bash", command="true") for name, agent in agents.items()
    }
    burst: dict[str, Work] = {f"{name} burst": partial(several, agent) for name, agent in agents.items()}
    readings = await by_turns(lone, scene.sizes.tool_calls) | await by_turns(burst, scene.sizes.tool_calls // 3)
    for name, agent in agents.items():
        readings[f"{name} ending"] = median([await _late(agent) for _ in range(3)])
    readings["more lone"] = readings["namespace lone"] - readings["plain lone"]
    readings["more burst"] = (readings["namespace burst"] - readings["plain burst"]) / AT_ONCE
    return readings


async def _late(agent: Agent) -> float:
    """Return how many milliseconds after its timeout a command that has started daemons is over."""
    daemons = f"for n in $(seq {DAEMONS}); do setsid env -i sleep 600 & done; sleep 600"
    started = time.perf_counter()
    result = await agent.ended("Bash", command=daemons, timeout=TIMEOUT_SECONDS * 1_000)
    if result.error_code != "TIMEOUT":
        raise RuntimeError(f"A command that was to be ended was not: {result.error}")
    return (time.perf_counter() - started - TIMEOUT_SECONDS) * MILLISECONDS


def children(scene: Scene) -> Readings:
    """Run the same calls behind Landlock and without, in turns, and put the walls of a fresh child on."""
    if not abi():
        raise LeftOutError("this kernel has no Landlock")
    return {
        **asyncio.run(_children(scene)),
        "putting on": median(_putting_on(scene.folder) for _ in range(20)),
    }


async def _children(scene: Scene) -> Readings:
    with ExitStack() as cleanup:
        places = {tier: _walled(cleanup.enter_context(apart(scene, tier)), tier) for tier in TIERS}
        crews = {
            tier: cleanup.enter_context(
                fleets.crew(scene.folder, places[tier], tier, 1, raw_celery.CONCURRENCY, lane="process")
            )
            for tier in TIERS
        }

        def meter(name: str) -> Meter:
            return Meter(scene, [worker.pid for worker in crews[name]], places[name].database_url)

        async with AsyncExitStack() as clients:
            asked = {tier: await clients.enter_async_context(ExecutorClient(place)) for tier, place in places.items()}
            readings = await bursts_by_turns(asked, meter, "NoOpProcess", scene.sizes.process_burst // 2, TURNS)
            files: dict[str, Work] = {f"{tier} files": partial(_files, client) for tier, client in asked.items()}
            readings = {**readings, **await by_turns(files, TURNS)}
            return readings | await _by_workspaces(asked["landlock"], scene.sizes.process_burst // 4)


def _walled(settings: Settings, tier: str) -> Settings:
    folders = {name: settings.home / name for name in WORKSPACES}
    for folder in folders.values():
        folder.mkdir()
    workspaces = {name: WorkspaceSettings(roots=(RootSettings(path=one),)) for name, one in folders.items()}
    return settings.model_copy(update={"walls": tier, "workspaces": workspaces, "workspace": settings.home})


async def _files(client: ExecutorClient) -> None:
    succeeded(await client.execute("Files", CONTEXT, count=1_000))


async def _by_workspaces(client: ExecutorClient, calls: int) -> dict[str, float]:
    """Run calls in two workspaces by turns, then in one, each time once children know them; return their rates."""
    rates: dict[str, float] = {}
    for name, used in {"two": WORKSPACES, "one": WORKSPACES[:1]}.items():
        contexts = [CONTEXT.model_copy(update={"workspace": used[number % len(used)]}) for number in range(calls)]
        took = []
        for _ in range(TURNS + WARM_UPS):
            started = time.perf_counter()
            for result in await asyncio.gather(*(client.execute("NoOpProcess", one) for one in contexts)):
                succeeded(result)
            took.append(time.perf_counter() - started)
        rates[name] = calls / median(took[WARM_UPS:])
    return rates


def _putting_on(folder: Path) -> float:
    """Return how many milliseconds of a processor a fresh process takes for it, as a child does.

    It is forked from one that is prepared as a worker is.
    """
    ours, theirs = os.pipe()
    given()
    prepare()
    profile = Profile(read=needed_to_run(()), write=(str(folder),))
    if (pid := os.fork()) == 0:
        drop_capabilities()  # as a child does when it starts, walled or not
        started = time.process_time()
        profile.apply(str(folder))
        os.write(theirs, str(time.process_time() - started).encode())
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours) as took:
        seconds = float(took.read())
    os.waitpid(pid, 0)
    return seconds * MILLISECONDS


MEASURE = Measure(
    name="walls",
    needs=frozenset({"servers"}),
    sides={"commands": commands, "children": children},
    rows=[
        Row(title="Bash `true` in namespaces, beyond `plain`", unit="ms", key="more lone", ours="commands",
            bar=Bar("value", "at most", 6)),
        Row(title="Bash `true` in namespaces (plain)", unit="ms", key="namespace lone", ours="commands", raw="commands",
            raw_key="plain lone"),
        Row(title=f"{AT_ONCE} at once, in namespaces, beyond `plain`, each", unit="ms", key="more burst", ours="commands"),
        Row(title=f"{AT_ONCE} at once, in namespaces (plain)", unit="ms", key="namespace burst", ours="commands",
            raw="commands", raw_key="plain burst"),
        Row(title=f"a timeout with {DAEMONS} daemons, beyond it, in namespaces (plain)", unit="ms", key="namespace ending",
            ours="commands", raw="commands", raw_key="plain ending", bar=Bar("value", "at most", 50)),
        Row(title="Landlock and seccomp put on, once a child", unit="ms", key="putting on", ours="children",
            bar=Bar("value", "at most", 1.5)),
        Row(title="calls at once, process lane, `landlock` (plain)", unit="/s", key="landlock rate",
            ours="children", raw="children", raw_key="plain rate", bar=Bar("ratio", "at least", 0.95)),
        Row(title="1,000 files written, read and removed, `landlock` (plain)", unit="ms", key="landlock files",
            ours="children", raw="children", raw_key="plain files", bar=Bar("ratio", "at most", 1.25)),
        Row(title="calls in two workspaces by turns, `landlock` (in one)", unit="/s", key="two", ours="children",
            raw="children", raw_key="one", bar=Bar("ratio", "at least", 0.8)),
    ],
)  # fmt: skip
