"""Which workspace a call works in, and how that routes it; without a worker."""

import json
from typing import Any

import pytest

from forge_tools.client import Call, ExecutorClient
from forge_tools.client.catalogue import Catalogue, Snapshot
from forge_tools.client.connection import Connection
from forge_tools.client.intake import Intake, Rejected
from forge_tools.config import Settings
from forge_tools.errors import ErrorCode, InvalidCallError
from forge_tools.model import ExecutionContext, ToolCategory, ToolParameter, ToolSpec, new_id
from forge_tools.model.execution import NewExecution
from forge_tools.model.overview import WorkerRecord
from forge_tools.model.places import NamedWorkspace
from forge_tools.storage import Store, open_store
from forge_tools.storage.directory import Directory

TEXT = ToolSpec(name="Text", description="Any.", category=ToolCategory.OTHER)
OUTPUT = ToolSpec(
    name="Output",
    description="Of a shell.",
    category=ToolCategory.EXECUTION,
    parameters=(ToolParameter(name="shell", type="string", description="Which.", names_host=True),),
)
HOSTS = {"repo": "box-1", "docs": None}
SNAPSHOT = Snapshot(Directory([TEXT, OUTPUT], hosts=HOSTS))


def prepare(workspace: Any, name: str = "Text", parameters: Any = None, **fields: Any) -> NewExecution | Rejected:
    context = ExecutionContext.model_construct(
        **ExecutionContext(working_dir=".").model_dump() | {"workspace": workspace}
    )
    call = Call(name, parameters or {}, context, **fields)
    return Intake(Settings.load(routes={"Text": "text"}), "submitter").prepare(call, SNAPSHOT)


@pytest.mark.parametrize(
    ("workspace", "asked", "queue"),
    [
        ("repo", None, "host.box-1"),
        ("repo", "mine", "mine"),
        ("docs", None, "text"),
        ("docs", "mine", "mine"),
        (None, None, "text"),
    ],
)
def test_a_call_goes_to_the_host_of_its_workspace_unless_it_asks_for_a_queue(
    workspace: str | None, asked: str | None, queue: str
) -> None:
    prepared = prepare(workspace, queue=asked)
    assert isinstance(prepared, NewExecution)
    assert prepared.queue == queue
    assert json.loads(prepared.context)["workspace"] == workspace


def test_a_handle_is_reached_on_its_host_even_when_the_workspace_is_no_longer_known() -> None:
    prepared = prepare("gone", "Output", {"shell": "sh_box-2_0123456789ab"})
    assert isinstance(prepared, NewExecution)
    assert (prepared.queue, json.loads(prepared.context)["workspace"]) == ("host.box-2", None)


@pytest.mark.parametrize("workspace", ["rep", "", "REPO", "x" * 10_000, "a\x00b"])
def test_an_unknown_workspace_is_rejected_with_those_that_are_known(workspace: str) -> None:
    prepared = prepare(workspace)
    assert isinstance(prepared, Rejected)
    assert prepared.result.error_code == ErrorCode.WORKSPACE_NOT_FOUND
    assert (prepared.result.error or "").endswith("Known workspaces: docs, repo")
    assert len(prepared.result.error or "") < 400


@pytest.mark.parametrize("workspace", [7, ["repo"], {"repo": 1}])
def test_what_is_not_a_name_is_refused_as_one(workspace: object) -> None:
    with pytest.raises(InvalidCallError, match=r"Unknown workspace: .*Known workspaces: docs, repo"):
        SNAPSHOT.queue_of(workspace)


def test_a_workspace_that_is_almost_right_is_suggested() -> None:
    prepared = prepare("rep")
    assert isinstance(prepared, Rejected)
    assert "(did you mean 'repo'?)" in (prepared.result.error or "")


def test_a_handle_that_names_a_host_counts_more_than_a_workspace() -> None:
    prepared = prepare("repo", "Output", {"shell": "sh_box-2_0123456789ab"})
    assert isinstance(prepared, NewExecution)
    assert prepared.queue == "host.box-2"
    assert json.loads(prepared.context)["workspace"] is None  # or box-2 would send it on


