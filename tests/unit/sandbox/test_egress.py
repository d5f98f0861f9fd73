"""The proxy of commands that may reach certain hosts: whom it connects to, what it refuses, and that it withstands its clients."""

import asyncio
import os
import resource
import socket
from collections.abc import AsyncIterator, Sequence

import pytest

from forge_tools.config import Settings
from forge_tools.errors import ConfigurationError
from forge_tools.sandbox.web.egress import MOST_CONNECTIONS, Egress, covers, variables
from tests.waiting import reached


@pytest.mark.parametrize(
    ("entry", "reached_by", "closed_to"),
    [
        ("api.example.com", [("api.example.com", 443), ("api.example.com", 80)], [("api.example.com", 22)]),
        ("api.example.com", [], [("example.com", 443), ("x.api.example.com", 443), ("xapi.example.com", 443)]),
        ("*.example.org", [("a.example.org", 443), ("a.b.example.org", 80)], [("example.org", 443)]),
        ("*.example.org", [], [("evilexample.org", 443), ("example.org.evil.com", 443)]),
        ("db.example.org:5432", [("db.example.org", 5432)], [("db.example.org", 443)]),
    ],
)
def test_an_entry_covers_a_name_or_those_below_it(
    entry: str, reached_by: list[tuple[str, int]], closed_to: list[tuple[str, int]]
) -> None:
    assert all(covers(entry, *place) for place in reached_by)
    assert not any(covers(entry, *place) for place in closed_to)


def test_the_setting_is_read_as_people_write_it() -> None:
    settings = Settings.load(egress=" API.example.com, *.example.org:8443,api.example.com ")

    assert settings.egress == "api.example.com,*.example.org:8443"
    assert variables(settings.egress)["https_proxy"] == "http://127.0.0.1:3128"
    assert variables("none") == variables("host") == {}


@pytest.mark.parametrize(
    "text",
    ["https://example.com", "*", "*.", "a b", "example.com:0", "example.com:70000", "a.*.com", "host, a.com", "-"],
)
def test_what_is_no_host_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigurationError, match="FORGE_EGRESS"):
        Settings.load(egress=text)
    with pytest.raises(ConfigurationError, match="FORGE_EGRESS_OF: Bash"):
        Settings.load(egress_of={"Bash": text})


def test_a_network_is_set_for_what_starts_programs_alone() -> None:
    settings = Settings.load(egress_of={"Bash": " A.test ", "queue:low": "none", "category:mcp": "host"})

    assert settings.egress_of == {"Bash": "a.test", "queue:low": "none", "category:mcp": "host"}
    for name in ("Fetch", "category:web"):
        with pytest.raises(ConfigurationError, match=f"{name} starts no programs .* this is for Bash"):
            Settings.load(egress_of={name: "none"})
    with pytest.raises(ConfigurationError, match=r"FORGE_EGRESS_OF: queue:low.*no network is given. Write host, none"):
        Settings.load(egress_of={"queue:low": " , "})


