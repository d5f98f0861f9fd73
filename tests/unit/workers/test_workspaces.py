"""What a worker does with calls that belong on another host: on SQLite and Valkey, with an engine and no second worker."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from forge_tools.client import ExecutorClient
from forge_tools.config import Settings
from forge_tools.errors import ConfigurationError, DatabaseUnavailableError, ErrorCode
from forge_tools.model import ExecutionStatus
from forge_tools.model.overview import WorkerRecord
from forge_tools.model.places import NamedWorkspace
from forge_tools.sandbox.configured import reach_of
from forge_tools.setting_types import WorkspaceSettings
from forge_tools.storage import Store, open_store
from forge_tools.storage.functions import from_now
from forge_tools.storage.sqlalchemy_tables import executions, workers
from forge_tools.tool.base import BaseTool, ExecutionContext, ToolCategory, ToolResult
from tests.contract.calls import statuses
from tests.migrated import migrated
from tests.unit.workers.engines import begun, setup_of, take
from tests.waiting import reached, wait_until
from workers.engine import Engine
from workers.middleware.workspaces import workspace_of

NOWHERE = "redis+socket:///nowhere/valkey.sock"
STARTED: list[str | None] = []


class Note(BaseTool):
    """Remember in whose workspace it ran."""

    name = "Note"
    category = ToolCategory.OTHER
    lane = "async"
    parameters = ()

    async def _execute(self, context: ExecutionContext) -> ToolResult:
        STARTED.append(context.workspace)
        return ToolResult.ok(self.workspace(context).open_folder(".").name)


@pytest.mark.parametrize(
    ("context", "name"),
    [
        ({}, None),
        ({"workspace": None}, None),
        ({"workspace": "repo"}, "repo"),
        ({"workspace": ""}, ""),
        ({"workspace": "null"}, "null"),
        ({"workspace": None, "metadata": {"workspace": "repo"}}, None),
        ({"workspace": "repo", "metadata": {"workspace": None}}, "repo"),
        ({"working_dir": '"workspace":null', "workspace": "repo"}, "repo"),
        ({"working_dir": 'x"workspace', "workspace": None}, None),
        ({"workspace": 7}, None),
        ({"workspace": {"workspace": None}}, None),
    ],
)
@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
def test_the_workspace_of_a_context_is_read_from_its_text(
    context: dict[str, Any], name: str | None, separators: tuple[str, str]
) -> None:
    assert workspace_of(json.dumps(context, separators=separators)) == name


TOO_DEEP = f'{{"workspace":"repo","metadata":{"[" * 100_000}{"]" * 100_000}}}'


@pytest.mark.parametrize(
    "text", ["", "{", '["workspace"]', '"workspace"', '{"workspace":', "7", pytest.param(TOO_DEEP, id="too deep")]
)
def test_an_invalid_context_names_nothing(text: str) -> None:
    assert workspace_of(text) is None


@pytest.fixture
def settings(tmp_path: Path, valkey_url: str) -> Settings:
    (tmp_path / "own").mkdir()
    settings = Settings.load(
        home=tmp_path,
        broker_url=valkey_url,
        database_url=f"sqlite:///{tmp_path / 'forge.db'}",
        hostname="here",
        workspaces={"own": {"roots": [str(tmp_path / "own")]}},
        heartbeat=3.0,
        kill_grace=0.5,
    )
    migrated(settings.database)
    STARTED.clear()
    return settings


def build(settings: Settings) -> Engine:
    return Engine(setup_of(settings, Note, reach=reach_of(settings)))


@pytest.fixture
def engine(settings: Settings) -> Iterator[Engine]:
    engine = begun(build(settings))
    yield engine
    engine.stop(drain=0)


@pytest.fixture
async def store(settings: Settings) -> AsyncIterator[Store]:
    """What other hosts write, and what becomes of it."""
    async with await open_store(settings.database) as opened:
        yield opened


@pytest.fixture
async def client(settings: Settings, engine: Engine, store: Store) -> Any:
    """It wakes nobody; another host has announced the workspace `theirs`."""
    async with ExecutorClient(settings.model_copy(update={"broker_url": NOWHERE})) as client:
        await announce(store, "there", "theirs")
        await client.catalogue.refresh()
        yield client


async def announce(store: Store, host: str, name: str) -> None:
    await store.workers.register(
        WorkerRecord(id=host, hostname=host, pid=1, lane="async", queues=("default",), concurrency=1, version="1")
    )
    await store.workspaces.announce(host, host, [NamedWorkspace(name=name, is_shared=False, roots=("/x",))], within=15)


async def submit(client: ExecutorClient, workspace: str | None) -> str:
    context = ExecutionContext(working_dir=".", workspace=workspace)
    return (await client.submit("Note", context=context, queue="default")).id


async def sent_to(client: ExecutorClient, execution_id: str) -> str:
    """Where it went, once it has."""
    async with asyncio.timeout(30):
        while not (events := [one for one in await client.history.events_of(execution_id) if one.kind == "rerouted"]):
            await asyncio.sleep(0.02)
    [event] = events
    return str(event.detail["to"])


async def test_its_own_and_unnamed_ones_run_here_and_others_go_where_they_belong(
    engine: Engine, client: ExecutorClient, tmp_path: Path, store: Store
) -> None:
    own, theirs, unnamed = [await submit(client, name) for name in ("own", "theirs", None)]

    await take(engine, own, theirs, unnamed)

    assert [(await client.calls.attach(one).result(30)).success for one in (own, unnamed)] == [True, True]
    assert sorted(map(str, STARTED)) == ["None", "own"]
    assert await sent_to(client, theirs) == "there"
    assert await statuses(store, [theirs]) == {theirs: ExecutionStatus.QUEUED}


async def test_where_no_live_host_has_it_the_submitter_is_told(
    engine: Engine, client: ExecutorClient, store: Store
) -> None:
    await store.workers.stop("there")
    theirs = await submit(client, "theirs")
    await take(engine, theirs)
    result = await client.calls.attach(theirs).result(30)
    assert result.error_code == ErrorCode.WORKSPACE_NOT_HERE
    assert "host there has it, and its workers have been silent for" in (result.error or "")
    assert STARTED == []


@pytest.mark.parametrize("name", ["zero \0 and half \ud800", "x" * 1_000_000])
async def test_a_row_that_names_what_no_workspace_can_be_called_fails_alone(
    engine: Engine, client: ExecutorClient, name: str, store: Store
) -> None:
    own, theirs, forged = [await submit(client, one) for one in ("own", "theirs", None)]
    row = update(executions).where(executions.c.id == forged).values(context={"working_dir": ".", "workspace": name})
    await store.database.write(lambda connection: connection.execute(row))

    await take(engine, forged, own, theirs)

    result = await client.calls.attach(forged).result(30)
    assert (result.error_code, len(result.error or "") < 400) == (ErrorCode.WORKSPACE_NOT_HERE, True)
    assert (await client.calls.attach(own).result(30)).success
    assert await sent_to(client, theirs) == "there"


async def test_while_it_cannot_be_sent_on_it_is_given_back_and_its_neighbours_run(
    engine: Engine, client: ExecutorClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object, **__: object) -> None:
        raise DatabaseUnavailableError("The database is away")

    monkeypatch.setattr(engine.worker.store.workspaces, "send_home", away)
    own, theirs = await submit(client, "own"), await submit(client, "theirs")

    await take(engine, theirs, own)

    assert (await client.calls.attach(own).result(30)).success
    await reached(lambda: client.history.get(theirs), 30, when=lambda row: row.status == ExecutionStatus.QUEUED)
    assert (await client.history.get(theirs)).attempt == 0
    assert STARTED == ["own"]


async def test_calls_on_their_way_to_another_host_hold_their_slots(
    engine: Engine, client: ExecutorClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a worker could own thousands that it only passes on, and its death would make them lost."""
    let_go, send = threading.Event(), engine.worker.store.workspaces.send_home
    loops: list[asyncio.AbstractEventLoop] = []

    async def slow(*arguments: Any, **options: Any) -> Any:
        loops.append(asyncio.get_running_loop())
        await asyncio.to_thread(let_go.wait, 10)
        return await send(*arguments, **options)

    monkeypatch.setattr(engine.worker.store.workspaces, "send_home", slow)
    theirs = [await submit(client, "theirs") for _ in range(10)]
    own = await submit(client, "own")
    taking = asyncio.create_task(take(engine, *theirs))
    await reached(lambda: loops)
    assert engine.worker.claims.free_slots() == 0

    claiming = asyncio.create_task(take(engine, own))
    await asyncio.sleep(0.2)
    assert not claiming.done()
    let_go.set()
    await asyncio.gather(taking, claiming)
    assert (await client.calls.attach(own).result(10)).success
    await asyncio.to_thread(wait_until, lambda: engine.worker.claims.free_slots() == 10, 10, "the slots are not free")
    assert [await sent_to(client, one) for one in theirs] == ["there"] * 10


