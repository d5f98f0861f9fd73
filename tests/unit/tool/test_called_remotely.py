"""A decorated tool is called on a client by its own signature; that type checkers know it is in tests/typed.py."""

import asyncio
from datetime import date
from enum import Enum

import pytest
from pydantic import BaseModel, SecretStr

from forge_tools.errors import CallFailedError, ErrorCode
from forge_tools.testing import InlineExecutor
from forge_tools.tool import tool
from forge_tools.tool.base import ExecutionContext


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
