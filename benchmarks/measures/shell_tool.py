"""Bash beside `bash -c` started by asyncio alone: what a command costs, and an output that is far larger than its limit."""

import asyncio
import threading
import time

import psutil

from benchmarks.agent import Agent
from benchmarks.figures import Bar, Measure, Readings, Row
from benchmarks.pairs import MILLISECONDS, Work, by_turns
from benchmarks.scene import Scene

POLL_SECONDS = 0.02


def shell(scene: Scene) -> Readings:
    agent = Agent(scene.folder, timeout=300)
    output = f"yes 'a line of output, as a build writes them' | head -c {scene.sizes.shell_bytes}"

    async def ours(command: str) -> None:
        await agent.call("Bash", command=command)

    async def bare(command: str) -> None:
        process = await asyncio.create_subprocess_exec(
            "/bin/bash", "-c", command, start_new_session=True, stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        await process.wait()

    async def both() -> dict[str, float]:
        works = {"true": lambda: ours("true"), "bare_true": lambda: bare("true")}
        readings = await by_turns(works, scene.sizes.tool_calls)
        watch = _Memory()
        started = time.perf_counter()
        await ours(output)
        readings |= {"large": (time.perf_counter() - started) * MILLISECONDS, "memory": watch.stop() / (1 << 20)}
        started = time.perf_counter()
        await bare(f"({output}) | cat > /dev/null")
        return readings | {"bare_large": (time.perf_counter() - started) * MILLISECONDS}

    readings = asyncio.run(both()) | asyncio.run(_background(scene))
    return readings | {"more": readings["true"] - readings["bare_true"]}


async def _background(scene: Scene) -> dict[str, float]:
    """The first start in a process, the ones after it, and reading what they wrote."""
    shells = scene.folder / "shells"
    shells.mkdir(mode=0o700, exist_ok=True)
    agent, started = Agent(scene.folder, shells=shells), time.perf_counter()
    shell = await agent.call("Bash", command="echo up; exec sleep 600", run_in_background=True)
    first = (time.perf_counter() - started) * MILLISECONDS
    named = {"bash_id": shell.metadata["bash_id"]}
    try:
        await agent.call("BashOutput", **named, wait_for="up")
        works: dict[str, Work] = {
            "start": lambda: agent.call("Bash", command="true", run_in_background=True),
            "read": lambda: agent.call("BashOutput", **named),
        }
        return {"first": first} | await by_turns(works, scene.sizes.tool_pairs)
    finally:
        await agent.call("KillShell", **named)


class _Memory:
    """The most that this process takes more than at first, looked at every few milliseconds."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._first = self._most = self._process.memory_info().rss
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def stop(self) -> int:
        self._over.set()
        self._thread.join()
        return self._most - self._first

    def _watch(self) -> None:
        while not self._over.wait(POLL_SECONDS):
            self._most = max(self._most, self._process.memory_info().rss)


MEASURE = Measure(
    name="tools-shell",
    sides={"ours": shell},
    rows=[
        Row(title="Bash `true`, beyond asyncio's own", unit="ms", key="more", ours="ours", bar=Bar("value", "at most", 3)),
        Row(title="Bash `true` (asyncio)", unit="ms", key="true", ours="ours", raw="ours", raw_key="bare_true"),
        Row(title="Bash, {shell_bytes:,} bytes of output (cat > /dev/null)", unit="ms", key="large", ours="ours", raw="ours",
            raw_key="bare_large", bar=Bar("ratio", "at most", 2)),
        Row(title="Bash, {shell_bytes:,} bytes of output, memory more", unit="MiB", key="memory", ours="ours",
            bar=Bar("value", "at most", 20)),
        Row(title="Bash in the background, first start of a process", unit="ms", key="first", ours="ours",
            bar=Bar("value", "at most", 25)),
        Row(title="Bash in the background, starts after it", unit="ms", key="start", ours="ours",
            bar=Bar("value", "at most", 25)),
        Row(title="BashOutput on the same host", unit="ms", key="read", ours="ours", bar=Bar("value", "at most", 3)),
    ],
)  # fmt: skip
