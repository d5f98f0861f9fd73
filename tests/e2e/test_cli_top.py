"""`forge-tools top` on real workers, in real terminals."""

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from forge_tools.cli.services import with_store
from forge_tools.config import Settings
from forge_tools.storage.migrate import upgrade
from tests.contract.calls import submitted
from tests.contract.proxy import Proxy
from tests.e2e.cli_driver import TOOLS, Cli, working
from tests.e2e.terminal import ENTER, LEAVE, Terminal
from tests.waiting import wait_until

EVIL = "[red]evil[/red]\x1b[31m\x1b[2J\x07"


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory, broker: str) -> Iterator[Cli]:
    """Workers that ran two calls, and one that nobody serves."""
    folder = tmp_path_factory.mktemp("top")
    (folder / "mytools.py").write_text(TOOLS)
    with working(Cli(folder, FORGE_BROKER_URL=broker)) as cli:
        for _ in range(2):
            cli.run("run", "Add", "a=1", "b=2")
        cli.run("run", "Wait", "seconds=1", "--queue", "gpu", "--background")
        yield cli


def test_one_look_as_json_has_workers_queues_figures_and_what_needs_attention(cli: Cli) -> None:
    seen = cli.json("top", "--once", "--window", "600")

    assert {worker["lane"] for worker in seen["workers"]} == {"async", "process"}
    assert {"hostname", "running", "silent_seconds", "last_seen_at"} <= seen["workers"][0].keys()
    assert [(one["waiting"], one["workers"]) for one in seen["queues"] if one["queue"] == "gpu"] == [(1, 0)]
    assert [(one["key"], one["calls"], one["success_rate"]) for one in seen["tools"]] == [("Add", 2, 1.0)]
    assert seen["total"]["duration_ms"]["p95"] > 0
    [concern] = seen["attention"]
    assert (concern["level"], concern["way_out"]) == ("now", "forge-tools worker --lane async --queues gpu")


@pytest.mark.parametrize("words", [("top",), ("top", "--once")])
def test_without_a_terminal_it_looks_once(cli: Cli, words: tuple[str, ...]) -> None:
    done = cli.run(*words)

    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    assert "which no live worker serves" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_a_terminal_shows_it_live_in_a_screen_of_its_own_until_ctrl_c(cli: Cli) -> None:
    with Terminal(cli, "top", "--interval", "0.2") as terminal:
        wait_until(lambda: len(terminal.frames) > 3, 60, lambda: terminal.written)
        assert terminal.shows("forge-tools top")
        assert terminal.shows("default, background")
        assert terminal.end() == 0

    assert (terminal.written.count(ENTER), terminal.written.count(LEAVE)) == (1, 1)
    assert terminal.written.endswith(LEAVE)
    assert "Traceback" not in terminal.written


def test_it_follows_the_size_of_its_terminal_at_once(cli: Cli) -> None:
    with Terminal(cli, "top", "--interval", "60", size=(40, 120)) as terminal:
        wait_until(lambda: terminal.shows("free slots"), 60, lambda: terminal.written)

        terminal.resize(20, 60)

        wait_until(lambda: not terminal.shows("free slots"), 40, lambda: terminal.frames[-1])
        assert max(map(len, terminal.frames[-1].splitlines())) <= 60
        assert terminal.end(signal.SIGTERM) == 0


@pytest.mark.parametrize("environment", [{"TERM": "dumb"}, {"NO_COLOR": "1"}])
def test_a_terminal_that_wants_no_colours_gets_none(cli: Cli, environment: dict[str, str]) -> None:
    is_dumb = "TERM" in environment
    with Terminal(cli, "top", "--window", "600", **environment) as terminal:
        wait_until(lambda: "gpu" in terminal.written and "Add" in terminal.written, 60, lambda: terminal.written)
        code = terminal.process.wait(60) if is_dumb else terminal.end()

    assert code == 0
    assert (ENTER in terminal.written) != is_dumb
    assert "\x1b[31m" not in terminal.written
    assert "\x1b[36m" not in terminal.written


def test_hostile_names_reach_no_terminal(tmp_path: Path) -> None:
    settings = Settings.load(database_url=f"sqlite:///{tmp_path / 'forge.db'}")
    upgrade(settings.database)
    with_store(lambda store: submitted(store, tool=EVIL, tool_key=f"{EVIL}@1", queue=EVIL), settings)

    with Terminal(Cli(tmp_path, FORGE_DATABASE_URL=settings.database), "top") as terminal:
        wait_until(lambda: terminal.shows("[red]evil[/red]\\x1b"), 60, lambda: terminal.written)
        assert terminal.end() == 0

    assert "\x1b[2J" not in terminal.written
    assert "\x07" not in terminal.written


def test_a_database_that_is_not_there_at_the_start_is_an_error(tmp_path: Path) -> None:
    done = Cli(tmp_path).run("top")

    assert done.returncode == 69
    assert "forge-tools up" in done.stderr


@pytest.mark.parametrize("outage", ["away", "frozen"])
async def test_a_database_that_goes_away_is_said_and_it_goes_on_when_it_is_back(
    fresh_postgres: str, tmp_path: Path, outage: str
) -> None:
    upgrade(fresh_postgres)
    async with Proxy(fresh_postgres) as proxy:
        with Terminal(Cli(tmp_path, FORGE_DATABASE_URL=proxy.url), "top", "--interval", "0.3") as terminal:
            await until(terminal, "No worker has a heartbeat.")

            if outage == "away":
                await proxy.go_away()
            else:
                proxy.freeze()
            await until(terminal, "The following is")
            assert terminal.shows("No worker has a heartbeat."), "what was seen last stays"
            proxy.thaw()
            if outage == "away":
                await proxy.come_back()
            frames = len(terminal.frames)
            await asyncio.to_thread(
                wait_until,
                lambda: len(terminal.frames) > frames and not terminal.shows("The following is"),
                60,
                lambda: terminal.frames[-1],
            )

            assert await asyncio.to_thread(terminal.end) == 0
    assert "Traceback" not in terminal.written


async def until(terminal: Terminal, text: str) -> None:
    await asyncio.to_thread(wait_until, lambda: terminal.shows(text), 60, lambda: terminal.written[-3000:])