async def test_a_stop_while_a_call_is_sent_on_loses_none(
    engine: Engine, client: ExecutorClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, let_go, send = asyncio.Event(), threading.Event(), engine.worker.store.workspaces.send_home
    loop = asyncio.get_running_loop()

    async def slow(*arguments: Any, **options: Any) -> Any:
        loop.call_soon_threadsafe(began.set)
        await asyncio.to_thread(let_go.wait, 10)
        return await send(*arguments, **options)

    monkeypatch.setattr(engine.worker.store.workspaces, "send_home", slow)
    own, theirs = await submit(client, "own"), await submit(client, "theirs")
    await take(engine, own, theirs)
    await asyncio.wait_for(began.wait(), 10)
    assert (await client.calls.attach(own).result(30)).success  # it does not wait for the other one
    stopping = asyncio.ensure_future(asyncio.to_thread(engine.stop, 0))
    await asyncio.to_thread(wait_until, lambda: engine.worker.claims.is_closed, 10, "it does not stop")
    let_go.set()
    await stopping

    record = await client.history.get(theirs)
    assert (record.status, record.attempt, STARTED) == ("queued", 0, ["own"])
    assert [event.kind for event in await client.history.events_of(theirs)] == ["rerouted"]


async def test_what_another_host_has_keeps_a_worker_from_starting_and_makes_its_instance_a_stopped_one(
    settings: Settings, store: Store
) -> None:
    await announce(store, "there", "own")
    engine = build(settings)
    with pytest.raises(ConfigurationError, match="workspace own is bound to host there"):
        await asyncio.to_thread(engine.start)
    [mine] = [one for one in await store.workers.list() if one.id == engine.worker_id]
    assert mine.stopped_at is not None
    await store.workers.stop("there")
    again = build(settings)
    await asyncio.to_thread(again.start)
    await asyncio.to_thread(again.stop, 0)


async def test_in_process_a_call_names_one_of_the_workspaces_of_its_executor(
    settings: Settings, tmp_path: Path
) -> None:
    executor = setup_of(settings, Note, reach=reach_of(settings)).executor
    for workspace, code in (("own", None), (None, None), ("theirs", ErrorCode.WORKSPACE_NOT_FOUND)):
        result = await executor.call("Note", {}, ExecutionContext(working_dir=".", workspace=workspace))
        assert result.error_code == code
    assert "Unknown workspace: theirs. Known here: own" in (result.error or "")


async def silence(store: Store, instance: str, seconds: float = 100.0) -> None:
    statement = update(workers).where(workers.c.id == instance).values(last_seen_at=from_now(-seconds))
    await store.database.write(lambda connection: connection.execute(statement))


async def test_what_was_taken_over_while_a_worker_was_silent_is_not_run_there_any_more(
    engine: Engine, client: ExecutorClient, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    await silence(store, engine.worker_id)
    await announce(store, "there", "own")
    engine.worker.lease.renew(float("-inf"))  # as after a suspension

    await reached(lambda: "Another host took over a workspace" in caplog.text, 10, "it did not notice")
    own = await submit(client, "own")
    await asyncio.to_thread(wait_until, lambda: engine.worker.lease.is_held, 10, "it is not acknowledged")
    await take(engine, own)

    assert await sent_to(client, own) == "there"
    assert STARTED == []


async def test_what_was_taken_over_while_a_heartbeat_was_on_its_way_is_not_run_there_any_more(
    engine: Engine, client: ExecutorClient, monkeypatch: pytest.MonkeyPatch, store: Store
) -> None:
    """It was sent within the lease of the one before, and came after it."""
    sent, let_go, beat = threading.Event(), threading.Event(), engine.worker.store.workers.beat

    async def slow(*arguments: Any) -> Any:
        monkeypatch.undo()
        engine.worker.lease.renew(float("-inf"))
        sent.set()
        await asyncio.to_thread(let_go.wait, 10)
        return await beat(*arguments)

    monkeypatch.setattr(engine.worker.store.workers, "beat", slow)
    await asyncio.to_thread(sent.wait, 10)
    await silence(store, engine.worker_id)
    await announce(store, "there", "own")
    let_go.set()

    await asyncio.to_thread(wait_until, lambda: engine.worker.lease.is_held, 10, "it is not acknowledged")
    own = await submit(client, "own")
    await take(engine, own)
    assert await sent_to(client, own) == "there"
    assert STARTED == []


async def test_a_silent_host_is_given_time_to_speak_before_it_loses_what_it_has(
    settings: Settings, client: ExecutorClient, store: Store
) -> None:
    """As right after an outage of the database, when nobody has been heard for a while."""
    await announce(store, "there", "more")
    await silence(store, "there")
    folder = str(settings.home / "own")
    here = build(settings.model_copy(update={"hostname": "third", "workspaces": {"more": shape(folder)}}))
    starting = asyncio.ensure_future(asyncio.to_thread(here.start))
    await asyncio.sleep(0.5)
    assert not starting.done()
    await silence(store, "there", 0)
    with pytest.raises(ConfigurationError, match="workspace more is bound to host there"):
        await starting


def shape(folder: str) -> WorkspaceSettings:
    return WorkspaceSettings.model_validate({"roots": [folder]})
