"""Messages only wake workers: forged, repeated, malformed or unheard, they change nothing."""

import asyncio
import base64
import re
from pathlib import Path
from typing import Any

import pytest

from forge_tools.broker.celery_app import celery_app
from forge_tools.broker.message import TASK, queue_name
from forge_tools.client import ExecutorClient
from forge_tools.model import ExecutionContext, new_id
from tests.fleet import Fleet
from tests.waiting import wait_until


def send(fleet: Fleet, *arguments: Any, lane: str = "async", **headers: Any) -> None:
    """Publish whatever anybody who reaches the broker could."""
    app = celery_app(fleet.settings.broker)
    app.send_task(TASK, args=list(arguments), queue=queue_name("default", lane), retry=False, **headers)
    app.close()


async def test_a_repeated_message_starts_no_second_body(
    fleet: Fleet, client: ExecutorClient, context: ExecutionContext, tmp_path: Path
) -> None:
    mark = tmp_path / "mark"
    handle = await client.submit("Sleep", {"seconds": 1, "mark": str(mark)}, context)
    for attempt in (0, 0, 1, 2):
        await asyncio.to_thread(send, fleet, [[handle.id, attempt]])

    assert (await handle.result(timeout=30)).success
    await asyncio.to_thread(send, fleet, [[handle.id, 0], [handle.id, 1]])
    assert (await client.execute("Echo", context, message="after")).output == "after"
    assert len(mark.read_text().splitlines()) == 1


def forged() -> list[tuple[Any, ...]]:
    """Arguments that no client of ours would send."""
    return [
        ([],),
        ([["not-an-id", 0]],),
        ([[new_id(), 0]],),
        ([[new_id(), -1], [new_id(), 2**40]],),
        ([[new_id()], [new_id(), "0"], {"id": "x"}, [["nested"]]],),
        ("text",),
        (None,),
        (),
        ([["' OR 1=1 --", 0]],),
    ]


@pytest.mark.parametrize("name", ["Echo", "EchoInProcess"])
async def test_forged_messages_harm_nobody(
    fleet: Fleet, client: ExecutorClient, context: ExecutionContext, name: str
) -> None:
    lane = "async" if name == "Echo" else "process"
    for arguments in forged():
        await asyncio.to_thread(send, fleet, *arguments, lane=lane)

    assert (await client.execute(name, context, message="still here")).output == "still here"


async def test_a_forged_limit_ends_no_body(
    fleet: Fleet, client: ExecutorClient, context: ExecutionContext, tmp_path: Path
) -> None:
    delayed = await client.submit("Block", {"seconds": 2.5, "mark": str(tmp_path / "mark")}, context, delay=0.5)
    for _ in range(8):  # one of them comes when it is due
        await asyncio.to_thread(send, fleet, [[delayed.id, 0]], lane="process", time_limit=1, soft_time_limit=1)
        await asyncio.sleep(0.1)

    assert (await delayed.result(timeout=30)).success


async def test_nothing_but_ids_reaches_the_broker(
    fleet: Fleet, client: ExecutorClient, context: ExecutionContext, valkey_server: Any
) -> None:
    secret = "canary-" + new_id()
    handles = [
        await client.submit("Login", {"user": secret, "password": secret}, context),
        await client.submit("Echo", {"message": secret}, context, queue="nowhere", expires_in=30),
    ]
    await handles[0].result(timeout=30)

    def written() -> bytes:
        text = b"".join(path.read_bytes() for path in Path(valkey_server.folder).rglob("*") if path.is_file())
        return text + b"".join(base64.b64decode(body) for body in re.findall(rb'"body": "([^"]+)"', text))

    await asyncio.to_thread(wait_until, lambda: handles[1].id.encode() in written(), 10, "the wakeup is not on disk")
    assert secret.encode() not in written()
