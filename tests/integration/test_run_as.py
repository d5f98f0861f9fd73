"""A worker that root starts, with FORGE_RUN_AS: its bodies are somebody else, before their walls, and root's things are closed to them."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from forge_tools.client import ExecutorClient
from forge_tools.model import ExecutionContext
from tests.fleet import ROOT, Fleet
from tests.waiting import is_alive, wait_until
from tests.walled import NOBODY, in_child

TOOLS = str(ROOT / "tests/run_as_tools.py")
RUN_AS = "nobody"


def open_python() -> str | None:
    """A Python of this version that everybody may run: that of a developer may lie in a closed home."""
    usual = sys.executable, *(f"/usr/{folder}bin/python3.{sys.version_info.minor}" for folder in ("", "local/"))
    found = in_child(lambda: next((one for one in usual if os.access(one, os.X_OK)), ""), uid=NOBODY)
    return found or None


@pytest.fixture
def folder() -> Iterator[Path]:
    """A place that others reach: those of pytest are closed."""
    made = Path(tempfile.mkdtemp(dir="/tmp"))
    made.chmod(0o755)
    (made / "tmp").mkdir()
    (made / "tmp").chmod(0o1777)
    (made / "workspace").mkdir()
    yield made
    shutil.rmtree(made)


@pytest.fixture
def fleet(folder: Path, valkey_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    python = open_python()
    if os.getuid() or python is None:
        assert refusal(folder).startswith("FORGE_RUN_AS")
        pytest.xfail("only root becomes another user, who has to reach Python")
    monkeypatch.setattr(sys, "executable", python)
    (folder / "async_timeout.py").write_text("from asyncio import timeout\n")  # redis wants it before Python 3.11.3
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), sysconfig.get_path("purelib"), str(folder)]))
    monkeypatch.setenv("TMPDIR", str(folder / "tmp"))
    fleet = Fleet(folder / "workspace", valkey_url, f"sqlite:///{folder / 'forge.db'}", kill_grace=0.5)
    yield fleet
    fleet.stop()


def refusal(folder: Path) -> str:
    """What a worker says that does not start."""
    environment = {**os.environ, "FORGE_RUN_AS": RUN_AS, "FORGE_DATABASE_URL": f"sqlite:///{folder / 'x.db'}",
                   "FORGE_BROKER_URL": "redis+socket:///none", "FORGE_WORKSPACE": str(folder / "workspace"), "FORGE_HOME": str(folder)}  # fmt: skip
    command = [sys.executable, "-P", "-m", "workers", "--lane", "process"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, "Traceback" in done.stderr) == (78, False), done.stderr
    return done.stderr.rpartition(": FORGE_RUN_AS")[1].removeprefix(": ") + done.stderr.rpartition(": FORGE_RUN_AS")[2]


async def test_bodies_and_their_programs_are_that_user_with_and_without_walls(fleet: Fleet, folder: Path) -> None:
    (folder / "secret").write_text("of root")
    (folder / "secret").chmod(0o600)
    os.chown(folder / "workspace", -1, NOBODY)
    (folder / "workspace").chmod(0o2775)
    fleet.start("process", tools=TOOLS, from_nothing=True, run_as=RUN_AS)
    asked = {"secret": str(folder / "secret"), "workspace": str(folder / "workspace")}
    async with ExecutorClient(fleet.settings) as client:
        for name in ("seen", "seen_from_behind_walls"):
            result = await client.execute(
                name, ExecutionContext(working_dir=str(folder / "workspace"), timeout=30), **asked
            )
            assert result.success, result.error
            said = result.output
            assert said["ids"] == [NOBODY] * 6
            assert said["capabilities"] == [0, 0]
            assert said["of a program"][:2] == [str(NOBODY)] * 2
            assert said["of a program"][2] != "/root"
            assert said["secret"] == "Permission denied"
            assert said["workspace"] == "open"
    [made] = [one for one in (folder / "workspace").iterdir() if one.name.startswith("by-")]
    assert (made.name, made.stat().st_uid, made.stat().st_gid) == (f"by-{NOBODY}", NOBODY, NOBODY)


async def test_what_file_tools_make_as_root_is_for_that_user_to_change(fleet: Fleet, folder: Path) -> None:
    workspace = folder / "workspace"
    os.chown(workspace, -1, NOBODY)
    workspace.chmod(0o2775)
    logs = [fleet.start(lane, tools=TOOLS, from_nothing=True, run_as=RUN_AS).log for lane in ("async", "process")]
    context = ExecutionContext(working_dir=str(workspace), timeout=30)
    async with ExecutorClient(fleet.settings) as client:
        written = await client.execute("Write", context, file_path="below/made.txt", content="made\n")
        assert written.success, written.error
        result = await client.execute("append", context, file=str(workspace / "below" / "made.txt"))
    assert (result.output, result.error) == ("made\nmore\n", None)
    assert (workspace / "below" / "made.txt").stat().st_uid == 0
    assert [b"FORGE_RUN_AS gives one to the process lane alone" in log.read_bytes() for log in logs] == [True, False]


async def test_what_a_body_leaves_behind_is_ended_though_it_is_another_users(fleet: Fleet, folder: Path) -> None:
    os.chown(folder / "workspace", NOBODY, NOBODY)
    fleet.start("process", tools=TOOLS, from_nothing=True, run_as=RUN_AS)
    file = folder / "workspace" / "pid"
    async with ExecutorClient(fleet.settings) as client:
        result = await client.execute(
            "leave_a_daemon", ExecutionContext(working_dir=str(folder / "workspace"), timeout=2), file=str(file)
        )
    assert result.error_code == "TIMEOUT", result
    wait_until(lambda: not is_alive(int(file.read_text())), 20, "the daemon lives")


def test_a_workspace_that_he_cannot_write_to_is_refused_at_the_start(fleet: Fleet, folder: Path) -> None:
    said = refusal(folder)
    assert f"chgrp -R nogroup {folder}/workspace && chmod -R g+rwX {folder}/workspace" in said
