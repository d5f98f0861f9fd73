"""A call with a shell's id goes to the shell's host; if no worker can answer there, its agent learns at once."""

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import select, update

from forge_tools.client import Call, ExecutorClient
from forge_tools.client.catalogue import Snapshot
from forge_tools.client.intake import Intake
from forge_tools.config import Settings
from forge_tools.errors import DatabaseUnavailableError, ErrorCode
from forge_tools.model import ExecutionContext, ExecutionStatus, ToolCategory, ToolParameter, ToolSpec, new_id
from forge_tools.model.execution import NewExecution
from forge_tools.model.overview import WorkerRecord
from forge_tools.model.places import ShellRecord, ShellStatus, host_queue, shell_id
from forge_tools.storage import open_store
from forge_tools.storage.directory import Directory
from forge_tools.storage.functions import from_now
from forge_tools.storage.sqlalchemy_tables import executions, workers
from tests.migrated import database
from tests.unit.client.conftest import ECHO, publish

CONTEXT = ExecutionContext(working_dir=".")
ON_A = shell_id("a.example_1", "0123456789ab")
PEEK = ToolSpec(
    name="Peek",
    description="Look at a shell.",
    category=ToolCategory.EXECUTION,
    parameters=(
        ToolParameter(name="bash_id", type="string", description="Which.", names_host=True, aliases=("shell_id",)),
        ToolParameter(name="since", type="integer", description="From where.", required=False, default=0),
    ),
    lane="async",
)


def routed(queue: str | None = None, **parameters: Any) -> tuple[str, str | None]:
    """The queue of a call, and the handle that decided it."""
    intake = Intake(Settings.load(routes={"Peek": "shells"}), "me")
    call = Call("Peek", parameters, CONTEXT, queue=queue)
    prepared = intake.prepare(call, Snapshot(Directory([PEEK])))
    assert isinstance(prepared, NewExecution), prepared
    return prepared.queue, intake.handle_of(call, prepared)


@pytest.mark.parametrize("route", ["Peek", "execution"])
def test_configuration_routes_a_tool_or_its_category(route: str) -> None:
    intake = Intake(Settings.load(routes={route: "slow"}), "me")
    prepared = intake.prepare(Call("Peek", {"bash_id": "of no host"}, CONTEXT), Snapshot(Directory([PEEK])))
    assert isinstance(prepared, NewExecution), prepared
    assert prepared.queue == "slow"


@pytest.mark.parametrize("name", ["bash_id", "shell_id"])
@pytest.mark.parametrize("queue", [None, "background", "host.b"])
def test_a_handle_sends_the_call_to_its_host_whatever_was_asked_for(name: str, queue: str | None) -> None:
    assert routed(queue, **{name: ON_A}) == ("host.a.example_1", ON_A)


def test_a_workspace_that_the_context_names_does_not_send_the_call_to_another_host() -> None:
    context = ExecutionContext(working_dir=".", workspace="on-b", session_id="s", timeout=7)
    snapshot = Snapshot(Directory([PEEK], hosts={"on-b": "b"}))
    prepared = Intake(Settings.load(), "me").prepare(Call("Peek", {"bash_id": ON_A}, context), snapshot)

    assert isinstance(prepared, NewExecution)
    sent = json.loads(prepared.context)
    assert (sent["workspace"], sent["session_id"], prepared.timeout_source) == (None, "s", "call")
    assert context.workspace == "on-b"


@pytest.mark.parametrize("value", ["", "sh_a", "sh__0123456789ab", f"{ON_A} ", f"{ON_A}\n", "sh_a/b_0123456789ab"])
def test_what_is_not_a_handle_is_for_the_tool_to_answer(value: str) -> None:
    assert routed(bash_id=value) == ("shells", None)


def test_the_longest_hostname_still_names_a_queue() -> None:
    assert routed(bash_id=shell_id("h" * 200, "0" * 12))[0] == host_queue("h" * 200)


def test_a_handle_in_another_parameter_names_no_host() -> None:
    prepared = Intake(Settings.load(), "me").prepare(
        Call("Echo", {"message": ON_A}, CONTEXT), Snapshot(Directory([ECHO]))
    )

    assert isinstance(prepared, NewExecution)
    assert prepared.queue == "default"


@pytest.fixture
async def client(settings: Settings) -> AsyncIterator[ExecutorClient]:
    """Of a catalogue that a worker has published, and no worker."""
    await publish(settings, PEEK)
    async with ExecutorClient.connect(settings) as client:
        yield client


async def worker_of(settings: Settings, silent_for: float, *, stopped: bool = False) -> None:
    """The row of a worker on the host of the shell, as it was left when it was seen last."""
    instance = new_id()
    async with await open_store(settings.database) as store:
        record = WorkerRecord(
            id=instance, hostname="a.example_1", pid=1, lane="async", queues=("default", "host.a.example_1"),
            concurrency=1, version="1",
        )  # fmt: skip
        await store.workers.register(record)
        if stopped:
            await store.workers.stop(instance)
        seen = update(workers).where(workers.c.id == instance).values(last_seen_at=from_now(-silent_for))
    async with database(settings.database) as rows:
        await rows.execute(seen)


