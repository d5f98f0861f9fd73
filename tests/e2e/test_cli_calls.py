"""Every command against one real stack, as its users run them."""

import csv
import json
import os
import pty
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from forge_tools.model import ToolCategory, ToolSpec
from forge_tools.storage import open_store
from tests.e2e.cli_driver import COMMAND, TOOLS, Cli, Up, is_gone, workers_below
from tests.e2e.terminal import read_to_the_end
from tests.waiting import wait_until

NASTY = "Gr\x1b[31mep\x07"


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("stack")
    (folder / "mytools.py").write_text(TOOLS)
    (folder / "notes.txt").write_text("one\ntwo\n\x1b[31mthree\n")
    running = Up(Cli(folder), "--tools", "mytools:TOOLS").wait_ready()
    tree = running.tree()
    yield running
    assert running.stop() == 0, running.said()
    assert len(tree) >= 8
    wait_until(lambda: all(map(is_gone, tree)), 2, lambda: f"left: {[pid for pid in tree if not is_gone(pid)]}")


@pytest.fixture
def cli(up: Up) -> Cli:
    return Cli(up.log.parent)


def test_up_says_what_runs_and_what_to_try(up: Up) -> None:
    said = up.said()
    assert all(word in said for word in ("valkey", "async", "process", "background", "SQLite", "logs/async.log"))


def test_workers_show_what_they_are_and_nothing_of_their_settings(up: Up) -> None:
    workers = [Path(f"/proc/{pid}") for pid in workers_below(up.process.pid)]
    lanes = [(folder / "cmdline").read_bytes().split(b"\0")[2] for folder in workers]
    assert sorted(lanes) == [b"async", b"process", b"process"]
    for folder in workers:
        assert b"FORGE_" not in (folder / "environ").read_bytes()
        status = dict(line.split(":\t", 1) for line in (folder / "status").read_text().splitlines() if ":\t" in line)
        ours = dict(
            line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line
        )
        assert (status["Umask"], status["NoNewPrivs"]) == (ours["Umask"], "1")
        ignored = int(status["SigIgn"], 16)
        assert [one for one in signal.valid_signals() if ignored >> one - 1 & 1] == [signal.SIGPIPE, signal.SIGXFSZ]
        limits = (folder / "limits").read_text()
        assert re.search(r"Max core file size +0 +0 ", limits)


def test_the_first_command_to_try_runs_a_tool_of_the_users_own(up: Up, cli: Cli) -> None:
    first = up.said().partition("Try, in another terminal:")[2].split("\n")[1]
    program, _, words = first.strip().partition(" ")
    assert (program.endswith("forge-tools"), words) == (True, "run Add a=1 b=1"), up.said()
    assert cli.run(*words.split()).stdout == "2\n"


def test_a_second_up_says_who_holds_the_folder(up: Up, cli: Cli) -> None:
    done = cli.run("up")
    assert done.returncode == 69
    assert f"pid {up.process.pid} on " in done.stderr
    assert f"kill {up.process.pid}" in done.stderr


def test_tools_of_the_users_own_stand_beside_the_built_in_ones(cli: Cli) -> None:
    shown = cli.run("tools").stdout
    assert all(name in shown for name in ("Add", "Bash", "Grep", "Read"))
    assert max(map(len, shown.splitlines())) <= 80
    names = {tool["name"] for tool in cli.json("tools", "--category", "file")}
    assert names == {"Delete", "Edit", "Glob", "Grep", "ListDirectory", "Read", "Write"}


def test_one_tool_is_shown_with_its_parameters(cli: Cli) -> None:
    shown = cli.run("tools", "Add").stdout
    assert "integer, required. Another." in shown
    missing = cli.run("tools", "Subtract")
    assert missing.returncode == 1
    assert "There are: Add, Bash" in missing.stderr


@pytest.mark.parametrize("format", ["openai", "anthropic", "gemini", "ollama", "mcp"])
def test_schemas_are_json_in_every_format(cli: Cli, format: str) -> None:
    done = cli.run("tools", "--format", format)
    assert len(json.loads(done.stdout)) == sum(tool["enabled"] for tool in cli.json("tools"))


def test_an_unknown_format_is_a_usage_error(cli: Cli) -> None:
    done = cli.run("tools", "--format", "xml")
    assert done.returncode == 2
    assert "'xml' is not a format; there are openai" in done.stderr


