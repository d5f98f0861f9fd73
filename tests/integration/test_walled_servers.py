"""Hosted MCP servers behind walls, on a real worker: what they see, keep and connect to, and that nothing of them stays."""

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from forge_tools.client import ExecutorClient
from forge_tools.model import ExecutionContext
from forge_tools.sandbox.walls.probe import given
from tests.fleet import ROOT, Fleet, WorkerProcess
from tests.hosting import hosting_worker
from tests.waiting import reached

CONTEXT = ExecutionContext(working_dir=".")
SCRIPT = str(ROOT / "tests" / "mcp_servers" / "walled.py")

pytestmark = pytest.mark.skipif(bool(given().no_namespaces), reason="test_hosted_walls.py has what is refused then")


@pytest.fixture
def fleet(tmp_path: Path, valkey: Any) -> Iterator[Fleet]:
    for folder in ("stack", "here"):
        (tmp_path / folder).mkdir()
    fleet = Fleet(tmp_path / "stack", valkey.url, f"sqlite:///{tmp_path / 'stack' / 'forge.db'}", kill_grace=1.0)
    yield fleet
    fleet.stop()


def host(fleet: Fleet, others: Mapping[str, Mapping[str, Any]] = {}, **entry: Any) -> WorkerProcess:
    """Start a worker that hosts a server with this entry, and others with more; the folder of its configuration is `here`."""
    server = {"command": sys.executable, "args": ["-P", SCRIPT], **entry}
    servers = {"s": server, **{name: server | more for name, more in others.items()}}
    return hosting_worker(fleet, servers, folder=here(fleet))


def here(fleet: Fleet) -> Path:
    return fleet.folder.parent / "here"


async def said(client: ExecutorClient, tool: str, *, server: str = "s", **arguments: Any) -> str:
    result = await client.execute(f"mcp__{server}__{tool}", CONTEXT, **arguments)
    assert result.success, result.error
    return str(result.output)


async def test_a_server_sees_its_folder_its_home_and_what_its_entry_mounts(fleet: Fleet, tmp_path: Path) -> None:
    for name in ("shared", "reference", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    host(fleet, mounts=["../shared:rw", f"{tmp_path}/reference:ro", f"{ROOT}:ro"])
    async with ExecutorClient(fleet.settings) as client:
        own = fleet.settings.home
        hidden = [
            own / "keys",
            own / "audit",
            fleet.folder / "forge.db",
            tmp_path / "other" / "file",
            Path.home() / ".bashrc",
        ]
        seen = [await said(client, "read", path=str(path)) for path in hidden]
        of_configuration = await said(client, "read", path="mcp.json")
        read = [await said(client, "read", path=str(tmp_path / name / "file")) for name in ("shared", "reference")]
        wrote = [
            await said(client, "write", path=path, text="x")
            for path in ("../shared/new", "../reference/new", "new", "~/kept")
        ]
        result = await client.execute("mcp__s__variables", CONTEXT)
        tiers = {spec.name: spec.walls for spec in client.specs()}

    assert set(seen) == {"FileNotFoundError"}
    assert of_configuration == "(empty)"  # it has the secrets of all servers
    assert read == ["shared", "reference"]
    assert wrote == ["written", "OSError", "OSError", "written"]
    assert (result.metadata["walls"], tiers["mcp__s__read"]) == ("namespace", "namespace")
    given_variables = result.metadata["structured"]
    assert Path(given_variables["HOME"]).is_relative_to(own / "mcp" / "homes")
    assert not [name for name in given_variables if name.startswith("FORGE_")]


async def test_what_a_server_keeps_in_its_home_is_there_at_its_next_start(fleet: Fleet) -> None:
    for text in ("first", "second"):
        worker = host(fleet, mounts=[f"{ROOT}:ro"])
        async with ExecutorClient(fleet.settings) as client:
            if text == "first":
                await said(client, "write", path="~/.cache/kept", text=text)
            else:
                assert await said(client, "read", path="~/.cache/kept") == "first"
        worker.stop()


async def test_a_server_connects_where_its_entry_says(fleet: Fleet, page: str) -> None:
    networks = {"no": False, "any": True, "listed": [page], "another": ["*.example.org", "api.example.com:8443"]}
    host(fleet, {name: {"network": network} for name, network in networks.items()}, mounts=[f"{ROOT}:ro"])
    async with ExecutorClient(fleet.settings) as client:
        answers = {name: await said(client, "fetch", server=name, url=f"http://{page}/") for name in ("s", *networks)}

    assert "403" in answers.pop("another")
    assert "refused" in answers.pop("no")
    assert answers == dict.fromkeys(("s", "any", "listed"), "a page")


@pytest.mark.parametrize("end", ["stop", "kill"])
async def test_nothing_that_a_server_started_outlives_its_worker(fleet: Fleet, end: str) -> None:
    seconds = 1_000_000 + os.getpid()
    worker = host(fleet, mounts=[f"{ROOT}:ro"])
    async with ExecutorClient(fleet.settings) as client:
        await said(client, "leave_behind", seconds=seconds)
    await reached(lambda: is_there(f"sleep {seconds}"), 60, "nothing was left behind")

    getattr(worker, end)()

    await reached(lambda: not is_there(f"sleep {seconds}"), 60, "it outlived its worker")


def is_there(command: str) -> bool:
    return any(" ".join(process.info["cmdline"] or ()) == command for process in psutil.process_iter(["cmdline"]))
