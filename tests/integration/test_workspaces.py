"""Workspaces on two hosts with real workers: each call runs where its workspace is, and nowhere else."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from forge_tools.client import Call, ExecutorClient, Handle
from forge_tools.errors import ErrorCode
from forge_tools.model import ExecutionContext, ToolResult
from tests.fleet import Fleet
from tests.integration.conftest import attempts_of

DATABASES = ("postgres",)

ASTRAY = "astray"
"""A queue that host b alone serves."""


def named(**workspaces: Any) -> str:
    return json.dumps(workspaces)


def context(workspace: str | None, **fields: Any) -> ExecutionContext:
    return ExecutionContext(working_dir=".", workspace=workspace, **fields)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hosts")
    for name in ("a", "b", "both"):
        (folder / name).mkdir()
    return folder


@pytest.fixture(scope="module")
def hosts(folder: Path, valkey_server: Any, postgres: Any) -> Iterator[Fleet]:
    """Host a has `repo` and host b `notes` to itself; `docs` is on both."""
    url = postgres.create_database()
    valkey_server.flush()
    fleet = Fleet(folder, valkey_server.url, url, kill_grace=1.0)
    docs = {"roots": [str(folder / "both")], "shared": True}
    here, there = {"roots": [str(folder / "a")]}, {"roots": [str(folder / "b")]}
    for lane in ("async", "process"):
        fleet.start(lane, hostname="a", workspaces=named(docs=docs, repo=here))
        fleet.start(lane, hostname="b", queues=f"default,{ASTRAY}", workspaces=named(docs=docs, notes=there))
    yield fleet
    fleet.stop()
    postgres.drop_database(url)


@pytest.fixture
async def client(hosts: Fleet) -> AsyncIterator[ExecutorClient]:
    async with ExecutorClient(hosts.settings) as client:
        yield client


async def host_of(client: ExecutorClient, result: ToolResult) -> str | None:
    assert result.success, result.error
    return (await client.history.get(result.metadata["execution_id"])).hostname


async def test_a_call_runs_on_the_host_that_its_workspace_is_bound_to(client: ExecutorClient, folder: Path) -> None:
    for workspace, host in (("repo", "a"), ("notes", "b")) * 3:
        result = await client.execute("Write", context(workspace), file_path="who", content=workspace)
        assert await host_of(client, result) == host
        assert (folder / host / "who").read_text() == workspace


async def test_a_shared_workspace_is_on_whichever_host_takes_the_call(client: ExecutorClient, folder: Path) -> None:
    (folder / "both/guide").write_text("guide")
    hosts: set[str | None] = set()
    async with asyncio.timeout(60):
        while len(hosts) < 2:  # one that stands still for a moment takes none
            calls = [client.execute("Bash", context("docs"), command="sleep 0.2; cat guide") for _ in range(12)]
            results = await asyncio.gather(*calls)
            hosts |= {await host_of(client, result) for result in results}
            assert {result.output.strip() for result in results} == {"guide"}
    assert hosts == {"a", "b"}


async def test_what_comes_to_the_wrong_host_is_sent_to_the_right_one_and_not_run_there(
    client: ExecutorClient, folder: Path
) -> None:
    """Each body leaves a line; Bash is not idempotent, so a body that had begun would end its only attempt."""
    call = Call("Bash", {"command": "echo $$ >> lines; pwd"}, context("repo"), queue=ASTRAY)
    handles = [handle for handle in await client.calls.submit_many([call] * 20) if isinstance(handle, Handle)]
    results = [await handle.result(60) for handle in handles]

    assert [await host_of(client, result) for result in results] == ["a"] * 20
    assert len((folder / "a/lines").read_text().splitlines()) == 20
    assert not (folder / "b/lines").exists()
    for handle in handles:
        [moved] = [event for event in await client.history.events_of(handle.id) if event.kind == "rerouted"]
        assert (moved.detail["to"], moved.detail["queue"]) == ("a", "host.a")
        assert [attempt.hostname for attempt in await attempts_of(client, handle.id)] == ["a"]


async def test_the_process_lane_sends_calls_home_too(client: ExecutorClient, folder: Path) -> None:
    mark = {"seconds": 0, "mark": str(folder / "starts")}
    calls = [
        Call("Block", mark, context("repo"), queue=ASTRAY),
        Call("EchoInProcess", {"message": "hello"}, context("docs")),
    ]
    results = await asyncio.gather(*(client.calls.execute(call) for call in calls * 5))
    assert [await host_of(client, result) for result in results[::2]] == ["a"] * 5
    assert len((folder / "starts").read_text().splitlines()) == 5


async def test_a_session_that_was_bound_to_a_workspace_works_there(client: ExecutorClient) -> None:
    await client.calls.bind_session("s1", "notes")
    result = await client.execute("Bash", context(None, session_id="s1"), command="pwd")
    assert await host_of(client, result) == "b"
    await client.calls.bind_session("s1", None)


async def test_edits_from_two_hosts_in_one_shared_file_are_all_kept(client: ExecutorClient, folder: Path) -> None:
    (folder / "both/tasks").write_text("".join(f"task {n}: open\n" for n in range(40)))
    edits = [
        client.call(
            "Edit",
            {"file_path": "tasks", "old_string": f"task {n}: open", "new_string": f"task {n}: done"},
            context("docs"),
            queue=f"host.{'ab'[n % 2]}",
        )
        for n in range(40)
    ]
    results = await asyncio.gather(*edits)
    assert [result.error for result in results] == [None] * 40
    assert {await host_of(client, result) for result in results} == {"a", "b"}
    assert (folder / "both/tasks").read_text() == "".join(f"task {n}: done\n" for n in range(40))


READS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("Read", {"file_path": "src/ä.py"}),
    ("Read", {"file_path": "src/latin"}),
    ("ListDirectory", {"path": ".", "depth": 3}),
    ("Glob", {"pattern": "**/*"}),
    ("Grep", {"pattern": "word", "output_mode": "content"}),
    ("Grep", {"pattern": "(?i)WÖRD"}),
    ("Grep", {"pattern": "word", "output_mode": "count"}),
)


def odd_surroundings(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    """What differs between two machines and must not show: configuration of git and ripgrep, language, umask, home."""
    home.mkdir()
    (home / "ignore").write_text("*.py\nsrc/\n")
    (home / ".gitconfig").write_text(f"[core]\n\texcludesFile = {home}/ignore\n\tquotePath = true\n")
    (home / "ripgreprc").write_text("--hidden\n--no-ignore\n--max-count=1\n--smart-case\n")
    for name, value in {
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home / "config"),
        "RIPGREP_CONFIG_PATH": str(home / "ripgreprc"),
        "LC_ALL": "C",
        "LANG": "tr_TR.UTF-8",
        "GREP_COLORS": "mt=41",
        "TZ": "Pacific/Auckland",
        "PYTHONIOENCODING": "latin-1",
    }.items():
        monkeypatch.setenv(name, value)


async def test_what_is_read_is_the_same_bytes_on_hosts_with_different_surroundings(
    fresh_fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ws/src").mkdir(parents=True)
    for path, content in {
        ".gitignore": "*.log\n",
        "src/ä.py": "word wörd WORD\nword\n",
        "b.log": "word",
        ".hid": "word",
    }.items():
        (tmp_path / "ws" / path).write_text(content)
    (tmp_path / "ws/src/latin").write_bytes(b"w\xf6rd word\r\n")
    settings = named(ws={"roots": [str(tmp_path / "ws")], "shared": True})
    fresh_fleet.start("async", from_nothing=True, hostname="a", workspaces=settings)
    odd_surroundings(monkeypatch, tmp_path / "elsewhere")
    mask = os.umask(0o077)
    try:
        fresh_fleet.start("async", from_nothing=True, hostname="b", workspaces=settings)
    finally:
        os.umask(mask)
    async with ExecutorClient(fresh_fleet.settings) as client:
        for tool, parameters in READS:
            calls = [Call(tool, parameters, context("ws"), queue=f"host.{host}") for host in "ab"]
            one, other = await asyncio.gather(*map(client.calls.execute, calls))
            assert [await host_of(client, one), await host_of(client, other)] == ["a", "b"]
            assert one.output.encode() == other.output.encode(), tool


async def test_a_call_whose_host_is_dead_fails_with_words_and_runs_nowhere(fresh_fleet: Fleet, tmp_path: Path) -> None:
    settings = named(repo={"roots": [str(tmp_path)]})
    a = fresh_fleet.start("async", hostname="a", workspaces=settings)
    fresh_fleet.start("async", hostname="b", queues=ASTRAY)
    a.stop()
    async with ExecutorClient(fresh_fleet.settings) as client:
        result = await client.calls.execute(Call("Bash", {"command": "touch ran"}, context("repo"), queue=ASTRAY))
    assert result.error_code == ErrorCode.WORKSPACE_NOT_HERE
    assert "Workspace repo is not on host b" in (result.error or "")
    assert "host a has it, and its workers have been silent for" in (result.error or "")
    assert result.metadata["retryable"] is True
    assert not list(tmp_path.rglob("ran"))


async def test_a_call_for_a_host_that_restarts_waits_for_it(fresh_fleet: Fleet, tmp_path: Path) -> None:
    settings = named(repo={"roots": [str(tmp_path)]})
    fresh_fleet.start("async", hostname="a", workspaces=settings).stop()
    fresh_fleet.start("async", hostname="b")
    async with ExecutorClient(fresh_fleet.settings) as client:
        handle = await client.submit("Bash", {"command": "echo here"}, context("repo"))
        fresh_fleet.start("async", hostname="a", workspaces=settings)
        assert (await handle.result(30)).output.strip() == "here"


def test_a_second_host_with_the_same_bound_workspace_does_not_start(fresh_fleet: Fleet, tmp_path: Path) -> None:
    settings = named(repo={"roots": [str(tmp_path)]})
    fresh_fleet.start("async", hostname="a", workspaces=settings)
    with pytest.raises(AssertionError, match="FORGE_WORKSPACES: workspace repo is bound to host a; a live worker"):
        fresh_fleet.start("async", hostname="b", workspaces=settings)
    assert fresh_fleet.workers[1].process.returncode == 78
    fresh_fleet.start("process", hostname="a", workspaces=settings)  # another worker of the same host does


def test_what_a_dead_host_had_goes_to_the_one_that_starts_with_it(fresh_fleet: Fleet, tmp_path: Path) -> None:
    settings = named(repo={"roots": [str(tmp_path)]})
    fresh_fleet.start("async", hostname="a", workspaces=settings).stop()
    b = fresh_fleet.start("async", hostname="b", workspaces=settings)
    assert "Workspace repo was bound to host a" in b.log.read_text()
    assert "host b takes it over" in b.log.read_text()


def test_a_worker_whose_folder_is_missing_says_which(fresh_fleet: Fleet, tmp_path: Path) -> None:
    settings = named(repo={"roots": [str(tmp_path), str(tmp_path / "gone")]})
    with pytest.raises(
        AssertionError, match=r"FORGE_WORKSPACES: workspace repo: .*/gone cannot be opened on this host"
    ):
        fresh_fleet.start("async", workspaces=settings)
    assert fresh_fleet.workers[0].process.returncode == 78


async def test_a_host_that_is_killed_keeps_its_calls_from_running_elsewhere(fresh_fleet: Fleet, tmp_path: Path) -> None:
    """Read may be run again after a crash, but not in another host's folder of that name."""
    (tmp_path / "a").mkdir()
    settings = named(repo={"roots": [str(tmp_path / "a")]})
    a = fresh_fleet.start("async", hostname="a", workspaces=settings)
    fresh_fleet.start("async", hostname="b")
    async with ExecutorClient(fresh_fleet.settings) as client:
        a.signal(signal.SIGKILL)
        handle = await client.submit("Bash", {"command": "touch ran"}, context("repo"), expires_in=2.0)
        result = await handle.result(30)
    assert result.error_code == ErrorCode.EXPIRED
    assert "on host a: forge-tools worker --lane async" in (result.error or "")
    assert not list(tmp_path.rglob("ran"))
