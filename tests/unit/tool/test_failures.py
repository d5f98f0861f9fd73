"""Network failures, as common libraries raise them, are distinguished from errors of the tool itself."""

import asyncio
import inspect
import os
import pickle
import socket
import threading
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest
import requests

from forge_tools.errors import ErrorCode, ToolFailure
from forge_tools.model import Capabilities, ExecutionContext
from forge_tools.sandbox.walls.probe import given
from forge_tools.sandbox.walls.profile import Profile, needed_to_run
from forge_tools.tool.base import BaseTool, ToolCategory, ToolResult
from forge_tools.tool.executor import may_be_retried
from tests.walled import NOBODY, in_child

SECONDS = 0.3


class Fetch(BaseTool):
    """Fetch what a function of a library fetches."""

    name = "Fetch"
    category = ToolCategory.WEB
    capabilities = Capabilities(idempotent=True)
    parameters = ()

    def __init__(self, fetch: Callable[[], Awaitable[Any]]) -> None:
        self._fetch = fetch

    async def _execute(self, context: ExecutionContext) -> ToolResult:
        return ToolResult.ok(await self._fetch())


async def by_httpx(url: str) -> Any:
    async with httpx.AsyncClient(timeout=SECONDS) as client:
        return (await client.get(url)).raise_for_status().text


async def by_httpx_in_a_thread(url: str) -> Any:
    return await asyncio.to_thread(lambda: httpx.get(url, timeout=SECONDS).raise_for_status().text)


async def by_urllib(url: str) -> Any:
    def fetch() -> bytes:
        try:
            with urllib.request.urlopen(url, timeout=SECONDS) as answer:
                return answer.read()
        except urllib.error.HTTPError as error:  # it is an open answer, too
            error.close()
            raise

    return await asyncio.to_thread(fetch)


async def by_aiohttp(url: str) -> Any:
    timeout = aiohttp.ClientTimeout(total=SECONDS)
    async with aiohttp.ClientSession(timeout=timeout, raise_for_status=True) as session, session.get(url) as answer:
        return await answer.text()


async def by_requests(url: str) -> Any:
    def fetch() -> str:
        with requests.get(url, timeout=SECONDS) as answer:
            answer.raise_for_status()
            return answer.text

    return await asyncio.to_thread(fetch)


@pytest.fixture
def urls(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """What to fetch for each kind of trouble."""
    monkeypatch.setenv("NO_PROXY", "*")
    with closing(socket.create_server(("127.0.0.1", 0))) as silent, closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))  # and does not listen
        server = HTTPServer(("127.0.0.1", 0), Moody)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield {
            "refused": f"http://127.0.0.1:{free.getsockname()[1]}/",
            "unknown host": "http://no-such-host.invalid/",
            "unreachable": "http://255.255.255.255/",
            "timeout": f"http://127.0.0.1:{silent.getsockname()[1]}/",
            "no TLS": f"https://127.0.0.1:{server.server_port}/",
            "broken off": f"http://127.0.0.1:{server.server_port}/half",
            "status 500": f"http://127.0.0.1:{server.server_port}/500",
        }
        server.shutdown()
        server.server_close()


