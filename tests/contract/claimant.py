"""A separate process that claims and finishes due work until there is none; prints how many it ran."""

import asyncio
import sys

from forge_tools.storage import open_store
from tests.contract.calls import beat, ended, scope
from tests.waiting import within


async def work(url: str, name: str) -> int:
    done = 0
    mine = scope(instance=name)
    async with await open_store(url, patience=None) as store:
        time_left = within(60, "due calls do not end")
        while next(time_left) and (wakeups := await store.queue.due(mine, 8)):
            await beat(store, "shared")
            claims = await store.queue.claim(wakeups, mine)
            effects = await store.queue.finish_many([ended(claim, output=f'"{name}"') for claim in claims])
            done += sum(effects)
    return done


if __name__ == "__main__":
    print(asyncio.run(work(sys.argv[1], sys.argv[2])))
