"""`python -m benchmarks.watched`: a stack under load, a worker of it killed, and `forge-tools top` of that in `docs/images/`."""

import asyncio
import io
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.terminal_theme import TerminalTheme

from forge_tools.cli.screen import Screen
from forge_tools.cli.top import frame_of
from forge_tools.client import ExecutorClient
from forge_tools.config import Settings
from forge_tools.storage import open_store
from forge_tools.tool import tool
from forge_tools.tool.base import ExecutionContext

IMAGE = Path(__file__).resolve().parent.parent / "docs" / "images" / "top.svg"
WIDTH = 100

_THEME = TerminalTheme(
    (22, 27, 34),
    (216, 222, 233),
    [(72, 79, 88), (255, 123, 114), (126, 200, 120), (227, 179, 65), (121, 172, 255), (210, 168, 255), (86, 196, 205), (216, 222, 233)],
)  # fmt: skip

_SVG = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">
<style>
.{unique_id}-matrix {{ font: {char_height}px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; }}
.{unique_id}-title {{ font: bold 18px sans-serif; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal"><rect width="{terminal_width}" height="{terminal_height}"/></clipPath>{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix" xml:space="preserve">
{matrix}
</g>
</g>
</svg>
"""
"""It uses only locally available fonts: a page that fetches nothing can show it too."""

LOAD_SECONDS = 62.0
SILENCE_SECONDS = 9.0
READY_SECONDS = 60.0

CLI = (sys.executable, "-P", "-m", "forge_tools.cli")
OFFERED = ("--tools", "benchmarks.watched:TOOLS")


@tool
async def find_pages(query: str) -> str:
    """Search the web."""
    await asyncio.sleep(0.05 + random.expovariate(6))
    return query


@tool
async def fetch_page(url: str) -> str:
    """Fetch a page."""
    await asyncio.sleep(0.02 + random.expovariate(10))
    return url


@tool
async def ask_weather(city: str) -> str:
    """Ask a service that has a bad day."""
    await asyncio.sleep(0.03)
    if random.random() < 0.45:
        raise ConnectionError("503 Service Unavailable")
    return city


@tool
def render_report(pages: int) -> str:
    """Work hard."""
    end = time.process_time() + 0.02 * pages
    while time.process_time() < end:
        pass
    return f"{pages} pages"


TOOLS = (find_pages, fetch_page, ask_weather, render_report)

Arguments = Callable[[], dict[str, Any]]

AGENTS: Sequence[tuple[str, int, float, Arguments]] = (
    ("find_pages", 6, 0.2, lambda: {"query": "x"}),
    ("fetch_page", 4, 0.1, lambda: {"url": "x"}),
    ("ask_weather", 2, 0.6, lambda: {"city": "x"}),
    ("render_report", 2, 1.5, lambda: {"pages": random.randint(1, 8)}),
    ("Bash", 2, 0.6, lambda: {"command": f"sleep {random.random() / 4:.3f}"}),
    ("ListDirectory", 2, 0.4, dict),
)
"""Tool, how many agents call it, how long each rests at most between two calls, and with which arguments."""


def main() -> None:
    with tempfile.TemporaryDirectory() as name, ExitStack() as processes:
        folder = Path(name)
        start(processes, folder, "agents-1", "Ready.", "up", "--concurrency", "2")
        start(processes, folder, "agents-2", "ready", "worker", "--lane", "async", "--queues", "default")
        doomed = start(
            processes,
            folder,
            "agents-3",
            "ready",
            "worker",
            "--lane",
            "process",
            "--queues",
            "default",
            "--concurrency",
            "4",
        )
        asyncio.run(use(folder, doomed))
    print(IMAGE)


def start(processes: ExitStack, folder: Path, host: str, sign: str, *words: str) -> "subprocess.Popen[str]":
    """Run a command as on a host of that name, until its log says that it is ready."""
    log = folder / f"{host}.log"
    with log.open("w") as out:
        process = subprocess.Popen(
            [*CLI, *words, *OFFERED], cwd=folder, env=environment(folder, host), stdout=out, stderr=out, text=True
        )
    processes.callback(end, process)
    deadline = time.monotonic() + READY_SECONDS
    while sign not in log.read_text():
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"{' '.join(words)} did not become ready:\n{log.read_text()}")
        time.sleep(0.1)
    return process


def environment(folder: Path, host: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FORGE_")}
    return {**kept, "FORGE_HOME": str(folder / "home"), "FORGE_HOSTNAME": host, "PYTHONPATH": str(IMAGE.parents[2])}


def end(process: "subprocess.Popen[str]") -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


async def use(folder: Path, doomed: "subprocess.Popen[str]") -> None:
    """Call tools from many agents, kill a worker, and look before the others consider it dead."""
    settings = Settings.load(home=folder / "home", workspace=folder)
    async with ExecutorClient(settings) as client:
        for _ in range(3):
            await client.submit("fetch_page", parameters={"url": "x"}, queue="gpu")
        calling = [asyncio.create_task(agent(client, *one)) for one in AGENTS for _ in range(one[1])]
        await asyncio.sleep(LOAD_SECONDS)
        doomed.kill()
        await asyncio.sleep(SILENCE_SECONDS)
        await take_picture(settings)
        for task in calling:
            task.cancel()
        await asyncio.gather(*calling, return_exceptions=True)


async def take_picture(settings: Settings) -> None:
    """Write what `forge-tools top` shows now as a picture."""
    async with await open_store(settings.database) as store:
        frame = await frame_of(store, settings, 60.0)
    console = Console(
        file=io.StringIO(), record=True, width=WIDTH, force_terminal=True, color_system="truecolor", highlight=False
    )
    console.print(Screen(frame), "")  # the last line is cut where its letters descend
    svg = console.export_svg(title="forge-tools top", theme=_THEME, code_format=_SVG, unique_id="top")
    svg = svg.replace(f"{IMAGE.parents[2]}/", "")  # where a call failed is shown with the path of the file
    IMAGE.write_text("".join(f"{line.rstrip()}\n" for line in svg.splitlines()), encoding="utf-8")


async def agent(client: ExecutorClient, name: str, _count: int, rest: float, arguments: Arguments) -> None:
    context = ExecutionContext(working_dir=".")
    while True:
        await client.execute(name, context, **arguments())
        await asyncio.sleep(random.random() * rest)


if __name__ == "__main__":
    main()
