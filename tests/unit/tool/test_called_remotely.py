"""A decorated tool is called on a client by its own signature; that type checkers know it is in tests/typed.py."""

import asyncio
from collections.abc import Iterator
from datetime import date
from enum import Enum

import pytest
from pydantic import BaseModel, ConfigDict, SecretStr

from forge_tools import Image, Link
from forge_tools.errors import CallFailedError, ErrorCode
from forge_tools.testing import InlineExecutor
from forge_tools.tool import tool
from forge_tools.tool.base import ExecutionContext
from tests.part_tools import png


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


@tool
async def make(what: str, context: ExecutionContext) -> bytes:
    """Make bytes."""
    context.attach(b"\x00attached")
    return b"\x00\xff" if what == "data" else what.encode()


@tool
async def draw(count: int) -> list[Image]:
    """Draw images."""
    return [Image(png(), name=f"{number}.png") for number in range(count)]


@tool
async def one(kind: str) -> object:
    """Return a part, or a list with parts."""
    return Image(png()) if kind == "image" else ["Here:", Image(png()), {"a": 1}]


@tool
async def drawn_with_data(context: ExecutionContext) -> Image:
    """Return an image, and attach what it shows."""
    context.attach(b"\x00data")
    return Image(png())


@tool
async def where() -> Link:
    """Say where it is."""
    return Link("https://example.org", "there")


@tool
async def keep(context: ExecutionContext) -> None:
    """Only attach a file."""
    context.attach(b"\x00kept")


@tool
async def count(upto: int) -> Iterator[int]:
    """Count."""
    return iter(range(upto))


class Day(BaseModel):
    model_config = ConfigDict(strict=True)
    of: date


@tool
async def today() -> Day:
    """Return what only takes a date as a date."""
    return Day(of=date(2026, 1, 2))


async def test_images_and_bytes_come_back_as_such() -> None:
    async with InlineExecutor(make, draw, one, drawn_with_data, where, keep) as tools:
        assert [await make.on(tools)(what) for what in ("data", "text")] == [b"\x00\xff", b"text"]
        [image] = await draw.on(tools)(1)
        assert (image.name, await image.bytes()) == ("0.png", png())
        assert len(await draw.on(tools)(2)) == 2
        assert isinstance(await one.on(tools)("image"), Image)
        assert isinstance(await drawn_with_data.on(tools)(), Image)
        assert await where.on(tools)() == Link("https://example.org", "there")
        text, _, data = await one.on(tools)("list")
        assert (text, data) == ("Here:", {"a": 1})
        assert await keep.on(tools)() is None


async def test_values_that_only_the_function_knows_come_back_as_json_has_them() -> None:
    async with InlineExecutor(count, today) as tools:
        assert await count.on(tools)(3) == [0, 1, 2]
        assert await today.on(tools)() == Day(of=date(2026, 1, 2))


async def test_an_output_that_is_not_what_was_promised_is_a_failed_call() -> None:
    @tool
    async def lie(length: int) -> list[int]:
        """Return another type, or too much."""
        return list(range(length)) if length else "nothing"  # type: ignore[return-value]  # a lie

    async with InlineExecutor(lie, context={"max_output_size": 100}) as tools:
        with pytest.raises(CallFailedError, match=r"lie ran, but .* promises: Input should be a valid array\.$"):
            await lie.on(tools)(0)
        with pytest.raises(CallFailedError, match=r"valid array\. It was longer than max_output_size\.$") as caught:
            await lie.on(tools)(1_000)

    assert caught.value.result.success


def test_what_the_function_does_not_take_is_a_type_error_at_once() -> None:
    with InlineExecutor(fail) as tools:
        for wrong in ({"txt": "x"}, {}):
            with pytest.raises(TypeError):
                asyncio.run(fail.on(tools)(**wrong))
