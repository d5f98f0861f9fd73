"""A database with rows that its tables refuse: every command shows the rest, and the doctor names the problem."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from forge_tools.storage import open_store
from tests.contract.calls import finished, submitted
from tests.e2e.cli_driver import Cli
from tests.migrated import migrated

Spoilt = tuple[Cli, str, str]
"""The commands, the call that is spoilt, and one that is not."""


@pytest.fixture
def spoilt(tmp_path: Path) -> Spoilt:
    url = f"sqlite:///{tmp_path / 'forge.db'}"
    migrated(url)

    async def fill() -> list[str]:
        async with await open_store(url) as store:
            ids = [await submitted(store) for _ in range(2)]
            await finished(store, ids)
            return ids

    bad, good = asyncio.run(fill())
    with closing(sqlite3.connect(tmp_path / "forge.db")) as connection, connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute(
            "UPDATE executions SET parameters = '{', agent_id = CAST(x'41ff' AS TEXT) WHERE id = ?", (bad,)
        )
        connection.execute("UPDATE execution_attempts SET output = '{' WHERE execution_id = ?", (bad,))
    return Cli(tmp_path, FORGE_DATABASE_URL=url), bad, good


def test_what_is_not_json_is_printed_as_unreadable_beside_all_others(spoilt: Spoilt) -> None:
    cli, bad, good = spoilt
    assert [one["id"] for one in cli.lines("history", "--output", "json")] == [good, bad]
    assert cli.json("show", bad)["parameters"].keys() == cli.json("show", bad)["output"].keys() == {"unreadable"}
    assert cli.json("show", bad)["agent_id"] == "A\N{REPLACEMENT CHARACTER}"
    assert "unreadable" in cli.run("show", bad).stdout
    assert [line["id"] for line in cli.lines("export")] == [bad, good]
    assert "unreadable" in cli.run("export", "--format", "csv").stdout


def test_the_doctor_says_in_one_line_what_the_tables_refuse(spoilt: Spoilt) -> None:
    cli, *_ = spoilt
    [found] = [one for one in cli.json("doctor", code=1)["findings"] if one["subject"] == "rows"]
    assert found["level"] == "problem"
    for what in ("executions.parameters (1)", "executions.text (1)", "execution_attempts.output (1)"):
        assert what in found["said"]
    assert "restore a backup" in found["way_out"]