def test_a_result_goes_to_a_pipe_as_it_is(cli: Cli) -> None:
    done = cli.run("run", "Bash", "command=cat notes.txt | wc -l")
    assert (done.returncode, done.stdout) == (0, "3\n")
    assert done.stderr == ""


def test_values_are_read_by_the_types_of_the_catalogue(cli: Cli) -> None:
    result = cli.json("run", "Add", "first=2", "b=40")
    assert result["output"] == 42
    assert result["success"] is True
    assert cli.json("show", result["id"])["parameters"] == {"a": 2, "b": 40}


def test_a_value_of_the_wrong_type_is_a_usage_error_and_sends_nothing(cli: Cli) -> None:
    done = cli.run("run", "Add", "a=two", "b=1", "--agent", "wrong-type")
    assert done.returncode == 2
    assert "a takes an integer" in done.stderr
    assert cli.lines("history", "--agent", "wrong-type") == []


def test_a_call_that_the_tool_refuses_says_everything_and_is_recorded(cli: Cli) -> None:
    done = cli.run("run", "Add", "a=1", "c=1", "--agent", "refused")
    assert done.returncode == 1
    assert "Missing required parameter: b" in done.stderr
    assert "Unknown parameter 'c'" in done.stderr
    assert "What it takes: forge-tools tools Add" in done.stderr
    (row,) = cli.lines("history", "--agent", "refused")
    assert (row["status"], row["error_code"]) == ("rejected", "VALIDATION_ERROR")


def test_an_unknown_tool_with_control_characters_is_shown_escaped(cli: Cli) -> None:
    done = cli.run("run", NASTY, "--agent", "nasty")
    assert done.returncode == 1
    assert "Unknown tool: Gr\\x1b[31mep\\x07" in done.stderr
    table = cli.run("history", "--agent", "nasty").stdout
    assert "Gr\\x1b[31mep" in table
    assert "\x1b" not in table


def test_a_failed_result_is_exit_code_1_with_its_error_code(cli: Cli) -> None:
    done = cli.run("run", "Read", "file_path=missing.txt")
    assert done.returncode == 1
    assert done.stdout == ""
    assert "missing.txt" in done.stderr
    assert cli.json("run", "Read", "file_path=missing.txt", code=1)["success"] is False


def test_dry_run_touches_nothing(cli: Cli) -> None:
    done = cli.run("run", "Bash", "command=touch made", "--dry-run")
    assert done.stdout.startswith("[Dry Run]")
    assert not (cli.folder / "made").exists()


def test_a_call_in_the_background_is_awaited_by_its_id(cli: Cli) -> None:
    begun = cli.json("run", "Wait", "seconds=1", "--background")
    assert begun["queue"] == "background"
    shown = cli.json("show", begun["id"], "--wait")
    assert (shown["status"], shown["output"]) == ("succeeded", "waited 1s")


def test_waiting_has_an_end_and_the_call_goes_on(cli: Cli) -> None:
    begun = cli.run("run", "Wait", "seconds=30", "--background").stdout.strip()
    done = cli.run("show", begun, "--timeout", "0.5")
    assert done.returncode == 1
    assert "It keeps running;" in done.stderr
    assert cli.json("cancel", begun[:23])["outcome"] == "requested"
    assert cli.json("show", begun, "--wait", code=1)["status"] == "cancelled"
    assert "already ended" in cli.run("cancel", begun).stdout


def test_a_timeout_says_where_it_came_from_and_what_celery_makes_of_it(cli: Cli) -> None:
    done = cli.run("run", "Block", "--timeout", "1")
    assert done.returncode == 1
    assert "Tool timed out after 1s" in done.stderr
    (row,) = cli.lines("history", "--tool", "Block", "--error-code", "TIMEOUT")
    shown = cli.run("show", row["id"]).stdout
    assert "1s, set by the call" in shown
    assert "soft 5s, hard 20s" in shown  # with the grace twice, and the lease
    assert "1 of 1" in shown


