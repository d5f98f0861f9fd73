"""The arena: what a body can reach in each tier on a real embedded stack. The table of `docs/walls.md` is the expectation."""

import fcntl
import json
import os
import re
import shlex
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile

import psutil
import pytest

from forge_tools.config import Settings
from forge_tools.sandbox.processes.spawner import LAUNCHER
from forge_tools.sandbox.walls.privileges import drop_capabilities
from forge_tools.sandbox.walls.probe import given
from tests.e2e.cli_driver import Cli, Up
from tests.fleet import ROOT

TIERS = ("plain", "landlock")
ROW = re.compile(
    r"^\| (?P<attack>[^|]+) \| (?P<plain>yes|no) \| (?P<landlock>yes|no)"
    r" \| (?P<command>yes|no|-) \| (?P<namespace>yes|no|-) \|",
    re.MULTILINE,
)

ON_THE_NETWORK = ("connect to a port of this machine", "send a datagram to this machine")
SIGNALS, SIGNALS_SINCE = ("signal the engine", "signal another process"), 6  # of Landlock
OF_THE_ENGINE = (
    "read the environment of the engine",
    "open the memory of the engine",
    "see what the engine has open",
    "trace the engine",
)


def expected(tier: str) -> dict[str, str]:
    page = (ROOT / "docs/walls.md").read_text()
    found = {row["attack"]: row[tier] for row in ROW.finditer(page)}
    if given().no_namespaces.startswith("unshare"):
        found["make a user namespace"] = "no"
    if tier in {"landlock", "command"} and given().landlock_abi < SIGNALS_SINCE:
        found |= dict.fromkeys(SIGNALS, "yes")
    return found


@contextmanager
def running(base: Path, **settings: str) -> Iterator[tuple[Cli, Up]]:
    for name in ("here", "other", "home"):
        (base / name).mkdir()
    (base / "other/file").write_text("of another")
    (base / "home/file").write_text("of the user")
    workspaces = json.dumps({"other": {"roots": [str(base / "other")]}})
    places = {"XDG_CACHE_HOME": str(base / "cache"), "HOME": str(base / "home")}
    cli = Cli(base / "here", FORGE_WORKSPACES=workspaces, **places, **settings)
    cli.settings["FORGE_WALLS_PATHS"] = json.dumps([f"{ROOT}:ro"])  # commands import the attacks
    up = Up(cli, "--tools", str(ROOT / "tests/walled_tools.py"), from_nothing=True).wait_ready()
    try:
        yield cli, up
    finally:
        assert up.stop() == 0
    assert not [one for one in Path(os.environ.get("TMPDIR", "/tmp")).glob("forge-scratch-*") if _is_left(one, up)]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cli, Up]]:
    with running(tmp_path_factory.mktemp("w")) as stack:
        yield stack


