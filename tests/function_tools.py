"""Functions as tools, for tests that call them in process and on workers alike."""

import asyncio
import multiprocessing
import os
import time
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, Field, SecretStr

from forge_tools.tool import Setting, ToolFactory, tool
from forge_tools.tool.base import ExecutionContext, ToolCategory


class Place(BaseModel):
    """Somewhere on earth."""

    city: str
    tags: list[str] = []


class Greeting(BaseModel):
    text: str
    place: Place


class Phrase:
    """What greetings begin with; stands for a service that tools depend on."""

    def __init__(self, word: str) -> None:
        self.word = word


@tool(category=ToolCategory.TASK, aliases=["hello"])
def greet(
    place: Place,
    times: Annotated[int, Field(ge=1, le=3)] = 1,
    mode: Literal["calm", "loud"] = "calm",
) -> Greeting:
    """Greet a place.

    Args:
        place: Which one.
        times: How often.
    """
    text = ", ".join([f"Hello {place.city}"] * times)
    return Greeting(text=text.upper() if mode == "loud" else text, place=place)


@tool
async def who(context: ExecutionContext, prefix: str = "") -> dict[str, str | None]:
    """Tell for whom this runs."""
    await asyncio.sleep(0)
    return {"agent": context.agent_id, "session": context.session_id, "prefix": prefix}


@tool
def fail(reason: str) -> None:
    """Fail for that reason."""
    raise ValueError(reason)


@tool
def block(seconds: float = 30, mark: Path | None = None) -> str:
    """Block, and leave the id of the process in a file."""
    if mark is not None:
        mark.write_text(str(os.getpid()))
    time.sleep(seconds)
    return "late"


@tool
def sizes(words: list[str], method: Literal["fork", "spawn", "forkserver"]) -> list[int]:
    """Measure words, in processes of its own."""
    with multiprocessing.get_context(method).Pool(2) as pool:
        return pool.map(len, words)


@tool
def keep_quiet(key: Annotated[SecretStr, Setting("WEATHER", SecretStr(""))]) -> str:
    """Print a secret of the host's, and say whether every tool could have read it."""
    print("with", key.get_secret_value())
    return f"{len(key.get_secret_value())} {key.get_secret_value() in os.environ.values()}"


def salute(name: str, phrase: Phrase) -> str:
    """Greet somebody with what was provided."""
    return f"{phrase.word} {name}"


def make() -> list[object]:
    """All of them, as a reference that a worker is given."""
    provided = ToolFactory().provide(Phrase, lambda: Phrase("Ahoy")).add(salute)
    return [greet, who, fail, block, *provided()]


def make_all() -> list[object]:
    """Also those that only workers can run."""
    return [*make(), keep_quiet, sizes]
