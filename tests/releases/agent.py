"""An agent of the release that runs it: calls the named tool as its input asks, and prints each result as it comes.

A line of input is `alone NAME COUNT SECONDS`, for calls one after the other, or `together` for all of them at once. At the end of
its input it prints what the history says of them all.
"""

import asyncio
import json
import random
import sys
from collections import Counter

from forge_tools.client import ExecutorClient, results
from forge_tools.config import Settings
from forge_tools.model import ExecutionContext

CONTEXT = ExecutionContext(working_dir=".", agent_id="agent", session_id="session", max_output_size=1000)
SILENCE = results.SILENCE
ANY_LENGTH = 3600.0
MOST_LINES = 10


async def main(tool: str) -> None:
    async with ExecutorClient(Settings.load()) as client:
        for _ in range(MOST_LINES):
            if not (line := await asyncio.to_thread(sys.stdin.readline)):
                break
            how, name, count, seconds = line.split()
            # Calls made alone rely on notifications: without them, results come too late.
            results.SILENCE = ANY_LENGTH if how == "alone" else SILENCE
            calls = [greeted(client, tool, name, number, float(seconds)) for number in range(int(count))]
            for answer in calls if how == "alone" else asyncio.as_completed(calls):
                print(json.dumps(await answer), flush=True)
        print(json.dumps(await history(client)), flush=True)


async def greeted(client: ExecutorClient, tool: str, name: str, number: int, seconds: float) -> str:
    """Return the greeting, and how often it was said: every tenth is so long that it is kept as an artifact."""
    times = 1 if number % 10 else 100
    result = await client.execute(
        tool, CONTEXT, name=f"{name} {number}", secret="abc", times=times, seconds=seconds * random.random()
    )
    if not result.success:
        return str(result.error)
    text = str(result.output)
    if kept := result.metadata.get("artifact"):
        text = b"".join([part async for part in client.history.artifact(kept)]).decode()
    greetings = Counter(text.splitlines())
    return ", ".join(f"{greeting} x {count}" for greeting, count in greetings.items())


async def history(client: ExecutorClient) -> list[object]:
    """Return how many calls ended how, and what the first one reported of its progress."""
    records = await client.history.list(session_id=CONTEXT.session_id, limit=1000)
    reported = await client.history.progress_of([records[-1].id])
    ended = Counter(record.status for record in records)
    return [ended, [progress.message for progress in reported.values()]]


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
