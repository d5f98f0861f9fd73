"""One execution per key, whoever races for it, dies on the way or comes back later; and replays, on real workers."""

import asyncio
import json
import os
import subprocess
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from forge_tools.client import ExecutorClient, SyncExecutorClient
from forge_tools.config import Settings
from forge_tools.errors import ErrorCode, InvalidCallError
from forge_tools.model import ExecutionContext, ExecutionStatus, new_id
from tests.fleet import ROOT, Fleet, warm_worker
from tests.waiting import wait_until

BURST = 300
DIGEST_KEY = "a secret of the tests, and of nobody else"

RACE = """
import json, sys, time
from concurrent.futures import ThreadPoolExecutor
from forge_tools.client import SyncExecutorClient
from forge_tools.model import ExecutionContext

key, mark, starts_at = sys.argv[1], sys.argv[2], float(sys.argv[3])
with SyncExecutorClient() as client, ThreadPoolExecutor(50) as threads:
    client.specs()
    def race(_):
        time.sleep(max(0.0, starts_at - time.time()))
        arguments = {"seconds": 0.2, "mark": mark}
        result = client.call("Sleep", arguments, ExecutionContext(working_dir="."), idempotency_key=key)
        return result.metadata.get("execution_id"), result.metadata.get("is_repeat", False), result.output
    print(json.dumps(list(threads.map(race, range(50)))))
"""
KILLED = """
import sys, time
from forge_tools.client import SyncExecutorClient
from forge_tools.model import ExecutionContext

with SyncExecutorClient() as client:
    client.specs()
    print("ready", flush=True)
    arguments = {"seconds": 0.05, "mark": sys.argv[2]}
    client.submit("Sleep", ExecutionContext(working_dir="."), arguments, idempotency_key=sys.argv[1])
    print("stored", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def settings(fleet: Fleet) -> Settings:
    return fleet.settings.model_copy(update={"digest_key": SecretStr(DIGEST_KEY)})


@pytest.fixture
async def client(settings: Settings) -> AsyncIterator[ExecutorClient]:
    async with ExecutorClient(settings) as client:
        yield client


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """Each body of Sleep writes a line there when it starts."""
    return tmp_path / "mark"


def script(fleet: Fleet, code: str, *words: str) -> "subprocess.CompletedProcess[str]":
    return warm_worker().run(["-c", code, *words], cwd=ROOT, env=fleet.environment(digest_key=DIGEST_KEY))


def test_a_hundred_threads_of_two_processes_that_race_for_a_key_run_one_body(fleet: Fleet, mark: Path) -> None:
    key, starts_at = new_id(), str(time.time() + 3)

    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(lambda _: script(fleet, RACE, key, str(mark), starts_at), range(2)))

    assert [racer.returncode for racer in done] == [0, 0], done
    results = [result for racer in done for result in json.loads(racer.stdout)]
    assert len(results) == 100
    assert len({id_ for id_, _, _ in results}) == 1
    assert [is_repeat for _, is_repeat, _ in results].count(False) == 1
    assert {output for _, _, output in results} == {"slept 0.2s"}
    assert len(mark.read_text().splitlines()) == 1


@pytest.mark.parametrize("milliseconds", [0, 2, 5, 10, 20, 50])
def test_a_submitter_that_is_killed_leaves_one_execution_or_none(
    fleet: Fleet, settings: Settings, mark: Path, milliseconds: int
) -> None:
    key = new_id()
    to_read, to_write = os.pipe()
    environment = fleet.environment(digest_key=DIGEST_KEY)
    with os.fdopen(to_read) as output, os.fdopen(to_write) as theirs:
        words = ["-c", KILLED, key, str(mark)]
        victim = warm_worker().start(words, cwd=ROOT, env=environment, stdout=theirs, stderr=theirs)
        assert output.readline() == "ready\n"
        time.sleep(milliseconds / 1000)  # the moment of the accident is what the test is about
        victim.kill()
        victim.wait()

    with SyncExecutorClient(settings) as client:
        arguments = {"seconds": 0.05, "mark": str(mark)}
        result = client.call("Sleep", arguments, ExecutionContext(working_dir="."), idempotency_key=key)
        rows = [row for row in client.history.list(tool="Sleep", limit=200) if row.idempotency_key == key]

    assert result.success, result.error
    assert [row.id for row in rows] == [result.metadata["execution_id"]]
    assert len(mark.read_text().splitlines()) == 1


@pytest.mark.parametrize(
    ("tool", "arguments", "status"),
    [
        ("Sleep", {"seconds": 60}, ExecutionStatus.CANCELLED),
        ("Sleep", {"seconds": 30}, ExecutionStatus.TIMED_OUT),
        ("KillItself", {"mark": ""}, ExecutionStatus.LOST),
        ("ReturnAnything", {"what": "nothing there"}, ExecutionStatus.FAILED),
    ],
)
async def test_whatever_became_of_an_execution_its_key_gives_that_and_runs_nothing(
    client: ExecutorClient, mark: Path, tool: str, arguments: dict[str, Any], status: ExecutionStatus
) -> None:
    arguments = {**arguments, "mark": str(mark)} if "mark" in arguments else arguments
    context = ExecutionContext(working_dir=".", timeout=1.0 if status is ExecutionStatus.TIMED_OUT else 90.0)
    key = new_id()
    first = await client.submit(tool, arguments, context, idempotency_key=key)
    if status is ExecutionStatus.CANCELLED:
        await first.cancel()
    ended = await first.result(60)

    again = await client.call(tool, arguments, context, idempotency_key=key)

    assert await first.status() == status
    assert (again.error_code, again.error, again.metadata["execution_id"]) == (ended.error_code, ended.error, first.id)
    assert again.metadata["is_repeat"]


async def test_whoever_comes_while_it_runs_waits_for_the_same_result(client: ExecutorClient, mark: Path) -> None:
    context, key = ExecutionContext(working_dir="."), new_id()
    arguments = {"seconds": 1.0, "mark": str(mark)}
    waiting = asyncio.ensure_future(client.call("Sleep", arguments, context, idempotency_key=key))
    await asyncio.to_thread(wait_until, mark.exists, 20, "the body never started")
    waiting.cancel()

    result = await client.call("Sleep", arguments, context, idempotency_key=key)

    assert (result.output, result.metadata["is_repeat"]) == ("slept 1s", True)
    assert len(mark.read_text().splitlines()) == 1


async def test_a_burst_of_keys_runs_a_call_for_each(client: ExecutorClient) -> None:
    context, burst = ExecutionContext(working_dir="."), new_id()

    async def say(number: int) -> str:
        key = f"{burst} {number}"
        result = await client.call("Echo", {"message": str(number)}, context, idempotency_key=key)
        return str(result.output)

    once = await asyncio.gather(*map(say, range(BURST)))
    again = await asyncio.gather(*map(say, range(BURST)))

    assert once == again == [str(number) for number in range(BURST)]
    assert sum((row.idempotency_key or "").startswith(burst) for row in await client.history.list(limit=3000)) == BURST


async def test_secrets_are_compared_and_replayed_without_being_kept(client: ExecutorClient) -> None:
    context, key = ExecutionContext(working_dir="."), new_id()
    first = await client.submit("Login", {"user": "ann", "password": "sesame"}, context, idempotency_key=key)
    same = await client.submit("Login", {"user": "ann", "password": "sesame"}, context, idempotency_key=key)
    other = await client.call("Login", {"user": "ann", "password": "wrong!"}, context, idempotency_key=key)
    await first.result(30)

    with pytest.raises(InvalidCallError, match="pass password again"):
        await client.calls.replay(first.id)
    again = await client.calls.replay(first.id, {"password": "seven77"})

    assert (same.id, same.is_repeat) == (first.id, True)
    assert (other.error_code, other.metadata["differing"]) == (ErrorCode.IDEMPOTENCY_CONFLICT, ["password"])
    assert (await again.result(30)).output == "ann has a password of 7 characters"
    assert (await again.record()).replay_of == first.id


async def test_a_replay_runs_on_a_worker_and_its_result_is_its_own(client: ExecutorClient, mark: Path) -> None:
    arguments = {"seconds": 0.01, "mark": str(mark)}
    first = await client.submit("Sleep", arguments, ExecutionContext(working_dir="."))
    await first.result(30)

    again = await client.calls.replay(first.id, {"seconds": 0.02})

    assert (await again.result(30)).output == "slept 0.02s"
    assert (await first.record()).output == "slept 0.01s"
    assert len(mark.read_text().splitlines()) == 2


async def test_without_a_secret_keys_of_a_server_are_refused_and_other_calls_go_on(fleet: Fleet) -> None:
    context = ExecutionContext(working_dir=".")
    async with ExecutorClient(fleet.settings) as bare:
        keyed = await bare.call("Echo", {"message": "x"}, context, idempotency_key=new_id())
        plain = await bare.call("Echo", {"message": "x"}, context)

    assert plain.success
    if fleet.settings.database_url.startswith("sqlite"):
        assert keyed.success  # there it is a file beside the database
    else:
        assert "FORGE_DIGEST_KEY" in (keyed.error or "")