def test_a_call_that_nobody_serves_is_warned_about_and_cancelled_at_once(cli: Cli) -> None:
    begun = cli.run("run", "Add", "a=1", "b=1", "--queue", "nowhere", "--background")
    assert "No live worker serves queue nowhere" in begun.stderr
    problem = cli.run("doctor")
    assert problem.returncode == 1
    assert "1 call waits in queue nowhere, process lane, which no live worker serves" in " ".join(
        problem.stdout.split()
    )
    assert cli.json("cancel", begun.stdout.strip(), "--reason", "a test")["outcome"] == "cancelled"
    assert "a test" in cli.run("show", begun.stdout.strip()).stdout


async def test_a_call_of_a_tool_that_no_worker_hosts_any_more_is_warned_about(cli: Cli) -> None:
    gone = ToolSpec(name="Gone", description="Removed.", category=ToolCategory.OTHER)
    async with await open_store(f"sqlite:///{cli.home / 'forge.db'}") as store:
        await store.catalogue.publish([gone], "of yesterday")
    begun = cli.run("run", "Gone", "--background")
    assert "No live worker of queue background in lane process hosts Gone@1" in " ".join(begun.stderr.split())
    assert "(not hosted) Removed." in cli.run("tools").stdout
    assert cli.json("cancel", begun.stdout.strip())["outcome"] == "cancelled"
    assert cli.run("tools", "disable", "Gone").returncode == 0


@pytest.mark.parametrize(
    "numbers",
    [[signal.SIGINT], [signal.SIGTERM], [signal.SIGHUP], [signal.SIGINT] * 2, [signal.SIGINT, signal.SIGTERM]],
)
def test_an_interrupt_cancels_the_call_also_if_another_follows(cli: Cli, numbers: list[signal.Signals]) -> None:
    agent = f"interrupted-{'-'.join(number.name for number in numbers)}"
    with cli.start("run", "Wait", "seconds=50", "--agent", agent) as process:
        wait_until(lambda: any(row["status"] == "running" for row in cli.lines("history", "--agent", agent)), 30)
        for number in numbers:
            process.send_signal(number)
            time.sleep(0.01)  # a wrapper that passes on what the terminal sends to both
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Cancelled" in err
    (row,) = cli.lines("history", "--agent", agent)
    assert cli.json("show", row["id"], "--wait", code=1)["status"] == "cancelled"