async def test_a_live_host_gets_the_call(settings: Settings, client: ExecutorClient) -> None:
    await worker_of(settings, 0)
    client.catalogue.read_at = 0.0  # what the client knows is old by now

    handle = await client.submit("Peek", {"bash_id": ON_A}, CONTEXT)

    record = await client.history.get(handle.id)
    assert (record.status, record.queue) == (ExecutionStatus.QUEUED, "host.a.example_1")


async def test_a_host_whose_workers_are_silent_is_said_so_at_once(settings: Settings, client: ExecutorClient) -> None:
    await worker_of(settings, 90)

    result = await client.execute("Peek", CONTEXT, bash_id=ON_A)

    assert result.error_code == ErrorCode.SHELL_HOST_UNAVAILABLE
    assert "Host 'a.example_1' cannot be reached: its workers have been silent for 90 s" in (result.error or "")
    assert (result.metadata["host"], result.metadata["retryable"]) == ("a.example_1", True)
    record = await client.history.get(result.metadata["execution_id"])
    assert (record.status, record.tool) == (ExecutionStatus.REJECTED, "Peek")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "(make watch) was running at its last report, and may still run there."),
        ({"status": ShellStatus.LOST}, "(make watch) is lost: whether it still runs is unknown."),
        (
            {"status": ShellStatus.EXITED, "exit_code": 3},
            "(make watch) has ended (exited, code 3); its output is on that host.",
        ),
        ({"status": ShellStatus.KILLED, "signal": 15}, "(make watch) has ended (killed, signal 15)"),
    ],
)
async def test_what_is_known_of_a_shell_is_told_to_its_session_and_to_no_other(
    settings: Settings, client: ExecutorClient, changes: dict[str, Any], said: str
) -> None:
    await worker_of(settings, 90)
    shell = ShellRecord(
        id=ON_A, hostname="a.example_1", command="make watch", cwd=".", status=ShellStatus.RUNNING, kernel="k", pid=1,
        start_ticks=1, started_at=datetime(2026, 5, 17, tzinfo=UTC), session_id="mine",
    )  # fmt: skip
    async with await open_store(settings.database) as store:
        await store.shells.record(replace(shell, **changes))

    mine, other = [
        await client.execute("Peek", ExecutionContext(working_dir=".", session_id=session), bash_id=ON_A)
        for session in ("mine", "other")
    ]

    assert said in (mine.error or "")
    assert "make watch" not in (other.error or "")
    assert other.error_code == ErrorCode.SHELL_HOST_UNAVAILABLE


async def test_a_host_that_never_had_a_worker_is_taken_for_a_wrong_id(client: ExecutorClient) -> None:
    result = await client.execute("Peek", CONTEXT, bash_id=ON_A)

    assert result.error_code == ErrorCode.SHELL_HOST_UNAVAILABLE
    assert "it never had a worker. Compare the id with those that ListShells shows" in (result.error or "")
    assert result.metadata["retryable"] is False


@pytest.mark.parametrize(("asked", "waits"), [({}, 15.0), ({"expires_in": 90.0}, 90.0), ({"expires_in": 5.0}, 5.0)])
async def test_a_host_whose_worker_has_just_stopped_is_waited_for_no_longer_than_a_restart_takes(
    settings: Settings, client: ExecutorClient, asked: dict[str, Any], waits: float
) -> None:
    await worker_of(settings, 2, stopped=True)

    handle = await client.submit("Peek", {"bash_id": ON_A}, CONTEXT, **asked)

    async with database(settings.database) as rows:
        assert await rows.scalar(select(executions.c.expires_in).where(executions.c.id == handle.id)) == waits


@pytest.mark.parametrize("options", [{"delay": 60.0}, {"queue": "host.a.example_1", "expires_in": 86_400.0}])
async def test_a_call_for_later_waits_for_its_host(client: ExecutorClient, options: dict[str, Any]) -> None:
    handle = await client.submit("Peek", {"bash_id": ON_A}, CONTEXT, **options)

    assert await handle.status() == ExecutionStatus.QUEUED


async def test_of_many_calls_only_those_to_dead_hosts_are_refused(settings: Settings, client: ExecutorClient) -> None:
    await worker_of(settings, 0)
    gone = shell_id("gone", "0" * 12)

    handles = await client.calls.submit_many([Call("Peek", {"bash_id": id_}, CONTEXT) for id_ in (ON_A, gone, "?")])

    statuses = [(await client.history.get(handle.id)).status for handle in handles]
    assert statuses == [ExecutionStatus.QUEUED, ExecutionStatus.REJECTED, ExecutionStatus.QUEUED]


async def test_a_call_is_not_refused_because_the_database_cannot_say_who_lives(
    client: ExecutorClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away() -> None:
        raise DatabaseUnavailableError("The database is away")

    monkeypatch.setattr(client.catalogue, "refresh", away)
    client.catalogue.read_at = 0.0

    handle = await client.submit("Peek", {"bash_id": ON_A}, CONTEXT)

    assert await handle.status() == ExecutionStatus.QUEUED


async def test_the_catalogue_keeps_what_names_a_host(settings: Settings) -> None:
    await publish(settings, PEEK, ECHO)

    async with await open_store(settings.database) as store:
        kept = {spec.name: spec for spec in (await store.directories.read()).enabled}

    assert [parameter.names_host for parameter in kept["Peek"].parameters] == [True, False]
    assert not kept["Echo"].parameters[0].names_host
