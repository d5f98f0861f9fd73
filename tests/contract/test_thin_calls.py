"""A client that connects, calls and gets its result loads only the drivers: no SQLAlchemy, on any database."""

import asyncio
import json
import os
import sys
from pathlib import Path

from forge_tools.model import ToolCategory, ToolParameter, ToolSpec
from forge_tools.storage import Store
from tests.contract.calls import SCOPE, ended, finish_one, instance
from tests.services import GivenValkey, ValkeyServer
from tests.waiting import reached

ROOT = Path(__file__).resolve().parents[2]

GREP = ToolSpec(
    name="Grep",
    description="Search files.",
    category=ToolCategory.FILE,
    parameters=(ToolParameter(name="pattern", type="string", description="What."),),
    lane="async",
)

HEAVY = ("sqlalchemy", "greenlet", "alembic", "aiosqlite", "celery", "kombu")

ONE_CALL = """
import asyncio, json, sys
from forge_tools import ExecutionContext, ExecutorClient

async def main():
    async with ExecutorClient() as client:
        handle = await client.submit("Grep", {"pattern": "TODO"})  # before its notifications can reach this client
        first = await handle.result()
        done = await client.execute("Grep", ExecutionContext(working_dir="."), pattern="TODO")
        unknown = await client.execute("Nope", ExecutionContext(working_dir="."))
    return first.success and done.success, unknown.error_code

print(json.dumps([*asyncio.run(main()), sorted(sys.modules)]))
"""


async def test_a_whole_call_loads_no_sqlalchemy(
    store: Store, migrated_url: str, valkey: ValkeyServer | GivenValkey
) -> None:
    await store.workers.register(instance())
    await store.catalogue.publish([GREP], "instance-1")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("FORGE_", "COVERAGE"))}
    environment |= {"FORGE_DATABASE_URL": migrated_url, "FORGE_BROKER_URL": valkey.url}
    client = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", ONE_CALL),
        cwd=ROOT,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
    )
    serving = asyncio.ensure_future(_finish_two(store))
    said, _ = await asyncio.wait_for(client.communicate(), 60)
    await serving

    success, code, loaded = json.loads(said)
    assert (success, code) == (True, "TOOL_NOT_FOUND")
    assert "forge_tools.storage.store" in loaded
    assert [name for name in loaded if name.split(".")[0] in HEAVY] == []


async def _finish_two(store: Store) -> None:
    for _ in range(2):
        [wakeup] = await reached(lambda: store.queue.due(SCOPE, 1), 60, "a call")
        [claim] = await store.queue.claim([wakeup], SCOPE)
        assert await finish_one(store, ended(claim))