def test_a_terminal_that_is_closed_cancels_the_call(cli: Cli) -> None:
    ours, theirs = pty.openpty()
    with cli.start(
        "run", "Wait", "seconds=50", "--agent", "left", stdin=theirs, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        wait_until(lambda: any(row["status"] == "running" for row in cli.lines("history", "--agent", "left")), 30)
        wait_until(lambda: os.read(ours, 1), 30)  # until it shows that on the terminal
        os.close(ours)
        process.send_signal(signal.SIGHUP)  # as the kernel does if the terminal is its own
        process.wait(60)
    (row,) = cli.lines("history", "--agent", "left")
    assert cli.json("show", row["id"], "--wait", code=1)["status"] == "cancelled"


def test_secrets_are_redacted_wherever_people_look(cli: Cli) -> None:
    done = cli.run("run", "Login", "user=ada", "password=hunter2-secret", "--agent", "secretive")
    assert "NO_ACCESS" in done.stderr
    (row,) = cli.lines("history", "--agent", "secretive")
    everything = done.stderr + str(row) + cli.run("show", row["id"]).stdout + str(cli.json("show", row["id"]))
    assert "hunter2" not in everything
    assert row["parameters"] == {"user": "ada", "password": "[redacted]"}


def test_history_pages_through_what_its_filters_leave(cli: Cli) -> None:
    for number in range(3):
        cli.run("run", "Add", f"a={number}", "b=0", "--agent", "pager", "--session", "s-1")
    newest = cli.lines("history", "--session", "s-1", "--limit", "2", "--since", "10m")
    assert [row["parameters"]["a"] for row in newest] == [2, 1]
    (oldest,) = cli.lines("history", "--session", "s-1", "--before", newest[-1]["id"], "--status", "succeeded")
    assert oldest["parameters"]["a"] == 0
    assert cli.lines("history", "--session", "s-1", "--category", "file") == []
    assert "No execution matches." in cli.run("history", "--session", "s-2").stdout


def test_an_invalid_id_says_what_one_is(cli: Cli) -> None:
    done = cli.run("show", "nonsense")
    assert done.returncode == 1
    assert "not an execution id" in done.stderr


def test_stats_count_what_was_run(cli: Cli) -> None:
    cli.run("run", "Add", "a=1", "b=1")
    numbers = cli.json("stats")
    add = next(one for one in numbers["calls"] if one["key"] == "Add")
    assert add["succeeded"] >= 1
    assert add["duration_ms"]["p50"] <= add["duration_ms"]["p99"]
    host = f"host.{socket.gethostname()}"
    assert {(worker["lane"], tuple(worker["queues"])) for worker in numbers["workers"]} == {
        ("async", ("default", "background", host)),
        ("process", ("default", host)),
        ("process", ("background", host)),
    }
    assert (numbers["stuck"], numbers["silent"]) == ([], [])
    assert max(map(len, cli.run("stats").stdout.splitlines())) <= 80


def test_figures_can_be_told_apart_and_narrowed(cli: Cli) -> None:
    cli.run("run", "Add", "a=1", "b=2", "--session", "figures")
    numbers = cli.json("stats", "--by", "hour", "--session", "figures", "--since", "1h")
    assert [one["calls"] for one in numbers["calls"]] == [1]
    assert "Calls by hour" in cli.run("stats", "--by", "hour").stdout


def test_an_export_is_whole_and_oldest_first(cli: Cli) -> None:
    for number in range(3):
        cli.run("run", "Add", f"a={number}", "b=0", "--session", "exported")
    file = cli.folder / "calls.csv"
    lines = cli.lines("export", "--session", "exported")
    assert [line["parameters"]["a"] for line in lines] == [0, 1, 2]
    assert cli.json("export", "--session", "exported", "--format", "csv", "--to", str(file))["executions"] == 3
    rows = list(csv.DictReader(file.read_text().splitlines()))
    assert [json.loads(row["parameters"])["a"] for row in rows] == [0, 1, 2]
    assert rows[0].keys() == lines[0].keys()
    assert not list(cli.folder.glob(".*.part"))


def test_an_export_to_who_stops_reading_ends_quietly(cli: Cli) -> None:
    cli.run("run", "Add", "a=1", "b=0")
    export = cli.start("export")
    assert export.stdout is not None
    export.stdout.close()
    _, errors = export.communicate(timeout=60)
    assert (export.returncode, errors) == (1, "")


def test_the_doctor_finds_a_live_worker_of_this_host_only(cli: Cli) -> None:
    assert cli.json("doctor", "--worker")["alive"] is True
    stranger = Cli(cli.folder, FORGE_HOSTNAME="elsewhere").run("doctor", "--worker")
    assert stranger.returncode == 1
    assert "No worker of elsewhere" in stranger.stdout


def test_the_doctor_looks_at_everything(cli: Cli) -> None:
    report = cli.run("doctor", "--output", "json")
    subjects = {finding["subject"] for finding in json.loads(report.stdout)["findings"]}
    assert {
        "python",
        "celery",
        "kombu",
        "ripgrep",
        "folder",
        "stack",
        "broker",
        "database",
        "clock",
        "worker",
        "queue",
    } <= subjects


def test_the_database_is_at_the_newest_version(cli: Cli) -> None:
    assert cli.json("db", "current")["is_current"] is True
    assert "Nothing to do" in cli.run("db", "upgrade").stdout
    refused = cli.run("db", "downgrade", "base")
    assert refused.returncode == 2
    assert "--yes" in refused.stderr


def test_a_terminal_sees_progress_and_escaped_output(cli: Cli) -> None:
    seen = on_a_terminal(cli, "run", "Wait", "seconds=6")
    assert "Wait runs on" in seen
    assert "waited 6s" in seen
    assert "\\x1b[31mthree" in on_a_terminal(cli, "run", "Bash", "command=printf '\\\\x1b[31mthree'")


def on_a_terminal(cli: Cli, *words: str) -> str:
    """Run a command on a pseudo-terminal; return all that it wrote there."""
    ours, theirs = pty.openpty()
    environment = {**cli.environment(), "TERM": "xterm"}
    process = subprocess.Popen(
        [*COMMAND, *words], cwd=cli.folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    seen = read_to_the_end(ours)
    assert process.wait(60) == 0, seen
    return seen


def test_the_home_of_the_stack_is_private(cli: Cli) -> None:
    assert cli.home.stat().st_mode & 0o077 == 0
