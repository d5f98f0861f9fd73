"""`audit` as an auditor runs it: intact, tampered with, signed, and with a sealer that is killed."""

import asyncio
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from forge_tools.storage import open_store
from tests.contract.calls import call, finished
from tests.e2e.cli_driver import Cli
from tests.migrated import migrated
from tests.waiting import wait_until

BATCHES = 5
COUNT = BATCHES * 500


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    file = tmp_path_factory.mktemp("past") / "forge.db"
    migrated(f"sqlite:///{file}")

    async def fill() -> None:
        async with await open_store(f"sqlite:///{file}") as store:
            for _ in range(BATCHES):
                calls = [call() for _ in range(500)]
                await store.queue.submit_many(calls)
                await finished(store, [one.id for one in calls])

    asyncio.run(fill())
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return file.read_bytes()


@pytest.fixture
def cli(tmp_path: Path, template: bytes) -> Cli:
    (tmp_path / "forge.db").write_bytes(template)
    cli = Cli(tmp_path, FORGE_DATABASE_URL=f"sqlite:///{tmp_path / 'forge.db'}")
    cli.run("audit", "keygen", "key.pem")
    cli.settings["FORGE_AUDIT_KEY"] = "key.pem"
    return cli


def sql(cli: Cli, statement: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(cli.folder / "forge.db", timeout=10)) as connection, connection:
        return connection.execute(statement).fetchall()


def test_an_auditor_with_the_public_key_alone_sees_that_nothing_was_changed(cli: Cli) -> None:
    assert cli.json("audit", "seal") == {"executions": COUNT}
    cli.settings["FORGE_AUDIT_KEY"] = "key.pem.pub"
    done = cli.run("audit", "verify")
    assert done.returncode == 0, done.stderr
    for said in (
        f"{COUNT:,} executions",
        "Intact",
        f"{BATCHES} of {BATCHES} batches are signed by a given key",
        f"head        {BATCHES}:",
    ):
        assert said in done.stdout
    report = cli.json("audit", "verify")
    assert (report["is_intact"], report["executions"], report["findings"]) == (True, COUNT, [])
    assert report["head"]["head"] == cli.json("audit", "head")["head"] == cli.run("audit", "head").stdout.strip()


def test_what_somebody_changed_is_a_table_and_exit_code_1(cli: Cli) -> None:
    cli.run("audit", "seal")
    [(changed,), (removed,)] = sql(cli, "SELECT id FROM executions ORDER BY id LIMIT 2")
    sql(cli, f"UPDATE execution_attempts SET output = '\"forged\"' WHERE execution_id = '{changed}'")
    sql(cli, f"DELETE FROM executions WHERE id = '{removed}'")
    done = cli.run("audit", "verify")
    assert (done.returncode, "NOT INTACT: 2 findings." in done.stdout) == (1, True)
    for width in ("80", "60"):
        cli.settings["COLUMNS"] = width
        shown = cli.run("audit", "verify").stdout
        words = " ".join(shown.split())
        for said in (
            f"changed execution_attempts {changed} attempt 1 sealed as",
            f"removed executions {removed} it is gone",
        ):
            assert said in words
        assert all(len(line) <= int(width) for line in shown.splitlines() if not line.startswith("head"))
    report = cli.json("audit", "verify", code=1)
    found = {(one["fault"], one["table"], one["key"]) for one in report["findings"]}
    assert found == {
        ("changed", "execution_attempts", f"{changed} attempt 1"), ("removed", "executions", str(removed))
    }  # fmt: skip


def test_a_head_that_was_kept_proves_that_the_tail_is_still_there(cli: Cli) -> None:
    cli.run("audit", "seal")
    (cli.folder / "heads").write_text(cli.run("audit", "head").stdout)
    assert "1 head kept in heads" in cli.run("audit", "verify", "--heads", "heads").stdout
    cut_off(cli)
    assert cli.run("audit", "verify", "--heads", "others").returncode == 0  # which shows nothing, and says so
    done = cli.run("audit", "verify", "--heads", "heads")
    assert done.returncode == 1
    assert "1 of 1 heads that were kept elsewhere are not in the chain" in " ".join(done.stdout.split())


