"""Single calls take a path of their own: whatever happens on it, each runs once and its caller gets the result."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial

import pytest
from sqlalchemy import select

from forge_tools.broker.message import CHANNEL_PREFIX, REPLY_MARK
from forge_tools.client import ExecutorClient, results
from forge_tools.model import ExecutionContext, ExecutionStatus, new_id
from forge_tools.storage.sqlalchemy_tables import executions
from tests.fleet import ROOT, Fleet
from tests.integration.conftest import Parts
from tests.migrated import database
from tests.services import client as server
from tests.waiting import reached

DATABASES = ("postgres",)
SEVERAL = 40

DYING = """
import asyncio, os, sys
from forge_tools.broker.redis import RedisBroker
from forge_tools.client import ExecutorClient
from forge_tools.model import ExecutionContext

async def main():
    async with ExecutorClient.connect() as client:
        RedisBroker.publish = lambda broker, message: (print(message.wakeups[0].id, flush=True), os._exit(9))
        await client.execute("Echo", ExecutionContext(working_dir="."), message="left behind")

asyncio.run(main())
"""


class Cutter:
    """Stands between a client and its broker; cuts the connection once so many bytes went one way."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._tasks: set[asyncio.Task[None]] = set()
        self.sent = self.heard = self.cuts = 0
        self.most_sent = self.most_heard = sys.maxsize

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        async with await asyncio.start_server(self._serve, "127.0.0.1", 0) as listening:
            yield f"redis://127.0.0.1:{listening.sockets[0].getsockname()[1]}/0"
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_unix_connection(self._path)
        ends = writer, back
        pumps = [asyncio.ensure_future(self._pump(reader, back, ends, "sent"))]
        pumps += [asyncio.ensure_future(self._pump(there, writer, ends, "heard"))]
        self._tasks.update(pumps)

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, ends: Sequence[asyncio.StreamWriter], way: str
    ) -> None:
        with suppress(ConnectionError, TimeoutError):
            await self._pass_on(source, sink, way)
        for end in ends:
            with suppress(ConnectionError):
                await end.drain()
            end.close()

    async def _pass_on(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, way: str) -> None:
        async with asyncio.timeout(300):
            while data := await source.read(65_536):
                room = getattr(self, f"most_{way}") - getattr(self, way)
                sink.write(data[: max(0, room)])
                setattr(self, way, getattr(self, way) + len(data))
                if len(data) >= room:  # once: the next connection is whole
                    self.most_sent = self.most_heard = sys.maxsize
                    self.cuts += 1
                    break
                await sink.drain()


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "SILENCE", 0.2)


async def echoed(client: ExecutorClient, context: ExecutionContext, message: str, after: float = 0.0) -> str:
    await asyncio.sleep(after)
    return str((await client.execute("Echo", context, message=message)).output)


@pytest.mark.parametrize("pause", [0.0, 0.05, 1.5])
async def test_calls_one_by_one_each_get_their_own_result(
    client: ExecutorClient, context: ExecutionContext, pause: float
) -> None:
    messages = [f"{pause}-{number}" for number in range(3 if pause > 1 else SEVERAL)]
    assert [await echoed(client, context, message, pause) for message in messages] == messages


async def test_a_second_call_may_come_at_any_step_of_the_first(
    client: ExecutorClient, context: ExecutionContext
) -> None:
    began = await client.execute("Echo", context, message="connected")
    took = (began.duration_ms or 0) / 1000 + 0.005
    for number in range(SEVERAL):
        pair = echoed(client, context, "first"), echoed(client, context, "second", took * number / SEVERAL)
        assert await asyncio.gather(*pair) == ["first", "second"]

    assert len(await client.history.list(tool="Echo", limit=100)) >= 2 * SEVERAL


async def test_a_connection_that_is_cut_at_any_byte_costs_no_call_its_result(
    fleet: Fleet, context: ExecutionContext, parts: Parts
) -> None:
    cutter = Cutter(fleet.settings.broker.removeprefix("redis+socket://"))
    async with cutter.serving() as url:
        settings = fleet.settings.model_copy(update={"broker_url": url})
        async with ExecutorClient(settings) as client:
            assert await echoed(client, context, "whole") == "whole"
            for way in ("sent", "heard"):
                before = getattr(cutter, way)
                await echoed(client, context, "measured")
                takes = getattr(cutter, way) - before
                for byte in range(0, takes + 1, max(1, takes // 12)):
                    await reached(lambda: parts.brokers[0].is_listening, 30)
                    setattr(cutter, f"most_{way}", getattr(cutter, way) + byte)
                    assert await echoed(client, context, f"{way} {byte}") == f"{way} {byte}"
    assert cutter.cuts > SEVERAL / 2


async def test_what_others_send_to_the_channel_of_a_client_changes_no_result(
    fleet: Fleet, client: ExecutorClient, context: ExecutionContext
) -> None:
    first = await client.execute("Echo", context, message="connected")
    async with database(fleet.settings.database) as rows:
        asked = executions.c
        of_first = asked.id == first.metadata["execution_id"]
        channel = f"{CHANNEL_PREFIX}{await rows.scalar(select(asked.reply_to).where(of_first))}"
    with server(fleet.settings.broker) as anybody, anybody.pubsub() as eavesdropping:
        eavesdropping.subscribe(channel)
        assert await echoed(client, context, "secret-message") == "secret-message"
        heard = [
            one["data"]
            for _ in range(50)
            if (one := eavesdropping.get_message(timeout=0.1)) and one["type"] == "message"
        ]
        assert heard
        assert not any(b"secret-message" in one for one in heard)

        handle = await client.submit("Sleep", {"seconds": 0.5}, context)
        waiting = asyncio.ensure_future(handle.result(timeout=30))
        mine, reply = handle.id.encode(), heard[-1].partition(REPLY_MARK)[2]
        for forged in (
            heard[-1],
            mine + REPLY_MARK + reply,
            mine + REPLY_MARK,
            mine,
            new_id().encode(),
            b"\xff" * 5000,
        ):
            anybody.publish(channel, forged)
            await asyncio.sleep(0.02)
        assert not waiting.done()
        assert (await waiting).success


async def test_a_client_that_dies_between_commit_and_message_leaves_a_call_that_runs(
    fleet: Fleet, client: ExecutorClient
) -> None:
    program, said = [sys.executable, "-c", DYING], {"capture_output": True, "text": True}
    run = partial(subprocess.run, program, cwd=ROOT, env=fleet.environment(), timeout=60, check=False, **said)
    died = await asyncio.to_thread(run)
    assert died.returncode == 9, died.stderr

    result = await client.calls.attach(died.stdout.strip()).result(timeout=30)
    assert result.output == "left behind"
    record = await client.calls.record(died.stdout.strip())
    assert (record.status, record.attempt) == (ExecutionStatus.SUCCEEDED, 1)
