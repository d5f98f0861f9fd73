"""An agent of the release it is started with: calls tools by name and prints the result of each."""

import asyncio
import json
import sys

from forge_tools.client import ExecutorClient, results
from forge_tools.config import Settings
from forge_tools.model import ExecutionContext

CONTEXT = ExecutionContext(working_dir=".", agent_id="agent", session_id="session")


async def main(alone: int, together: int) -> None:
    """Make calls one after the other and then, when a line is read, some at once."""
    usual, results.SILENCE = (
        results.SILENCE,
        3600.0,
    )  # at first it relies on notifications: what is polled comes too late
    async with ExecutorClient(Settings.load()) as client:
        for number in range(alone):
            print(json.dumps(await greeted(client, f"alone {number}")), flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        results.SILENCE = usual
        for answer in asyncio.as_completed([greeted(client, f"together {number}") for number in range(together)]):
            print(json.dumps(await answer), flush=True)


async def greeted(client: ExecutorClient, name: str) -> str:
    result = await client.execute("Greet", CONTEXT, name=name, secret="abc")
    return str(result.output if result.success else result.error)


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:])))
