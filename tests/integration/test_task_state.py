"""Todo lists and memory on two hosts whose workers share a database but no disk; and tools for which only one host has an engine."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from forge_tools.client import ExecutorClient
from forge_tools.model import ExecutionContext, ToolResult
from tests.fleet import Fleet

HOSTS = ("a", "b")
CONTEXT = ExecutionContext(working_dir=".", session_id="session-1", agent_id="agent-1")
TOOLS = "tests.engine_tools:TOOLS"


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory, valkey_server: Any, postgres: Any) -> Iterator[Fleet]:
    """Host a has an engine, and host b has not; each has a folder of its own."""
    url, folder = postgres.create_database(), tmp_path_factory.mktemp("hosts")
    valkey_server.flush()
    fleet = Fleet(folder, valkey_server.url, url, kill_grace=1.0)
    for name, settings in zip(HOSTS, ({"engine": "tests.engine_tools:make"}, {}), strict=True):
        (own := folder / name).mkdir()
        fleet.start("async", hostname=name, tools=TOOLS, workspace=str(own), **settings)
    yield fleet
    fleet.stop()
    postgres.drop_database(url)


@pytest.fixture
async def client(hosts: Fleet) -> AsyncIterator[ExecutorClient]:
    async with ExecutorClient(hosts.settings) as client:
        yield client


async def on(client: ExecutorClient, host: str, tool: str, **parameters: Any) -> ToolResult:
    result = await client.call(tool, parameters, CONTEXT, queue=f"host.{host}")
    assert result.success, result.error
    assert (await client.history.get(result.metadata["execution_id"])).hostname == host
    return result


async def test_forty_writers_on_two_hosts_keep_forty_writes(client: ExecutorClient) -> None:
    def write(number: int) -> Any:
        host, text = HOSTS[number % 2], f"item {number}"
        if number < 40:
            return on(client, host, "TodoWrite", todos=[{"content": text}], merge=True)
        return on(client, host, "Memory", command="insert", path="log.md", insert_line=0, content=text)

    await on(client, "a", "Memory", command="create", path="log.md", content="")
    await asyncio.gather(*(write(number) for number in range(80)))

    for host in HOSTS:
        read = await on(client, host, "TodoRead")
        assert {todo["content"] for todo in read.metadata["todos"]} == {f"item {number}" for number in range(40)}
        assert read.metadata["version"] == 40
        log = await on(client, host, "Memory", command="view", path="log.md")
        assert log.metadata["version"] == 41
        assert {line.partition("\t")[2] for line in log.output.splitlines()} == {
            "", *(f"item {number}" for number in range(40, 80)),
        }  # fmt: skip


async def test_calls_go_where_there_is_an_engine_and_only_those_that_need_one(client: ExecutorClient) -> None:
    results = await asyncio.gather(*(client.call("with_engine", {}, CONTEXT) for _ in range(10)))
    hosts = {(await client.history.get(one.metadata["execution_id"])).hostname for one in results}

    assert ({one.output for one in results}, hosts) == ({"an engine"}, {"a"})
    assert (await on(client, "a", "with_or_without")).output == "an engine"
    assert (await on(client, "b", "with_or_without")).output == "none"
