"""`forge-tools up` with real workers: how it starts, and how it ends, whatever ends it."""

import os
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from forge_tools.embedded.home import stack_holder
from tests.e2e.cli_driver import TOOLS, Cli, Up, is_gone
from tests.waiting import wait_until


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    (tmp_path / "mytools.py").write_text(TOOLS)
    return Cli(tmp_path)


UNRULY = """
import os, signal, threading

threading.Thread(target=threading.Event().wait).start()
os.chdir("/")
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
"""


@dataclass(frozen=True)
class Ended:
    """A stack that was called before it served, and then ended by Ctrl-C with a call in its queue; its module keeps to no manners."""

    cli: Cli
    early: "subprocess.CompletedProcess[str]"
    queued: str
    tree: list[int]
    code: int
    said: str


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    folder = tmp_path_factory.mktemp("ended")
    (folder / "mytools.py").write_text(TOOLS + UNRULY)
    cli = Cli(folder)
    up = Up(cli, "--tools", "mytools:TOOLS", from_nothing=True)
    try:
        wait_until(lambda: stack_holder(cli.home), 60, up.said)
        early = cli.run("run", "Add", "a=1", "b=2", timeout=120)
        assert cli.run("tools", "Add").returncode == 0
        queued = cli.run("run", "Add", "a=1", "b=1", "--queue", "nowhere", "--background").stdout.strip()
        tree = up.wait_ready().tree()
    finally:
        code = up.stop(signal.SIGINT)
    return Ended(cli, early, queued, tree, code, up.said())


def test_ctrl_c_stops_everything_and_says_so(ended: Ended) -> None:
    assert ended.code == 0
    assert "Stopping valkey, async, process, background" in ended.said
    assert "no process is left" in ended.said
    assert [pid for pid in ended.tree if not is_gone(pid)] == []


def test_a_call_right_after_the_start_waits_until_the_stack_serves(ended: Ended) -> None:
    assert ended.early.stdout == "3\n", ended.said


def test_without_a_stack_a_call_is_refused_or_left_to_the_next_and_what_was_asked_is_on_record(ended: Ended) -> None:
    cli = ended.cli
    refused = cli.run("run", "Add", "a=1", "b=1", "--agent", "waits")
    left = cli.run("run", "Add", "a=1", "b=1", "--agent", "left", "--background")

    assert (refused.returncode, refused.stdout) == (69, "")
    assert "Start one: forge-tools up" in refused.stderr
    assert cli.lines("history", "--agent", "waits") == []
    assert left.returncode == 0
    assert "waits for the next one, forge-tools up" in left.stderr
    assert cli.json("replay", left.stdout.strip(), code=69)["error"]["code"] == "STACK_ERROR"
    assert sorted(one["status"] for one in cli.lines("history")) == ["queued", "queued", "succeeded"]
    assert cli.json("show", ended.queued)["status"] == "queued"
    assert "none runs in this folder" in cli.run("doctor").stdout
    (cli.folder / "below").mkdir()
    below = Cli(cli.folder / "below", XDG_STATE_HOME=str(cli.state))
    assert below.json("show", ended.queued)["status"] == "queued"
    removed = [str(cli.home), str(cli.folder / ".forge")]
    assert below.json("up", "--forget") == {"removed": removed}
    assert not any(map(os.path.exists, removed))
    assert below.run("up", "--forget").stdout == "This folder has no stack to forget.\n"


def test_a_second_signal_cuts_the_wait_short_and_what_ran_is_still_settled(cli: Cli) -> None:
    up = Up(cli, "--tools", "mytools:TOOLS").wait_ready()
    ids = [
        cli.run("run", tool, *words, "--background").stdout.strip()
        for tool, *words in (("Wait", "seconds=60"), ("Block",))
    ]
    wait_until(lambda: all(cli.json("show", id_)["status"] == "running" for id_ in ids), 40)
    up.process.send_signal(signal.SIGTERM)
    wait_until(
        lambda: all(f"{id_} {tool}" in up.said() for id_, tool in zip(ids, ("Wait", "Block"), strict=True)), 40, up.said
    )
    assert "stopped in 6 s unless they end before" in up.said()

    assert up.stop() == 0

    ends = [cli.json("show", id_) for id_ in ids]
    assert [end["status"] for end in ends] == ["lost", "lost"]
    assert all("was stopped" in end["error"] for end in ends)


def test_what_a_killed_worker_ran_is_settled_long_before_its_lease_is_over(tmp_path: Path) -> None:
    (tmp_path / "mytools.py").write_text(TOOLS)
    cli = Cli(tmp_path, FORGE_LEASE="600")
    up = Up(cli, "--tools", "mytools:TOOLS").wait_ready()
    try:
        queues = {"Wait": "default", "Block": "default", "BlockOnce": "background"}
        words = {"Wait": ["seconds=100"]}
        ids = {
            tool: cli.run("run", tool, *words.get(tool, ()), "--queue", queue, "--background").stdout.strip()
            for tool, queue in queues.items()
        }
        wait_until(lambda: all(cli.json("show", id_)["status"] == "running" for id_ in ids.values()), 40)
        for worker in cli.json("stats")["workers"]:
            os.kill(worker["pid"], signal.SIGKILL)
        wait_until(
            lambda: all(cli.json("show", id_)["status"] not in {"running", "queued"} for id_ in ids.values()), 60
        )
        ends = {tool: cli.json("show", id_) for tool, id_ in ids.items()}
    finally:
        assert up.stop() == 0

    assert [end["status"] for end in ends.values()] == ["lost", "lost", "succeeded"], ends["BlockOnce"]["error"]


def test_after_kill_9_of_up_alone_the_next_one_simply_works(cli: Cli) -> None:
    killed = Up(cli, "--tools", "mytools:TOOLS", from_nothing=True).wait_ready()
    tree = killed.tree()
    shell = cli.json("run", "Bash", "command=sleep 300", "run_in_background=true")["metadata"]["bash_id"]
    os.kill(killed.process.pid, signal.SIGKILL)
    killed.process.wait()
    assert f"still run: {shell}. End them with the tool KillShell" in cli.run("up", "--forget").stderr
    up = Up(cli, "--tools", "mytools:TOOLS", "--output", "json").wait_ready()
    try:
        assert '"name": "valkey"' in up.said(), "what runs is JSON for programs"
        assert str(cli.home) in up.said()
        wait_until(lambda: all(map(is_gone, tree)), 60)
        assert cli.json("run", "Add", "a=1", "b=2")["output"] == 3
        assert cli.run("run", "KillShell", f"shell_id={shell}").returncode == 0
    finally:
        assert up.stop() == 0
