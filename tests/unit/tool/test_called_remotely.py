"""A decorated tool is called on a client by its own signature, and type checkers know it."""

import asyncio
from datetime import date
from enum import Enum
from pathlib import Path

import pytest
from mypy import api as mypy
from pydantic import BaseModel, SecretStr

from forge_tools.errors import CallFailedError, ErrorCode
from forge_tools.testing import InlineExecutor
from forge_tools.tool import tool
from forge_tools.tool.base import ExecutionContext
from tests.fleet import ROOT

SNIPPET = """
from typing import assert_type

from forge_tools import ExecutionContext, ToolResult
from forge_tools.client import ExecutorClient, Handle
from forge_tools.tool import tool


@tool
def shout(text: str, times: int = 1) -> str:
    '''Say it louder.'''
    return text.upper() * times


@tool
async def count(words: list[str]) -> dict[str, int]:
    '''Count them.'''
    return {word: 1 for word in words}


async def right(context: ExecutionContext) -> None:
    client = await ExecutorClient.connect()
    async with ExecutorClient.connect() as other:
        assert_type(await shout.on(other)(text="x", times=2), str)
    assert_type(await count.on(client)(words=["x"]), dict[str, int])
    assert_type(await shout.submit(client, text="x"), Handle)
    assert_type(await client.execute("shout", context, text="x"), ToolResult)
    await client.call("shout", {"text": "x"}, context)
    await client.submit("shout", {"text": "x"}, context=context, delay=2.0)


async def wrong(client: ExecutorClient, context: ExecutionContext) -> None:
    await shout.on(client)(text=5)
    await shout.on(client)(txt="x")
    await shout.submit(client, times=2)
    await client.execute("shout", {"text": "x"})
    await client.call("shout", context, {"text": "x"})
    await client.submit("shout", context, {"text": "x"})
"""


def test_mypy_knows_what_is_right_and_what_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "snippet.py"
    file.write_text(SNIPPET)

    # With the settings of the whole check, whose cache serves here and stays valid.
    said, trouble, _ = mypy.run(["--config-file", str(ROOT / "pyproject.toml"), "--no-error-summary", str(file)])

    first = (
        SNIPPET.splitlines().index("async def wrong(client: ExecutorClient, context: ExecutionContext) -> None:") + 2
    )
    lines = {int(line.split(":")[1]) for line in said.splitlines() if ": error:" in line}
    assert not trouble
    assert lines == set(range(first, first + 6)), said


class Colour(Enum):
    RED = "red"


class Person(BaseModel):
    name: str
    born: date


@tool
def describe(person: Person, colour: Colour, key: SecretStr, context: ExecutionContext) -> Person:
    """Describe a person."""
    return person.model_copy(
        update={"name": f"{colour.value} {person.name} {len(key.get_secret_value())} {context.agent_id}"}
    )


@tool
async def fail(text: str) -> str:
    """Fail."""
    raise ValueError(text)


async def test_values_arrive_as_they_were_given_and_come_back_as_they_are_returned() -> None:
    person, context = Person(name="Ada", born=date(1815, 12, 10)), ExecutionContext(working_dir=".", agent_id="me")
    async with InlineExecutor(describe) as tools:
        found = await describe.on(tools)(person, Colour.RED, key=SecretStr("s3cret"), context=context)

    assert found == Person(name="red Ada 6 me", born=person.born)


async def test_a_failure_is_raised_with_its_result() -> None:
    async with InlineExecutor(fail) as tools:
        with pytest.raises(CallFailedError, match="not today") as caught:
            await fail.on(tools)(text="not today")

    assert caught.value.code == ErrorCode.EXECUTION_ERROR
    assert not caught.value.result.success


def test_what_the_function_does_not_take_is_a_type_error_at_once() -> None:
    with InlineExecutor(fail) as tools:
        for wrong in ({"txt": "x"}, {}):
            with pytest.raises(TypeError):
                asyncio.run(fail.on(tools)(**wrong))