def cut_off(cli: Cli) -> None:
    """Remove the last batch, as who writes to the database can."""
    sql(cli, f"DELETE FROM audit_batches WHERE sequence = {BATCHES}")
    sql(cli, f"DELETE FROM audit_executions WHERE batch = {BATCHES}")


def test_verify_keeps_the_head_of_an_intact_chain_outside_the_database_and_misses_it_later(cli: Cli) -> None:
    cli.run("audit", "seal")
    first = cli.json("audit", "verify")
    assert (first["kept_heads"], "so nothing shows whether the chain was longer before" in first["heads"]) == (0, True)
    [file] = (cli.state / "forge-tools").glob("audit-*.heads")
    assert (file.read_text(), file.stat().st_mode & 0o777) == (f"{first['head']['head']}\n", 0o600)
    assert cli.json("audit", "verify")["kept_heads"] == 1
    cut_off(cli)
    done = cli.json("audit", "verify", code=1)
    assert [one["fault"] for one in done["findings"]] == ["other head"]
    assert file.read_text() == f"{first['head']['head']}\n"  # the shorter chain is not kept beside it
    file.write_text("no heads")
    wrong = cli.run("audit", "verify")
    assert (wrong.returncode, "Move it away" in wrong.stderr) == (78, True)


def test_heads_that_cannot_be_kept_are_said_and_prove_nothing_wrong(cli: Cli) -> None:
    cli.run("audit", "seal")
    cli.settings["FORGE_AUDIT_HEADS"] = "/dev/null/heads"
    done = cli.run("audit", "verify")
    assert (done.returncode, "cannot be written: File exists" in " ".join(done.stdout.split())) == (0, True)


def test_a_chain_that_nobody_signed_says_what_it_does_not_prove(cli: Cli) -> None:
    del cli.settings["FORGE_AUDIT_KEY"]
    cli.run("audit", "seal")
    done = cli.run("audit", "verify")
    assert (done.returncode, "can rebuild all of it" in " ".join(done.stdout.split())) == (0, True)
    assert cli.run("audit", "verify", "--key", "key.pem.pub").returncode == 1


def test_a_signed_chain_proves_little_to_who_has_no_key(cli: Cli) -> None:
    cli.run("audit", "seal")
    del cli.settings["FORGE_AUDIT_KEY"]
    assert "no key was given" in " ".join(cli.run("audit", "verify").stdout.split())


def test_a_sealer_that_is_killed_leaves_whole_batches_and_the_next_goes_on(cli: Cli) -> None:
    for number in range(1, 4):
        sealer = cli.start("audit", "seal")
        wait_until(lambda least=number: sql(cli, "SELECT count(*) FROM audit_batches")[0][0] >= least, 30)
        sealer.send_signal(signal.SIGKILL)
        sealer.communicate(timeout=30)
        assert cli.json("audit", "verify")["is_intact"]
    cli.run("audit", "seal")
    report = cli.json("audit", "verify")
    assert (report["is_intact"], report["executions"], report["unsealed"]) == (True, COUNT, 0)


def test_nothing_to_seal_and_no_head_are_said(tmp_path: Path) -> None:
    cli = Cli(tmp_path, FORGE_DATABASE_URL=f"sqlite:///{tmp_path / 'forge.db'}")
    cli.run("db", "upgrade")
    assert cli.run("audit", "seal").stdout == "Nothing to seal.\n"
    head = cli.run("audit", "head")
    assert (head.returncode, "Nothing is sealed yet" in head.stderr) == (1, True)
    assert "nothing is proven" in cli.run("audit", "verify").stdout


def test_a_key_is_made_where_workers_look_for_it_and_only_if_there_is_none(cli: Cli) -> None:
    made = cli.json("audit", "keygen", "--if-none")
    assert made["private"] == "key.pem"
    assert cli.json("audit", "keygen", "--if-none") == made
    assert "never replaced" in cli.run("audit", "keygen").stderr
    del cli.settings["FORGE_AUDIT_KEY"]
    assert cli.run("audit", "keygen").returncode == 2