def _is_left(folder: Path, up: Up) -> bool:
    """Whether nobody holds the lock on it any more; stacks of other tests hold theirs."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(handle)
    return folder.stat().st_mtime >= up.log.stat().st_ctime


@pytest.fixture
def cli(stack: tuple[Cli, Up]) -> Cli:
    return stack[0]


@pytest.fixture
def targets(cli: Cli) -> Iterator[dict[str, object]]:
    with aims(cli) as found:
        yield found


@contextmanager
def aims(cli: Cli) -> Iterator[dict[str, object]]:
    settings = Settings.load(home=cli.home, workspace=cli.folder)
    ready, is_ready = os.pipe()
    if (other := os.fork()) == 0:
        drop_capabilities()  # as bodies have none either
        os.close(is_ready)
        signal.pause()
    os.close(is_ready)
    with os.fdopen(ready) as waiting:
        waiting.read()
    with NamedTemporaryFile(dir="/tmp") as file, socket.socket() as port, socket.socket(socket.AF_UNIX) as abstract:
        port.bind(("127.0.0.1", 0))
        abstract.bind(f"\0forge-arena-{os.getpid()}")
        for one in (port, abstract):
            one.listen()
        yield {
            "key": str(next(path for path in settings.keys_folder.iterdir() if path.is_file())),
            "audit": str(settings.embedded_audit_key),
            "database": settings.database.removeprefix("sqlite:///"),
            "broker": settings.broker.removeprefix("redis+socket://"),
            "other": other,
            "workspace": str(cli.folder.parent / "other"),
            "home": str(cli.folder.parent / "home"),
            "temporary": file.name,
            "touched": str(cli.folder.parent / "other/file"),
            "port": port.getsockname()[1],
            "abstract": f"forge-arena-{os.getpid()}",
        }
    os.kill(other, signal.SIGKILL)
    os.waitpid(other, 0)


@pytest.mark.parametrize("tier", TIERS)
def test_each_tier_holds_what_the_page_says_and_nothing_else(cli: Cli, targets: dict[str, object], tier: str) -> None:
    said = cli.json("run", f"attack_from_{tier}", f"on:={json.dumps(targets)}", "--timeout", "60")

    assert said["output"] == expected(tier if given().tier == "landlock" else "plain")


def reached_by_commands(cli: Cli, up: Up, targets: dict[str, object]) -> tuple[str, dict[str, str]]:
    """The tier of commands, and what one reaches."""
    walls = cli.json("run", "Bash", "command=:")["metadata"]["walls"]
    launcher = next(one for one in map(psutil.Process, up.tree()) if LAUNCHER in one.cmdline())
    on = json.dumps({**targets, "engine": launcher.ppid()})
    command = f"{shlex.quote(sys.executable)} -m tests.walled_tools {shlex.quote(on)}"
    return walls, json.loads(cli.json("run", "Bash", f"command={command}")["output"])


def expected_of_commands(tier: str) -> dict[str, str]:
    of_threads = {name: cell for name, cell in expected("namespace").items() if cell == "-"}
    if tier == "plain" and os.getuid() == 0:  # whose commands then have the capabilities of root
        of_threads |= dict.fromkeys(OF_THE_ENGINE, "yes")
    return expected("command" if tier == "landlock" else tier) | of_threads


def test_commands_reach_what_the_page_says_and_nothing_else(stack: tuple[Cli, Up], targets: dict[str, object]) -> None:
    walls, said = reached_by_commands(*stack, targets)

    assert walls == given().of_commands("namespace")
    assert said == expected_of_commands(walls)


@pytest.mark.parametrize("network", ["host", "none"])
def test_commands_of_a_machine_without_namespaces_reach_what_the_page_says(tmp_path: Path, network: str) -> None:
    landlock = "landlock" if given().tier == "landlock" else "plain"
    if (landlock, network) == ("plain", "none"):
        with pytest.raises(AssertionError, match="FORGE_EGRESS=none cannot be kept"):
            running(tmp_path, FORGE_EGRESS=network).__enter__()
        return
    with running(tmp_path, FORGE_EGRESS=network, FORGE_WITHOUT_NAMESPACES="1") as (cli, up), aims(cli) as targets:
        walls, said = reached_by_commands(cli, up, targets)
        [listed] = [tool["tier"] for tool in cli.json("tools", "list") if tool["name"] == "Bash"]

    assert (walls, listed) == (landlock, landlock)
    assert said == expected_of_commands(landlock) | (dict.fromkeys(ON_THE_NETWORK, "no") if network == "none" else {})


def test_a_refusal_names_the_path_and_the_settings(cli: Cli) -> None:
    path = cli.folder.parent / "other/file"
    said = cli.run("run", "read_walled", f"path={path}").stderr

    assert f"'{path}'" in said.replace("\n", "")
    assert all(word in said for word in ("FORGE_WALLS_PATHS", "paths=", "walls=landlock"))
    assert "accesses_network=True" in cli.run("run", "connect_walled", "port=9").stderr


def test_no_call_sees_the_workspace_of_another_whichever_child_it_gets(cli: Cli) -> None:
    (cli.folder / "mine").write_text("mine")
    other = cli.folder.parent / "other"
    inside = {"mine": (cli.folder / "mine", ()), "of another": (other / "file", ("--workspace", "other"))}
    for _ in range(2):  # with one child, which is replaced each time
        for word, (path, here) in inside.items():
            outside = next(one for one, _ in inside.values() if one != path)
            assert cli.json("run", "read_walled", f"path={path}", *here)["output"] == word
            assert "Permission denied" in cli.run("run", "read_walled", f"path={outside}", *here).stderr


def test_the_code_tools_work_behind_their_walls(cli: Cli) -> None:
    (cli.folder / "code.py").write_text("def searched() -> None: ...\n")

    assert "code.py:1" in cli.run("run", "SearchCode", "query=searched").stdout
