"""Who may use the HTTP endpoint, and where it may listen."""

import socket
from typing import Any

import pytest

from forge_tools.errors import ConfigurationError
from forge_tools.mcp.http import Guard, Http, is_loopback

TOKEN = "a secret"


async def ask(guard: Guard, **headers: str) -> int:
    """Send one request through the guard; the application behind it answers 200."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    pairs = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    await guard({"type": "http", "headers": pairs}, receive, send)
    return int(sent[0]["status"])


async def app(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "127.0.0.1:8765"}, 200),
        ({"host": "localhost"}, 200),
        ({"host": "[::1]:1"}, 200),
        ({"host": "evil.example:8765"}, 421),
        ({"host": "127.0.0.1.evil.example"}, 421),
        ({"host": "localhost@evil.example"}, 421),
        ({}, 421),
        ({"host": "localhost:1", "origin": "http://localhost:3000"}, 200),
        ({"host": "localhost:1", "origin": "https://evil.example"}, 403),
        ({"host": "localhost:1", "origin": "null"}, 403),
        ({"host": "localhost:1", "origin": "http://["}, 403),
    ],
)
async def test_on_this_machine_only_its_own_names_and_pages_are_served(headers: dict[str, str], status: int) -> None:
    assert await ask(Guard(app, token="", is_local=True), **headers) == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"authorization": f"Bearer {TOKEN}"}, 200),
        ({"authorization": f"bearer {TOKEN}"}, 200),
        ({"authorization": "Bearer another"}, 401),
        ({"authorization": f"Basic {TOKEN}"}, 401),
        ({"authorization": "Bearer ümlaut"}, 401),
        ({}, 401),
        ({"authorization": f"Bearer {TOKEN}", "origin": "http://tools.example"}, 200),
        ({"authorization": f"Bearer {TOKEN}", "origin": "http://localhost"}, 403),
    ],
)
async def test_elsewhere_the_token_is_asked_for(headers: dict[str, str], status: int) -> None:
    assert await ask(Guard(app, token=TOKEN, is_local=False), host="tools.example", **headers) == status


async def test_a_token_may_be_of_any_letters() -> None:
    sent = "Bearer geheimnüß".encode().decode("latin-1")

    assert await ask(Guard(app, token="geheimnüß", is_local=False), host="x", authorization=sent) == 200


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST", "127.0.0.1", "127.1.2.3", "::1"])
def test_names_of_this_machine_are_known(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::", "192.168.0.1", "example.com", "localhost.example"])
def test_other_names_are_not_taken_for_this_machine(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "192.0.2.1:0", "example.com:0"])
def test_without_a_token_it_listens_on_this_machine_only(address: str) -> None:
    with pytest.raises(ConfigurationError, match="FORGE_MCP_TOKEN"):
        Http.bind(address, "", 1000)


def test_with_a_token_it_listens_for_others() -> None:
    http = Http.bind("0.0.0.0:0", TOKEN, 1000)
    with http.listening:
        assert not http.is_local


def test_a_name_of_this_machine_is_no_loopback_address_even_if_it_means_one(monkeypatch: pytest.MonkeyPatch) -> None:
    create = socket.create_server
    monkeypatch.setattr(socket, "create_server", lambda at, **how: create(("127.0.0.1", at[1]), **how))
    http = Http.bind("box:0", TOKEN, 1000)
    with http.listening:
        assert not http.is_local, "clients say the name, which Host must match then"


@pytest.mark.parametrize("address", ["8765x", "localhost", "127.0.0.1:", "127.0.0.1:99999", "127.0.0.1:-1"])
def test_an_invalid_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigurationError, match="HOST:PORT"):
        Http.bind(address, "", 1000)


def test_a_port_that_is_taken_is_said_so() -> None:
    http = Http.bind("127.0.0.1:0", "", 1000)
    with http.listening, pytest.raises(ConfigurationError, match="Cannot listen at"):
        Http.bind(f"127.0.0.1:{http.listening.getsockname()[1]}", "", 1000)


def test_a_port_alone_means_this_machine() -> None:
    http = Http.bind(":0", "", 1000)
    with http.listening:
        assert http.is_local
        assert http.url == f"http://127.0.0.1:{http.listening.getsockname()[1]}/mcp"
