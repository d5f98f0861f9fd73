"""`prune` as an operator runs it: counted first, then done, on a chain that stays whole."""

import asyncio
from pathlib import Path

import pytest

from forge_tools.model import ExecutionStatus
from forge_tools.storage import open_store
from tests.contract.calls import ended, finish_one, finished, running, submitted
from tests.e2e.cli_driver import Cli
from tests.migrated import migrated


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    url = f"sqlite:///{tmp_path / 'forge.db'}"
    migrated(url)

    async def fill() -> None:
        async with await open_store(url) as store:
            await finished(store, [await submitted(store) for _ in range(40)])
            for _ in range(3):
                await finish_one(store, ended(await running(store), ExecutionStatus.FAILED))
            await running(store)

    asyncio.run(fill())
    cli = Cli(tmp_path, FORGE_DATABASE_URL=url, FORGE_AUDIT_KEY="key.pem")
    cli.run("audit", "keygen", "key.pem")
    return cli


def test_old_history_goes_and_the_chain_says_so(cli: Cli) -> None:
    cli.run("audit", "seal")
    assert cli.json("prune", "--older-than", "0s", "--keep-failed", "--dry-run")["executions"] == 40
    assert "0 executions would be deleted" in cli.run("prune", "--older-than", "1d", "--dry-run").stdout
    done = cli.json("prune", "--older-than", "0s", "--keep-failed", "--batch", "15")
    assert (done["executions"], done["attempts"]) == (40, 40)
    report = cli.json("audit", "verify")
    assert (report["is_intact"], report["pruned"], report["executions"]) == (True, 40, 3)
    assert report["checkpoints"] >= 3
    assert f"40 executions, by {report['checkpoints']} checkpoints" in cli.run("audit", "verify").stdout
    assert len(cli.lines("history")) == 4


def test_a_signed_chain_is_not_pruned_without_its_key(cli: Cli) -> None:
    cli.run("audit", "seal")
    del cli.settings["FORGE_AUDIT_KEY"]
    done = cli.run("prune", "--older-than", "0s")
    assert (done.returncode, "set FORGE_AUDIT_KEY" in done.stderr) == (78, True)
    assert len(cli.lines("history")) == 44


def test_a_time_that_is_none_or_lies_ahead_is_refused(cli: Cli) -> None:
    for time, said in (("yesterday", "is not a time"), ("2999-01-01", "is in the future")):
        done = cli.run("prune", "--older-than", time)
        assert (done.returncode, said in done.stderr) == (2, True)
    assert cli.run("prune").returncode == 2