class Service:
    """A server that answers with what it is sent, and the proxy before it; names are looked up in `addresses`."""

    def __init__(self) -> None:
        self.addresses: dict[str, list[str]] = {}
        self.connections = 0

    async def start(self, *hosts: str) -> None:
        self._server = await asyncio.start_server(self._echo, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        network = ",".join(host.replace("PORT", str(self.port)) for host in hosts)
        self.egress = Egress(network, resolve=self._resolve)
        listener = socket.create_server(("127.0.0.1", 0))
        self.place = listener.getsockname()
        self.egress.serve(listener)

    async def stop(self) -> None:
        await self.egress.close()
        self._server.close()

    async def ask(self, head: str, *more: bytes) -> bytes:
        reader, writer = await asyncio.open_connection(*self.place)
        writer.write(head.replace("PORT", str(self.port)).encode("latin-1"))
        answer = b""
        for part in more:
            answer += await reader.readuntil(b"\r\n\r\n") if not answer else b""
            writer.write(part)
        if more:
            writer.write_eof()
        answer += await reader.read()
        writer.close()
        return answer

    async def _resolve(self, host: str, port: int) -> Sequence[str]:
        if host not in self.addresses:
            raise socket.gaierror(-2, "Name or service not known")
        return self.addresses[host]

    async def _echo(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        for _ in range(10_000):
            data = await reader.read(1 << 16)
            writer.write(data)
            if not data or data.startswith((b"GET", b"POST")):
                break
        await writer.drain()
        writer.close()


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    service = Service()
    service.addresses = {"api.test": ["127.0.0.1"], "sub.example.test": ["127.0.0.1"], "down.test": ["127.0.0.9"]}
    await service.start("api.test:PORT", "*.example.test:PORT", "unknown.test:PORT", "down.test:PORT")
    yield service
    await service.stop()


async def test_a_tunnel_carries_bytes_in_both_directions(service: Service) -> None:
    sent = b"\x00\xff" * 200_000

    answer = await service.ask("CONNECT api.test:PORT HTTP/1.1\r\nHost: api.test\r\n\r\n", sent)

    assert answer == b"HTTP/1.1 200 Connection established\r\n\r\n" + sent


async def test_a_plain_request_arrives_without_what_was_meant_for_the_proxy(service: Service) -> None:
    head = "GET http://API.test:PORT/path?q=1 HTTP/1.1\r\nHost: api.test\r\nProxy-Authorization: Basic eA==\r\nConnection: keep-alive\r\n\r\n"

    answer = await service.ask(head)

    assert answer == b"GET /path?q=1 HTTP/1.1\r\nConnection: close\r\nHost: api.test\r\n\r\n"


@pytest.mark.parametrize(
    ("head", "status", "said"),
    [
        ("CONNECT evil.test:PORT HTTP/1.1\r\n\r\n", 403, "evil.test:PORT is not among the hosts"),
        ("CONNECT api.test:22 HTTP/1.1\r\n\r\n", 403, "api.test:22 is not among the hosts"),
        ("CONNECT api.test.:22 HTTP/1.1\r\n\r\n", 403, "api.test:22 is not among the hosts"),
        ("CONNECT 127.0.0.1:PORT HTTP/1.1\r\n\r\n", 403, "127.0.0.1:PORT is not among the hosts"),
        ("CONNECT sub.example.test:PORT HTTP/1.1\r\n\r\n", 403, "is not public, and only a pattern allows that name"),
        ("GET http://evil.test/ HTTP/1.1\r\n\r\n", 403, "evil.test:80 is not among the hosts"),
        ("CONNECT unknown.test:PORT HTTP/1.1\r\n\r\n", 502, "cannot be reached"),
        ("CONNECT down.test:PORT HTTP/1.1\r\n\r\n", 502, "cannot be reached"),
        ("GET / HTTP/1.1\r\n\r\n", 400, "takes CONNECT and http:// URLs"),
        ("GET ftp://api.test/ HTTP/1.1\r\n\r\n", 400, "takes CONNECT and http:// URLs"),
        ("CONNECT api.test HTTP/1.1\r\n\r\n", 400, "takes CONNECT and http:// URLs"),
        ("CONNECT api.test:99999999 HTTP/1.1\r\n\r\n", 403, "is not among the hosts"),
        ("nonsense\r\n\r\n", 400, "takes CONNECT and http:// URLs"),
        ("\xff\x00\x01\r\n\r\n", 400, "takes CONNECT and http:// URLs"),
        (f"GET http://api.test/{'x' * 100_000} HTTP/1.1\r\n\r\n", 400, "takes CONNECT and http:// URLs"),
    ],
)
async def test_what_it_does_not_pass_on_is_answered_with_the_reason(
    service: Service, head: str, status: int, said: str
) -> None:
    answer = (await service.ask(head)).decode()

    assert answer.startswith(f"HTTP/1.1 {status} ")
    assert said.replace("PORT", str(service.port)) in answer
    assert bool(service.egress.refused) == (status == 403)
    assert service.connections == 0


async def test_clients_that_say_nothing_or_come_in_hundreds_take_no_more_than_their_share(service: Service) -> None:
    silent = [await asyncio.open_connection(*service.place) for _ in range(MOST_CONNECTIONS + 20)]
    closed = [reader for reader, _ in silent[MOST_CONNECTIONS:]]

    assert [await reader.read() for reader in closed] == [b""] * 20
    for _, writer in silent:
        writer.close()

    async def is_served() -> bool:
        return b" 403 " in await service.ask("CONNECT evil.test:443 HTTP/1.1\r\n\r\n")

    await reached(is_served, 30, "nobody is served any more")


async def test_a_worker_without_a_handle_to_spare_serves_again_once_it_has_one(service: Service) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as waiting:
        os.close(free := os.dup(0))
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
        try:
            waiting.connect(service.place)
            for _ in range(10):  # turns of the loop, in the first of which nobody can be accepted
                await asyncio.sleep(0)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)

    assert b" 403 " in await service.ask("CONNECT evil.test:443 HTTP/1.1\r\n\r\n")


async def test_closing_ends_connections_and_gives_the_port_back(service: Service) -> None:
    reader, writer = await asyncio.open_connection(*service.place)
    writer.write(f"CONNECT api.test:{service.port} HTTP/1.1\r\n\r\n".encode())
    await reader.readuntil(b"\r\n\r\n")

    await service.egress.close()

    assert await reader.read() == b""
    writer.close()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(*service.place)


async def test_the_same_place_is_noted_once_and_at_most_fifty_are(service: Service) -> None:
    for number in [1, 1, *range(2, 61)]:
        await service.ask(f"CONNECT evil-{number}.test:443 HTTP/1.1\r\n\r\n")

    assert service.egress.refused == [f"evil-{number}.test:443" for number in range(1, 51)]
