"""Commands that may reach certain hosts, on real workers: in the foreground, and in shells that outlive their worker."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from forge_tools.client import ExecutorClient
from forge_tools.model import ExecutionContext, Output, ToolResult
from forge_tools.sandbox.processes.endings import end
from forge_tools.sandbox.processes.trees import KEEPS, SHELL
from forge_tools.sandbox.walls.probe import given
from tests.fleet import Fleet
from tests.waiting import reached

DATABASES = ("sqlite",)

pytestmark = pytest.mark.skipif(
    bool(given().no_namespaces), reason="a worker leaves Bash to others then: test_walls.py"
)

FETCH = (
    f"""'{sys.executable}' -c 'import sys, urllib.request as r; print(r.urlopen(sys.argv[1], timeout=10).read())' """
)


@pytest.fixture
def walled(fresh_fleet: Fleet, page: str) -> Iterator[Fleet]:
    fresh_fleet.start("async", egress=f"{page}, *.example.org", hostname="one")
    yield fresh_fleet
    for folder in fresh_fleet.settings.home.glob("shells-*/sh_*"):
        end(f"FORGE_SHELL={folder.name}".encode())


@pytest.fixture
def context(walled: Fleet) -> ExecutionContext:
    return ExecutionContext(working_dir=str(walled.folder), session_id="s", agent_id="a")


async def test_a_command_reaches_the_hosts_that_are_listed_and_its_call_tells_of_the_others(
    walled: Fleet, context: ExecutionContext, page: str
) -> None:
    async with ExecutorClient(walled.settings) as client:

        async def bash(command: str) -> ToolResult:
            return await client.call("Bash", {"command": command}, context)

        allowed = await bash(FETCH + f"http://{page}/")
        handle = await client.submit("Bash", {"command": FETCH + "http://evil.test/"}, context)
        refused = await handle.result(timeout=60)
        told = [event.text async for event in handle.events() if isinstance(event, Output)]
        past_it = await bash(f"env -u http_proxy -u HTTP_PROXY {FETCH} http://{page}/")
        inside = await bash("cd /usr && (python3 -m http.server 8000 >/dev/null 2>&1 & sleep 2; cd /; "
                            f"{FETCH} http://127.0.0.1:8000/ | head -c 20)")  # fmt: skip

    assert (allowed.output, "refused_hosts" in allowed.metadata) == ("b'a page'\n", False)
    assert "403: Forbidden" in str(refused.output)
    assert refused.metadata["refused_hosts"] == ["evil.test:80"]
    assert any("Refused to connect to evil.test:80" in text for text in told)
    assert "Connection refused" in str(past_it.output)
    assert "DOCTYPE" in str(inside.output)


async def test_a_shell_keeps_its_way_out_when_its_worker_is_killed_and_no_longer_than_it_lives(
    walled: Fleet, context: ExecutionContext, page: str
) -> None:
    go, here = Path(walled.folder, "go"), Path(walled.folder, "here")
    script = f"until test -e {go}; do sleep 0.05; done; {FETCH} http://{page}/ > {here}; {FETCH} http://evil.test/ >> {here} 2>&1"
    async with ExecutorClient(walled.settings) as client:
        started = await client.call(
            "Bash", {"command": f"{script}; echo over >> {here}", "run_in_background": True}, context
        )
    assert started.success, started.error
    assert len(kept_by(walled)) == 3  # what forks supervisors, one of those, and its proxy

    walled.workers[0].kill()
    go.touch()

    await reached(lambda: here.exists() and "over" in here.read_text(), 60, "the shell got no further")
    assert "b'a page'" in here.read_text()
    assert "403" in here.read_text()
    await reached(lambda: not kept_by(walled), 60, "its proxy outlived it")


async def test_a_queue_has_its_own_network(fresh_fleet: Fleet, page: str) -> None:
    fresh_fleet.start(
        "async",
        queues="default,open,shut",
        egress=page,
        egress_of=json.dumps({"queue:open": "host", "queue:shut": "none"}),
    )
    script = f"echo -${{http_proxy:+proxied}}; env -u http_proxy -u HTTP_PROXY {FETCH} http://{page}/ 2>&1 | tail -1"
    context = ExecutionContext(working_dir=str(fresh_fleet.folder))

    async with ExecutorClient(fresh_fleet.settings) as client:

        async def bash(queue: str) -> str:
            handle = await client.submit("Bash", {"command": script}, context, queue=queue)
            return str((await handle.result(timeout=60)).output).replace("\n", " ")

        said = [await bash(queue) for queue in ("default", "open", "shut")]

    assert said[1] == "- b'a page' "
    assert [said[0].split()[0], said[2].split()[0]] == ["-proxied", "-"]
    assert all("Connection refused" in one for one in (said[0], said[2]))


def kept_by(fleet: Fleet) -> list[int]:
    """The processes that keep the shells of its first worker, and those of them that are proxies."""
    mark = f"{SHELL}={KEEPS}{fleet.workers[0].pid}."
    processes = psutil.process_iter(["pid", "cmdline"])
    return [one.info["pid"] for one in processes if any(word.startswith(mark) for word in one.info["cmdline"] or ())]
