"""How tools and a client look to a type checker: `mypy` reads this file, and nothing runs it.

Each wrong line has an exemption for the one error that it must cause: mypy reports an exemption that nothing needs.
"""

from typing import assert_type

from forge_tools import ExecutionContext, ToolResult
from forge_tools.client import ExecutorClient, Handle
from forge_tools.tool import tool


@tool
def shout(text: str, times: int = 1) -> str:
    """Say it louder."""
    return text.upper() * times


@tool
async def count(words: list[str]) -> dict[str, int]:
    """Count them."""
    return dict.fromkeys(words, 1)


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
    await shout.on(client)(text=5)  # type: ignore[arg-type]  # of another type
    await shout.on(client)(txt="x")  # type: ignore[call-arg]  # of another name
    await shout.submit(client, times=2)  # type: ignore[call-arg]  # one is missing
    await client.execute("shout", {"text": "x"})  # type: ignore[arg-type]  # no context
    await client.call("shout", context, {"text": "x"})  # type: ignore[arg-type]  # in the wrong order
    await client.submit("shout", context, {"text": "x"})  # type: ignore[arg-type]  # in the wrong order