async def announce(store: Store, *names: str, host: str = "box-1") -> None:
    instance = new_id()
    worker = WorkerRecord(
        id=instance, hostname=host, pid=1, lane="async", queues=("default",), concurrency=1, version="1"
    )
    await store.workers.register(worker)
    named = [NamedWorkspace(name=name, is_shared=False, roots=("/srv",)) for name in names]
    await store.workspaces.announce(instance, host, named, within=15)


async def queue_of(client: ExecutorClient, **context: Any) -> str:
    handle = await client.submit("Echo", {"message": "hello"}, ExecutionContext(working_dir=".", **context))
    return (await client.history.get(handle.id)).queue


async def test_a_workspace_that_came_after_the_client_is_found(settings: Settings) -> None:
    async with ExecutorClient(settings) as client, await open_store(settings.database) as store:
        await announce(store, "repo")
        assert await queue_of(client, workspace="repo") == "host.box-1"


async def test_calls_of_a_bound_session_work_in_its_workspace(settings: Settings) -> None:
    async with ExecutorClient(settings) as client, await open_store(settings.database) as store:
        await announce(store, "repo")
        await announce(store, "docs", host="box-2")
        await client.calls.bind_session("s1", "repo")
        assert await queue_of(client, session_id="s1") == "host.box-1"
        assert await queue_of(client, session_id="s1", workspace="docs") == "host.box-2"
        assert await queue_of(client, session_id="s2") == "default"
        assert await queue_of(client) == "default"
        await client.calls.bind_session("s1", None)
        assert await queue_of(client, session_id="s1") == "default"


async def test_what_one_client_binds_another_one_knows_once_it_has_read_again(settings: Settings) -> None:
    async with ExecutorClient(settings) as one, ExecutorClient(settings) as other:
        async with await open_store(settings.database) as store:
            await announce(store, "repo")
        await one.calls.bind_session("s1", "repo")
        await other.catalogue.refresh()
        assert await queue_of(other, session_id="s1") == "host.box-1"


async def test_a_session_is_asked_for_once_a_snapshot(settings: Settings) -> None:
    connection = Connection(settings)
    await connection.open()
    catalogue, workspaces = Catalogue(connection, 15.0), connection.store.workspaces
    await workspaces.bind_session("s1", "repo")
    before = [await catalogue.workspace_of(session_id) for session_id in ("s1", "s2", "s1")]
    await workspaces.bind_session("s1", "docs")

    assert (before, await catalogue.workspace_of("s1")) == (["repo", None, "repo"], "repo")
    await catalogue.refresh()
    assert await catalogue.workspace_of("s1") == "docs"
    await connection.close()


async def test_a_session_bound_to_a_workspace_that_is_gone_is_told_so(settings: Settings) -> None:
    async with ExecutorClient(settings) as client, await open_store(settings.database) as store:
        await announce(store, "docs")
        await store.workspaces.bind_session("s1", "repo")
        await client.catalogue.refresh()
        result = await client.execute("Echo", ExecutionContext(working_dir=".", session_id="s1"), message="hello")
        assert result.error_code == ErrorCode.WORKSPACE_NOT_FOUND
        assert "Unknown workspace: repo. Known workspaces: docs" in (result.error or "")


async def test_a_session_is_not_bound_to_a_workspace_that_no_host_ever_had(settings: Settings) -> None:
    async with ExecutorClient(settings) as client, await open_store(settings.database) as store:
        await announce(store, "docs")
        with pytest.raises(InvalidCallError, match=r"Unknown workspace: dosc.+Known workspaces: docs$") as refused:
            await client.calls.bind_session("s1", "dosc")
        assert refused.value.code == ErrorCode.WORKSPACE_NOT_FOUND
        assert not (await store.directories.read()).has_sessions
