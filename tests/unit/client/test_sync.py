"""The synchronous face: threads, closes and forks leave nobody waiting and nothing broken."""

import asyncio
import gc
import inspect
import os
import threading
import time
import warnings
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from forge_tools.client import Call, ExecutorClient, Handle, SyncExecutorClient, SyncHandle, results
from forge_tools.client import sync as module
from forge_tools.client.calls import Calls
from forge_tools.client.catalogue import Catalogue
from forge_tools.client.client import History
from forge_tools.config import Settings
from forge_tools.errors import (
    ConfigurationError,
    DatabaseUnavailableError,
    ErrorCode,
    ForgeError,
    ResultTimeoutError,
    SchemaVersionError,
)
from forge_tools.model import ExecutionContext, ExecutionStatus, ToolCategory, ToolResult
from forge_tools.storage.queue.queue import ExecutionQueue
from tests.waiting import wait_until

CONTEXT = ExecutionContext(working_dir=".")


PAIRS = {
    ExecutorClient: SyncExecutorClient,
    Handle: SyncHandle,
    Calls: module.SyncCalls,
    History: module.SyncHistory,
    Catalogue: module.SyncCatalogue,
}
HERE_ONLY = {
    ExecutorClient: {"connect", "open"},  # this one connects by itself
    Handle: {"on"},
    Catalogue: {"learn", "refresh_since", "workspace_of"},  # what the parts of a client ask of each other
}


def methods(of: type) -> dict[str, Any]:
    return {name: method for name, method in vars(of).items() if callable(method) and not name.startswith("_")}


@pytest.mark.parametrize("side", PAIRS, ids=lambda side: side.__name__)
def test_every_public_method_is_there_without_await_and_takes_the_same(side: type) -> None:
    theirs = {name: method for name, method in methods(side).items() if name not in HERE_ONLY.get(side, ())}
    mine = methods(PAIRS[side])

    assert mine.keys() == theirs.keys()
    for name, method in theirs.items():
        assert inspect.signature(mine[name]).parameters == inspect.signature(method).parameters, name
        assert not inspect.iscoroutinefunction(mine[name])


@pytest.mark.parametrize(("side", "part"), [(Calls, "calls"), (History, "history"), (Catalogue, "catalogue")])
def test_every_part_is_there_without_await(side: type, part: str) -> None:
    settings = Settings.load(broker_url="redis://127.0.0.1:1")

    assert type(getattr(ExecutorClient(settings), part)) is side
    assert type(getattr(SyncExecutorClient(settings), part)) is PAIRS[side]


