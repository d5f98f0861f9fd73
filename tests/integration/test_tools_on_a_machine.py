"""The built-in tools in processes of their own: killed, in odd environments, under attack."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from forge_tools.model import ExecutionContext
from forge_tools.sandbox.reach import Reach
from forge_tools.tool.executor import ToolExecutor
from forge_tools.tool.registry import ScopedRegistry
from forge_tools.tools import BUILTINS
from tests.waiting import wait_until

RUN = """
import asyncio, json, sys
from pathlib import Path
from forge_tools.tool.executor import ToolExecutor
from forge_tools.model import ExecutionContext
from forge_tools.tool.registry import ScopedRegistry
from forge_tools.sandbox.reach import Reach
from forge_tools.tools import BUILTINS
import socket
def no_network(event, arguments):
    if event == "socket.connect" and arguments[0].family != socket.AF_UNIX:
        raise PermissionError("a tool opened a connection")
sys.addaudithook(no_network)
registry = ScopedRegistry()
registry.register_many([tool() for tool in BUILTINS])
executor = ToolExecutor(registry, reach=Reach(root=Path(sys.argv[1])))
async def main():
    context = ExecutionContext(working_dir=".")
    calls = json.loads(sys.argv[2])
    results = await asyncio.gather(*(executor.execute(name, context, **arguments) for name, arguments in calls))
    print(json.dumps([[r.success, r.output, r.error] for r in results]))
asyncio.run(main())
"""


@pytest.fixture
def ws(tmp_path: Path) -> Path:
    root = tmp_path / "ws"
    (root / "good").mkdir(parents=True)
    (root / "good/file").write_text("inside\n")
    (tmp_path / "evil").mkdir()
    (tmp_path / "evil/file").write_text("outside\n")
    return root


def start(ws: Path, calls: list[tuple[str, dict]], **options: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", RUN, str(ws), json.dumps(calls)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options)


@pytest.fixture
def sleepers() -> Iterator[Callable[[], list[str]]]:
    """Find what the tests left sleeping."""
    seconds = f"62.{os.getpid()}"

    def find() -> list[str]:
        found = subprocess.run(["pgrep", "-f", f"^sleep {seconds}$"], capture_output=True, text=True, check=False)
        return found.stdout.split()

    find.seconds = seconds
    yield find
    wait_until(lambda: not find())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_worker_that_dies_in_the_middle_of_commands_leaves_nothing(
    ws: Path, sleepers: Callable[[], list[str]], number: signal.Signals
) -> None:
    seconds = sleepers.seconds
    calls = [
        ("Bash", {"command": f"sleep {seconds}"}),
        ("Bash", {"command": f"setsid sleep {seconds} & trap '' TERM; while :; do sleep 0.05; done"}),
        ("Bash", {"command": f"(setsid bash -c 'sleep {seconds} & sleep {seconds}' &); exec sleep {seconds}"}),
    ]
    worker = start(ws, calls, stderr=subprocess.DEVNULL)
    wait_until(lambda: len(sleepers()) == 5)
    worker.send_signal(number)
    worker.communicate(timeout=20)
    wait_until(lambda: not sleepers())


def test_every_host_gives_the_same_answer(ws: Path, tmp_path: Path) -> None:
    (ws / ".gitignore").write_text("*.log\n")
    for name in ("a.py", "b.LOG", "c.log", "é.txt", ".hidden"):
        (ws / name).write_text("hit\nline two ünï\n")
    home = tmp_path / "home"
    (home / ".config/git").mkdir(parents=True)
    (home / ".config/git/ignore").write_text("*.py\n")
    (home / "rc").write_text("--ignore-case\n--glob=!a.py\n")
    odd = {
        "HOME": str(home),
        "LC_ALL": "C",
        "LANG": "de_DE",
        "TZ": "Asia/Tokyo",
        "RIPGREP_CONFIG_PATH": str(home / "rc"),
    }
    calls = [
        ("Grep", {"pattern": "hit"}),
        ("Grep", {"pattern": "ünï", "output_mode": "content"}),
        ("Read", {"file_path": "é.txt"}),
        ("Bash", {"command": "umask; date +%Z; locale 2>/dev/null | grep LC_ALL; ls"}),
    ]
    usual = json.loads(start(ws, calls).communicate(timeout=60)[0])
    other = start(ws, calls, env={**os.environ, **odd}, umask=0o077, cwd=tmp_path)
    assert json.loads(other.communicate(timeout=60)[0]) == usual
    assert usual[0][1].split() == [".hidden", "a.py", "b.LOG", "é.txt"]


async def test_links_that_flip_under_the_tools_never_lead_out(ws: Path) -> None:
    registry = ScopedRegistry()
    registry.register_many([tool() for tool in BUILTINS])
    executor, context = ToolExecutor(registry, reach=Reach(root=ws)), ExecutionContext(working_dir=".")
    (ws / "flip").symlink_to("good")
    stop = threading.Event()

    def flip() -> None:
        for turn in range(10_000_000):
            if stop.is_set():
                return
            (ws / "new").symlink_to(("../evil", "good")[turn % 2])
            (ws / "new").replace(ws / "flip")

    thread = threading.Thread(target=flip)
    thread.start()
    try:
        for _ in range(150):
            seen = [
                await executor.execute("Read", context, file_path="flip/file"),
                await executor.execute("Grep", context, pattern="side", path="flip", output_mode="content"),
                await executor.execute("Grep", context, pattern="side", path="flip/file", output_mode="content"),
                await executor.execute("Bash", context, command="cat file", cwd="flip"),
            ]
            assert not [result for result in seen if "outside\n" in f"{result.output}\n"]
    finally:
        stop.set()
        thread.join()


def test_a_spawner_that_is_idle_ends_with_its_process(ws: Path) -> None:
    worker = start(ws, [("Bash", {"command": "echo $PPID"})])
    output = json.loads(worker.communicate(timeout=60)[0])
    supervisor = int(output[0][1])
    wait_until(lambda: not Path(f"/proc/{supervisor}").exists())
    assert worker.returncode == 0
