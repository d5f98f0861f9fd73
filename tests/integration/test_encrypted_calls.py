"""Encrypted calls on real workers: keys change, are missing, and rows are tampered with."""

import json
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from forge_tools.client import ExecutorClient
from forge_tools.embedded.stack import ensure_key
from forge_tools.errors import ErrorCode
from forge_tools.model import ExecutionContext
from forge_tools.model.secret_names import EncryptionKey
from forge_tools.secrets.encryption import KeyFolder, key_id
from forge_tools.storage import open_store
from tests.fleet import Fleet

CONTEXT = ExecutionContext(working_dir=".")
SECRET = {"user": "ada", "password": "hunter22-is-long"}
SAID = "ada has a password of 16 characters"


async def keys(fleet: Fleet) -> list[EncryptionKey]:
    async with await open_store(fleet.settings.database) as store:
        return await store.encryption_keys.list()


async def rotate(fleet: Fleet) -> str:
    """Do what `forge-tools keys rotate` does."""
    public = KeyFolder(fleet.settings.keys_folder).new()
    old = [key.id for key in await keys(fleet)]
    async with await open_store(fleet.settings.database) as store:
        await store.encryption_keys.publish(key_id(public), public)
        await store.encryption_keys.retire(old)
    return key_id(public)


async def test_calls_encrypted_with_the_old_key_run_after_a_rotation_and_new_ones_use_the_new(
    fresh_fleet: Fleet,
) -> None:
    async with ExecutorClient(fresh_fleet.settings) as client:
        [old] = await keys(fresh_fleet)
        fresh_fleet.start("process")  # publishes the tools of both lanes, and claims none of the other's
        await client.catalogue.refresh()
        waiting = await client.submit("Login", SECRET, CONTEXT)
        assert {key.id: key.live for key in await keys(fresh_fleet)} == {old.id: 1}

        new = await rotate(fresh_fleet)
        await client.catalogue.refresh()
        later = await client.submit("Login", SECRET, CONTEXT)

        assert {key.id: key.live for key in await keys(fresh_fleet)} == {old.id: 1, new: 1}
        fresh_fleet.start("async")
        results = [await handle.result(30) for handle in (waiting, later)]
    assert [result.output for result in results] == [SAID, SAID]
    assert {key.id: key.live for key in await keys(fresh_fleet)} == {old.id: 0, new: 0}


async def test_a_worker_without_the_key_says_so_and_runs_nothing_with_redacted_values(
    fresh_fleet: Fleet, tmp_path: Path
) -> None:
    worker = fresh_fleet.start("async", encryption_keys=str(tmp_path / "nothing-here"))
    [key] = await keys(fresh_fleet)
    async with ExecutorClient(fresh_fleet.settings) as client:
        result = await client.execute("Login", CONTEXT, **SECRET)

        assert (result.success, result.error_code) == (False, ErrorCode.ENCRYPTION_FAILED)
        assert key.id in (result.error or "")
        assert b"does not hold the key" in worker.log.read_bytes()

        (tmp_path / "nothing-here").mkdir()
        name = f"{key.id}.key"
        (tmp_path / "nothing-here" / name).write_bytes((fresh_fleet.settings.keys_folder / name).read_bytes())
        (tmp_path / "nothing-here" / name).chmod(0o600)
        assert (await client.execute("Login", CONTEXT, **SECRET)).output == SAID  # without a restart


async def test_without_a_key_in_the_database_a_secret_is_refused_until_there_is_one(fresh_fleet: Fleet) -> None:
    await rotate(fresh_fleet)
    async with await open_store(fresh_fleet.settings.database) as store:
        await store.encryption_keys.retire([key.id for key in await keys(fresh_fleet)])
    fresh_fleet.start("async")
    async with ExecutorClient(fresh_fleet.settings) as client:
        refused = await client.execute("Login", CONTEXT, **SECRET)
        record = await client.history.get(refused.metadata["execution_id"])

        assert refused.error_code == ErrorCode.ENCRYPTION_FAILED
        assert "forge-tools keys new" in (refused.error or "")
        assert record.parameters == {"user": "ada", "password": "[redacted]"}

        ensure_key(fresh_fleet.settings)
        await rotate(fresh_fleet)
        assert (await client.execute("Login", CONTEXT, **SECRET)).output == SAID  # the client looked again by itself


@pytest.mark.parametrize(
    "tampering",
    [
        "UPDATE execution_queue SET encrypted = (SELECT encrypted FROM execution_queue WHERE id = $2) WHERE id = $1",
        "UPDATE execution_queue SET encrypted = left(encrypted, 60) WHERE id = $1 AND $2 <> id",
        'UPDATE executions SET parameters = \'{"user":"eve","password":"[redacted]"}\' WHERE id = $1 AND $2 <> id',
        "UPDATE executions SET tool = 'Echo' WHERE id = $1 AND $2 <> id",
    ],
)
async def test_a_secret_does_not_open_in_a_row_that_somebody_altered(
    valkey: Any, fresh_postgres: str, tmp_path: Path, tampering: str
) -> None:
    fleet = Fleet(tmp_path, valkey.url, fresh_postgres, kill_grace=1.0)
    try:
        fleet.start("process")
        async with ExecutorClient(fleet.settings) as client:
            mine, theirs = [await client.submit("Login", SECRET, CONTEXT) for _ in range(2)]
            connection = await asyncpg.connect(fresh_postgres)
            assert await connection.execute(tampering, mine.id, theirs.id) == "UPDATE 1"
            await connection.close()
            fleet.start("async")
            results = [await handle.result(30) for handle in (mine, theirs)]
            seen = json.dumps(
                [
                    (await client.history.get(mine.id)).output,
                    [e.detail for e in await client.history.events_of(mine.id)],
                ]
            )
    finally:
        fleet.stop()
    assert [result.error_code for result in results] == [ErrorCode.ENCRYPTION_FAILED, None]
    assert "do not belong to this call" in (results[0].error or "")
    assert "hunter22" not in seen