def helper_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "forge-client"]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Of which executions SQL is asked whether they are over: every 50 ms of each that somebody waits for."""
    monkeypatch.setattr(results, "SLOWEST_POLL", results.FIRST_POLL)
    asked, read = list[str](), ExecutionQueue.results

    async def noted(queue: ExecutionQueue, ids: Sequence[str]) -> list[ToolResult]:
        asked.extend(ids)
        return await read(queue, ids)

    monkeypatch.setattr(ExecutionQueue, "results", noted)
    return asked


def test_a_script_submits_looks_and_cancels(settings: Settings) -> None:
    with SyncExecutorClient(settings) as client:
        handle = client.submit("Echo", {"message": "x"}, CONTEXT)

        assert handle.status() == ExecutionStatus.QUEUED
        with pytest.raises(ResultTimeoutError):
            handle.result(timeout=0.05)
        assert handle.cancel("enough") == "cancelled"
        assert handle.result(30).error_code == ErrorCode.CANCELLED
        assert (
            client.calls.attach(handle.id).record().id
            == client.history.list()[0].id
            == client.history.get(handle.id).id
        )


def test_what_needs_no_worker_needs_no_waiting(settings: Settings) -> None:
    with SyncExecutorClient(settings) as client:
        result = client.call("Nope", {})
        handles = client.calls.submit_many([Call("Nope"), Call("Echo", {"message": "x"})])
        client.catalogue.refresh()

        assert result.error_code == ErrorCode.TOOL_NOT_FOUND
        assert [type(handle) for handle in handles] == [SyncHandle, SyncHandle]
        assert [schema["name"] for schema in client.get_all_schemas("anthropic")] == ["Echo"]
        assert client.get_schemas_by_category(ToolCategory.WEB) == []
        assert len(client.get_executions()) == 1
        client.clear_executions()
        assert client.get_executions() == []


def test_closing_twice_is_harmless_and_ends_the_helper_thread(settings: Settings) -> None:
    client = SyncExecutorClient(settings)
    client.history.list()
    assert helper_threads()

    client.close()
    client.close()

    assert not helper_threads()


def test_a_close_ends_the_waits_of_other_threads(settings: Settings, asked: list[str]) -> None:
    client = SyncExecutorClient(settings)
    handle = client.submit("Echo", {"message": "x"}, CONTEXT)
    with ThreadPoolExecutor(2) as threads:
        waits = [threads.submit(handle.result), threads.submit(client.execute, "Echo", CONTEXT, message="y")]
        wait_until(lambda: len({i for i in asked if asked.count(i) > 2}) == 2, 10, "not both of them wait")

        client.close()

        assert isinstance(waits[0].exception(timeout=5), ConfigurationError)
        assert not waits[1].result(timeout=30).success


def test_a_close_under_the_reads_of_other_threads_leaves_no_connection_open(settings: Settings) -> None:
    with warnings.catch_warnings(record=True) as caught, ThreadPoolExecutor(8) as threads:
        warnings.simplefilter("always")
        for _ in range(5):
            client = SyncExecutorClient(settings)
            client.catalogue.refresh()
            reads = [threads.submit(client.history.list) for _ in range(8)]
            time.sleep(0.002)
            client.close()
            assert all(isinstance(read.exception(), ForgeError | None) for read in reads)
            client.close()  # a read that came late has connected anew
        gc.collect()

    assert [str(warning.message) for warning in caught if warning.category is ResourceWarning] == []


def test_a_handle_outlives_the_close_of_its_client(settings: Settings) -> None:
    client = SyncExecutorClient(settings)
    handle = client.submit("Echo", {"message": "x"}, CONTEXT)
    rejected = client.submit("Nope")
    client.close()

    assert handle.cancel() == "cancelled"
    assert handle.result(30).error_code == ErrorCode.CANCELLED
    assert rejected.result(30).error_code == ErrorCode.TOOL_NOT_FOUND
    client.close()


def test_a_forked_child_leaves_the_connections_of_its_parent_alone(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[tuple[weakref.ref[ExecutorClient], asyncio.AbstractEventLoop]] = []

    class Noted(ExecutorClient):
        async def open(self) -> None:
            opened.append((weakref.ref(self), asyncio.get_running_loop()))
            await super().open()

    monkeypatch.setattr(module, "ExecutorClient", Noted)
    client = SyncExecutorClient(settings)
    handle = client.submit("Echo", {"message": "x"}, CONTEXT)
    [thread] = helper_threads()
    other_pid = os.getpid() + 1
    monkeypatch.setattr(os, "getpid", lambda: other_pid)

    assert handle.status() == ExecutionStatus.QUEUED
    gc.collect()
    (left, loop), (childs, _) = opened
    parents = left()
    assert parents is not None, "it was collected, which closes its connections"
    assert childs() is not parents
    client.close()

    monkeypatch.undo()
    asyncio.run_coroutine_threadsafe(parents.close(), loop).result(30)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(30)


def test_a_client_that_cannot_connect_says_so_each_time_and_keeps_no_thread(tmp_path: Path) -> None:
    client = SyncExecutorClient(Settings.load(home=tmp_path, database_url="postgresql://forge:x@127.0.0.1:1/forge"))

    for _ in range(2):
        with pytest.raises(DatabaseUnavailableError):
            client.history.list()

    assert not helper_threads()


def test_keywords_override_settings_that_are_given_beside_them(settings: Settings) -> None:
    nowhere = "sqlite:////nowhere/forge.db"

    with pytest.raises(SchemaVersionError, match="no database at /nowhere/"):
        SyncExecutorClient(settings, database_url=nowhere).history.list()
    with pytest.raises(SchemaVersionError, match="no database at /nowhere/"):
        asyncio.run(ExecutorClient.connect(settings, database_url=nowhere).open())


def test_a_wait_that_is_interrupted_cancels_its_call(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    with SyncExecutorClient(settings) as client:
        client.catalogue.refresh()
        monkeypatch.setattr("concurrent.futures.Future.result", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            client.execute("Echo", CONTEXT, message="x")
        monkeypatch.undo()

        wait_until(
            lambda: [r.status for r in client.history.list()] in ([], [ExecutionStatus.CANCELLED]), 10, "still queued"
        )


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_who_follows_a_call_hears_the_rest_though_its_client_was_closed_meanwhile(settings: Settings) -> None:
    with SyncExecutorClient(settings) as client:
        handle = client.submit("Echo", {"message": "x"}, CONTEXT)
        events = handle.events()
        heard = [next(events)]
        client.close()
        handle.cancel("enough")
        client.close()
        heard += events

    kinds = [type(event).__name__ for event in heard]
    assert (kinds[0], kinds[-1], kinds.count("Ended"), kinds.count("Note")) == ("StateChange", "Ended", 1, 1)
    assert not helper_threads()


def test_who_stops_following_leaves_nothing_behind(settings: Settings, asked: list[str]) -> None:
    with ThreadPoolExecutor(1) as thread, SyncExecutorClient(settings) as client:
        followed, other = (client.submit("Echo", {"message": "x"}, CONTEXT) for _ in range(2))
        events = followed.events()
        next(events)
        thread.submit(other.result)
        wait_until(lambda: {followed.id, other.id} <= set(asked[-4:]), 10, "not both are waited for")

        del events

        wait_until(lambda: asked[-10:] == [other.id] * 10, 10, "its wait is not over")
