"""The command: it runs the scenario on a stack in a temporary folder and leaves nothing behind."""

import inspect
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from examples.demo.outage import Outage
from examples.demo.samples import sample_files
from examples.demo.scenario import Scenario, is_alive
from examples.demo.stage import Stage
from examples.demo.tools import charge
from forge_tools.cli.face import App, Face
from forge_tools.cli.live import cancellable
from forge_tools.cli.text import took
from forge_tools.cli.up import command_line, until_ready
from forge_tools.client import ExecutorClient
from forge_tools.config import Settings
from forge_tools.embedded.stack import EmbeddedStack
from forge_tools.sandbox.processes.trees import Process, descendants

PROCESSES = 2
"""Of each process lane."""
GONE_SECONDS = 2.0
"""What the kernel and init may take to bury what was killed."""
POLL_SECONDS = 0.02
TOOLS = "examples.demo.tools"

app = App()


@app.command()
def demo(
    face: Face,
    brief: Annotated[bool, typer.Option("--brief", help="Leave out the kills, which take half a minute.")] = False,
) -> None:
    """Watch a host, a process and the broker die under 200 calls, and what becomes of each. It takes less than a minute.

    Everything is in a temporary folder, which is removed at the end. Exit code 1 if anything is not as promised.
    """
    started = time.monotonic()
    stage = Stage(face)
    cancellable(_perform(face, stage, is_brief=brief))
    seconds = time.monotonic() - started
    if face.is_json:
        face.document({"ok": True, "seconds": round(seconds, 2), "sections": stage.sections})
        return
    face.say(f"All as promised, in {took(seconds * 1000)}.", style="green")
    face.say(f"Now with your own tools: {command_line(Settings.load())} up --tools mytools")


async def _perform(face: Face, stage: Stage, *, is_brief: bool) -> None:
    workspace, files = sample_files(Path.cwd())
    with _temporary_home(face) as home:
        settings = Settings.load(
            home=home, workspace=workspace, hostname="alpha", broker_url="", database_url="", routes={}
        )
        await _run(face, stage, settings, files, is_brief=is_brief)


async def _run(face: Face, stage: Stage, settings: Settings, files: Sequence[str], *, is_brief: bool) -> None:
    stack = EmbeddedStack(settings, tools=(TOOLS,), concurrency=PROCESSES)
    tree: list[Process] = []
    try:
        await _start(stage, stack, settings)
        if not is_brief:
            tree += await _play_outage(stage, stack, settings)
        await _play(stage, settings, files)
        tree += descendants(os.getpid())
    finally:
        stack.stop()
    _prove_empty(stage, tree)


async def _start(stage: Stage, stack: EmbeddedStack, settings: Settings) -> None:
    stage.section("A tool as you would write it, and a stack in a temporary folder")
    stage.text("\n".join(inspect.getsource(inspect.unwrap(charge)).splitlines()[:3]))
    started = time.monotonic()
    stack.start()
    await until_ready(settings, stack.status, is_given_up=lambda: False)
    running = [process.name for process in stack.status().processes if process.state == "running"]
    elapsed = took((time.monotonic() - started) * 1000)
    stage.claim(len(running) == 4, f"Valkey and three workers are up, and SQLite is migrated, after {elapsed}", running)


async def _play(stage: Stage, settings: Settings, files: Sequence[str]) -> None:
    async with ExecutorClient(settings) as client:
        scenario = Scenario(stage=stage, client=client, settings=settings, files=files, scratch=settings.home)
        await scenario.play()


async def _play_outage(stage: Stage, stack: EmbeddedStack, settings: Settings) -> list[Process]:
    async with ExecutorClient(settings) as client:
        outage = Outage(stage, client, stack, settings, (TOOLS,))
        await outage.play()
        return outage.seen


def _prove_empty(stage: Stage, tree: Sequence[Process]) -> None:
    pids = {process.pid for process in tree}
    deadline = time.monotonic() + GONE_SECONDS
    while (left := _left_of(pids)) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    stage.claim(bool(pids) and not left, f"none of the {len(pids)} processes is left", sorted(left))


def _left_of(pids: set[int]) -> set[int]:
    return {pid for pid in pids if is_alive(pid)} | {process.pid for process in descendants(os.getpid())}


@contextmanager
def _temporary_home(face: Face) -> Iterator[Path]:
    """A folder that is removed at the end, unless something went wrong: then its logs are kept."""
    folder = Path(tempfile.mkdtemp(prefix="forge-demo-"))
    try:
        yield folder / "home"
    except Exception:
        face.note(f"The logs are in {folder / 'home' / 'logs'}")
        raise
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)
