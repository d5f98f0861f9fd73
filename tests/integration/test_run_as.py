"""A worker that root starts, with FORGE_RUN_AS: its bodies are somebody else, before their walls, and root's things are closed to them."""

import grp
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forge_tools.client import ExecutorClient
from forge_tools.model import ExecutionContext
from tests.fleet import ROOT, Fleet
from tests.session_folder import is_open
from tests.waiting import is_alive, wait_until
from tests.walled import NOBODY, in_child

TOOLS = str(ROOT / "tests/run_as_tools.py")
RUN_AS = "nobody"


def open_python() -> str | None:
    """A Python of this version that everybody may run: that of a developer may lie in a closed home."""
    usual = sys.executable, *(f"/usr/{folder}bin/python3.{sys.version_info.minor}" for folder in ("", "local/"))
    found = in_child(lambda: next((one for one in usual if os.access(one, os.X_OK)), ""), uid=NOBODY)
    return found or None


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A place that others reach: those of pytest are closed."""
    made = Path(tempfile.mkdtemp(dir="/tmp"))
    made.chmod(0o755)
    for name, mode in (("tmp", 0o1777), ("workspace", 0o2775), ("closed", 0o755)):
        (made / name).mkdir()
        (made / name).chmod(mode)
    (made / "secret").write_text("of root")
    (made / "secret").chmod(0o600)
    (made / "async_timeout.py").write_text("from asyncio import timeout\n")  # redis wants it before Python 3.11.3
    yield made
    shutil.rmtree(made)


@pytest.fixture(scope="module", autouse=True)
def _python(folder: Path) -> Iterator[None]:
    """Have what is started be a Python that everybody reaches."""
    python = open_python()
    if os.getuid() or python is None or not is_open(ROOT):
        assert "FORGE_RUN_AS" in refusal(folder, "workspace")
        pytest.xfail("only root becomes another user, who has to reach Python and this code")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", python)
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), sysconfig.get_path("purelib"), str(folder)]))
        patch.setenv("TMPDIR", str(folder / "tmp"))
        yield


@pytest.fixture(scope="module")
def fleet(folder: Path, valkey_server: Any) -> Iterator[Fleet]:
    os.chown(folder / "workspace", -1, NOBODY)
    valkey_server.flush()
    fleet = Fleet(folder / "workspace", valkey_server.url, f"sqlite:///{folder / 'forge.db'}", kill_grace=0.5)
    for lane in ("async", "process"):
        fleet.start(lane, tools=TOOLS, from_nothing=True, run_as=RUN_AS)
    yield fleet
    fleet.stop()


@pytest.fixture
def context(folder: Path) -> ExecutionContext:
    return ExecutionContext(working_dir=str(folder / "workspace"), timeout=30)


def refusal(folder: Path, workspace: str) -> str:
    """What a worker says that does not start."""
    settings = {
        "FORGE_RUN_AS": RUN_AS,
        "FORGE_DATABASE_URL": f"sqlite:///{folder / 'x.db'}",
        "FORGE_BROKER_URL": "redis+socket:///none",
        "FORGE_WORKSPACE": str(folder / workspace),
        "FORGE_HOME": str(folder),
    }
    command = [sys.executable, "-P", "-m", "workers", "--lane", "process"]
    environment = os.environ | settings
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, "Traceback" in done.stderr) == (78, False), done.stderr
    return done.stderr


async def test_bodies_and_their_programs_are_that_user_with_and_without_walls(
    client: ExecutorClient, context: ExecutionContext, folder: Path
) -> None:
    asked = {"secret": str(folder / "secret"), "workspace": str(folder / "workspace")}
    for name in ("seen", "seen_from_behind_walls"):
        result = await client.execute(name, context, **asked)
        assert result.success, result.error
        said = result.output
        assert said["ids"] == [NOBODY] * 6
        assert said["capabilities"] == [0, 0]
        assert said["of a program"][:2] == [str(NOBODY)] * 2
        assert said["of a program"][2] != "/root"
        assert (said["secret"], said["workspace"]) == ("Permission denied", "open")
    made = folder / "workspace" / f"by-{NOBODY}"
    assert (made.stat().st_uid, made.stat().st_gid) == (NOBODY, NOBODY)


async def test_bytes_of_that_user_are_kept_by_root_in_a_folder_that_is_closed_to_him(
    client: ExecutorClient, context: ExecutionContext, folder: Path
) -> None:
    for name, data in (("picture", range(256)), ("picture_from_behind_walls", range(255, -1, -1))):
        result = await client.execute(name, context)
        assert result.success, result.error
        assert await result.files[0].bytes() == bytes(data) * 5000
    kept = folder / "forge.db.artifacts"
    assert {(path.stat().st_uid, path.stat().st_mode & 0o077) for path in (kept, *kept.iterdir())} == {(0, 0)}


async def test_what_file_tools_make_as_root_is_for_that_user_to_change(
    client: ExecutorClient, context: ExecutionContext, fleet: Fleet, folder: Path
) -> None:
    written = await client.execute("Write", context, file_path="below/made.txt", content="made\n")
    assert written.success, written.error
    made = folder / "workspace" / "below" / "made.txt"
    result = await client.execute("append", context, file=str(made))
    assert (result.output, result.error) == ("made\nmore\n", None)
    assert made.stat().st_uid == 0
    logs = [worker.log.read_bytes() for worker in fleet.workers]
    assert [b"FORGE_RUN_AS gives one to the process lane only" in log for log in logs] == [True, False]


async def test_what_a_body_leaves_behind_is_ended_though_it_is_another_users(
    client: ExecutorClient, context: ExecutionContext, folder: Path
) -> None:
    file = folder / "workspace" / "pid"
    hurried = context.model_copy(update={"timeout": 2})
    result = await client.execute("leave_a_daemon", hurried, file=str(file))
    assert result.error_code == "TIMEOUT", result
    wait_until(lambda: not is_alive(int(file.read_text())), 20, "the daemon lives")


def test_a_workspace_that_he_cannot_write_to_is_refused_at_the_start(folder: Path) -> None:
    line = f"chgrp -R {grp.getgrgid(NOBODY).gr_name} {folder}/closed && chmod -R g+rwX {folder}/closed"
    assert line in refusal(folder, "closed")
