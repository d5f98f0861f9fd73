"""A local server that plays a provider: it checks each request as the real one does, and answers from a script."""

import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, Self

Event = tuple[str | None, dict[str, Any] | str]


@dataclass(frozen=True)
class Say:
    """What the model says next. `calls` are (id, name, arguments as text); a stream that `breaks` lacks its end."""

    text: str = ""
    calls: tuple[tuple[str, str, str], ...] = ()
    stop: str | None = None
    breaks: bool = False
    extra: tuple[dict[str, Any], ...] = ()


class RefusedError(Exception):
    """The request is one that the provider answers with status 400."""


class ModelServer(ABC):
    """One provider on a port of its own; `requests` are the bodies that came, refused ones too."""

    path: ClassVar[str]

    def __init__(self, *script: Say) -> None:
        self.script = list(script)
        self.requests: list[dict[str, Any]] = []
        self.refusals: list[str] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                server.serve(self)

            def log_message(self, *_: Any) -> None:
                """Stay silent."""

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def serve(self, http: BaseHTTPRequestHandler) -> None:
        request = json.loads(http.rfile.read(int(http.headers["content-length"])))
        self.requests.append(request)
        try:
            require(self.knows(http.path), f"Unknown path {http.path}")
            self.check(request, http.headers)
        except RefusedError as error:
            self.refusals.append(str(error))
            _send(http, 400, "application/json", json.dumps(self.error(str(error))))
            return
        say = self.script.pop(0)
        if self.wants_stream(http.path, request):
            _send(http, 200, "text/event-stream", "".join(map(_sse, self._cut(say, request))))
        else:
            _send(http, 200, "application/json", json.dumps(self.body(say, request)))

    def knows(self, path: str) -> bool:
        return path == self.path

    def wants_stream(self, path: str, request: dict[str, Any]) -> bool:
        return bool(request.get("stream"))

    def _cut(self, say: Say, request: dict[str, Any]) -> list[Event]:
        events = list(self.events(say, request))
        return events[: len(events) // 2] if say.breaks else events

    def error(self, message: str) -> dict[str, Any]:
        return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}}

    @abstractmethod
    def check(self, request: dict[str, Any], headers: Any) -> None: ...

    @abstractmethod
    def body(self, say: Say, request: dict[str, Any]) -> dict[str, Any]: ...

    @abstractmethod
    def events(self, say: Say, request: dict[str, Any]) -> Iterator[Event]: ...


def fragments(text: str, size: int = 4) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


def require(condition: object, message: str) -> None:
    if not condition:
        raise RefusedError(message)


def _sse(event: Event) -> str:
    name, data = event
    text = data if isinstance(data, str) else json.dumps(data)
    return (f"event: {name}\n" if name else "") + f"data: {text}\n\n"


def _send(http: BaseHTTPRequestHandler, status: int, kind: str, text: str) -> None:
    payload = text.encode()
    http.send_response(status)
    http.send_header("content-type", kind)
    http.send_header("content-length", str(len(payload)))
    http.end_headers()
    http.wfile.write(payload)