class Moody(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(500 if self.path == "/500" else 200)
        self.send_header("Content-Length", "0" if self.path == "/500" else "1000")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


LIBRARIES = [by_httpx, by_httpx_in_a_thread, by_urllib, by_aiohttp, by_requests]


@pytest.mark.parametrize("trouble", ["refused", "unknown host", "unreachable", "timeout", "no TLS", "broken off"])
@pytest.mark.parametrize("fetch", LIBRARIES)
async def test_a_network_failure_is_an_unavailable_service(
    urls: dict[str, str], context: ExecutionContext, fetch: Callable[[str], Awaitable[Any]], trouble: str
) -> None:
    result = await Fetch(lambda: fetch(urls[trouble])).execute(context)

    assert result.error_code == ErrorCode.SERVICE_UNAVAILABLE, result.error
    assert result.error.startswith("Service unavailable: ")
    assert result.metadata["retryable"] is True


@pytest.mark.parametrize("fetch", LIBRARIES)
async def test_an_answer_with_a_status_is_no_network_failure(
    urls: dict[str, str], context: ExecutionContext, fetch: Callable[[str], Awaitable[Any]]
) -> None:
    assert (await Fetch(lambda: fetch(urls["status 500"])).execute(context)).error_code == ErrorCode.EXECUTION_ERROR


@pytest.mark.parametrize("url", ["nowhere", "gopher://127.0.0.1/"])
@pytest.mark.parametrize("fetch", LIBRARIES)
async def test_an_invalid_address_is_no_network_failure(
    context: ExecutionContext, fetch: Callable[[str], Awaitable[Any]], url: str
) -> None:
    assert (await Fetch(lambda: fetch(url)).execute(context)).error_code == ErrorCode.EXECUTION_ERROR


async def test_streams_of_asyncio_are_the_network_too(context: ExecutionContext, urls: dict[str, str]) -> None:
    port = int(urls["refused"].rstrip("/").rpartition(":")[2])
    for host in ("127.0.0.1", "localhost", "no-such-host.invalid", "255.255.255.255"):
        result = await Fetch(lambda host=host: asyncio.open_connection(host, port)).execute(context)
        assert result.error_code == ErrorCode.SERVICE_UNAVAILABLE, result.error


async def test_waiting_in_vain_for_something_else_is_no_network_failure(context: ExecutionContext) -> None:
    result = await Fetch(lambda: asyncio.wait_for(asyncio.Event().wait(), 0.01)).execute(context)

    assert (result.error, result.error_code) == ("Unexpected error: TimeoutError", ErrorCode.EXECUTION_ERROR)


async def test_a_tool_whose_failures_may_leave_something_behind_does_not_ask_for_another_try(
    context: ExecutionContext, urls: dict[str, str]
) -> None:
    tool = Fetch(lambda: by_httpx(urls["refused"]))
    tool.capabilities = Capabilities()

    result = await tool.execute(context)

    assert (result.error_code, "retryable" in result.metadata) == (ErrorCode.SERVICE_UNAVAILABLE, False)


class Refusing(Fetch):
    """Fail as its author means it."""

    capabilities = Capabilities()


@pytest.mark.parametrize("retry", [False, True])
@pytest.mark.parametrize("kind", [Refusing, Fetch])
async def test_what_an_author_means_to_say_is_said_as_it_stands(
    context: ExecutionContext, kind: type[Fetch], retry: bool
) -> None:
    async def refuse() -> None:
        raise ToolFailure("There is no city of that name.", hint="Try Paris.", retry=retry, details={"asked": "Pari"})

    result = await kind(refuse).execute(context)

    assert (result.error, result.error_code) == ("There is no city of that name.", ErrorCode.TOOL_ERROR)
    assert (result.error_details, result.metadata["hint"]) == ({"asked": "Pari"}, "Try Paris.")
    can = kind.capabilities
    assert may_be_retried(result.error_code, result.metadata["retryable"], can) is (retry and can.idempotent)
    assert result.diagnosis is not None
    assert result.diagnosis.frames[-1].function.endswith("refuse")


def test_a_failure_keeps_what_it_says_when_it_comes_from_another_process() -> None:
    found = pickle.loads(pickle.dumps(ToolFailure("no", hint="h", retry=True, details=[1])))

    assert (str(found), found.hint, found.retry, found.details) == ("no", "h", True, [1])


def by_a_unix_socket(_: str) -> Any:
    return socket.socket(socket.AF_UNIX)


def by_a_signal(_: str) -> Any:
    return os.kill(1, 0)


def by_a_file(_: str) -> Any:
    return Path("/root/x").read_text()


@pytest.mark.parametrize(
    ("reach", "network", "way_out"),
    [
        (by_httpx, False, "accesses_network=True"),
        (lambda _: by_httpx("http://name.invalid/"), False, "accesses_network=True"),
        (by_httpx_in_a_thread, False, "accesses_network=True"),
        (by_urllib, False, "accesses_network=True"),
        (by_aiohttp, False, "accesses_network=True"),
        (lambda _: socket.getaddrinfo("name.invalid", 80), False, "accesses_network=True"),
        (by_a_unix_socket, False, 'declares walls="plain"'),
        (by_a_unix_socket, True, 'declares walls="plain"'),
        (by_a_file, False, "Capabilities(paths=...)"),
        (by_a_signal, False, "See docs/walls.md"),
        (lambda _: socket.getaddrinfo("name.invalid", 80), True, "Service unavailable"),
    ],
)
def test_what_walls_refuse_says_what_to_declare_and_is_not_tried_again(
    reach: Callable[[str], Any], network: bool, way_out: str, tmp_path: Path
) -> None:
    def inside() -> object:
        Profile(needed_to_run(()), network=network).apply(str(tmp_path))

        async def fetch() -> Any:
            done = reach("http://127.0.0.1:9/")
            return await done if inspect.isawaitable(done) else done

        result = asyncio.run(Fetch(fetch).execute(ExecutionContext(working_dir=".")))
        return (
            f"{result.error} {may_be_retried(result.error_code, result.metadata.get('retryable'), Fetch.capabilities)}"
        )

    said = in_child(inside, uid=NOBODY)

    if given().tier != "landlock":
        assert said in {"ENOSYS", "EPERM"}
    else:
        assert way_out in said
        assert said.endswith(str(way_out == "Service unavailable"))
        assert ("walls=landlock" in said) is (way_out != "Service unavailable")
