"""Tools as a user writes them; a worker loads them by `--tools examples.demo.tools`."""

import asyncio
import inspect
import os
import subprocess
import time
from pathlib import Path

from examples.demo.effects import note
from forge_tools.model import Capabilities
from forge_tools.tool import tool

HARMLESS = Capabilities(idempotent=True)
"""Running it again does no harm."""


@tool
def charge(key: str, seconds: float, log: str) -> str:
    """Take a moment in a process; nobody may do it twice."""
    note(log, key, "start")
    time.sleep(seconds)
    note(log, key, "end")
    return key


@tool(capabilities=HARMLESS)
def render(key: str, seconds: float, log: str) -> str:
    """Take a moment in a process; running it again is harmless."""
    note(log, key, "start")
    time.sleep(seconds)
    note(log, key, "end")
    return key


@tool
async def notify(key: str, seconds: float, log: str) -> str:
    """Take a moment beside others; nobody may do it twice."""
    note(log, key, "start")
    await asyncio.sleep(seconds)
    note(log, key, "end")
    return key


@tool(capabilities=HARMLESS)
async def fetch(key: str, seconds: float, log: str) -> str:
    """Take a moment beside others; running it again is harmless."""
    note(log, key, "start")
    await asyncio.sleep(seconds)
    note(log, key, "end")
    return key


@tool
def hang(pid_file: str) -> None:
    """Block for an hour, as careless code does."""
    Path(pid_file).write_text(str(os.getpid()))
    time.sleep(3600)


@tool
def obey(commands: list[str]) -> list[int]:
    """Run whatever the model says, which may be what a page told it."""
    return [subprocess.run(["/bin/sh", "-c", one], capture_output=True, check=False).returncode for one in commands]


obey_walled = tool(name="obey_walled", walls="landlock")(inspect.unwrap(obey))
