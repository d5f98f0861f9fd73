"""A server over HTTP with its own sessions, which it can forget; it answers in plain JSON as small servers do."""

import json
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in ("count", "forget", "break")]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "SessionServer"

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        method, params = message["method"], message.get("params") or {}
        self.server.seen.append((method, dict(self.headers)))
        if method == "initialize":
            session = uuid.uuid4().hex
            self.server.sessions.add(session)
            facts = {"capabilities": {"tools": {}}, "serverInfo": {"name": "sessions", "version": "1"}}
            self.reply(200, message, {"protocolVersion": "2025-11-25", **facts}, session)
        elif self.headers.get("mcp-session-id") not in self.server.sessions:
            self.reply(404, message, None)
        elif "id" not in message:
            self.reply(202, message, None)
        elif method == "tools/list":
            self.reply(200, message, {"tools": TOOLS})
        else:
            self.call(message, params["name"])

    def call(self, message: dict[str, Any], name: str) -> None:
        if name == "break":
            self.close_connection = True
            self.connection.close()
            return
        with self.server.one_counts:
            self.server.calls += 1
            number = self.server.calls
        if name == "forget":
            self.server.sessions.clear()
        self.reply(200, message, {"content": [{"type": "text", "text": str(number)}]})

    def do_GET(self) -> None:
        self.reply(405, {}, None)

    def do_DELETE(self) -> None:
        self.server.sessions.discard(str(self.headers.get("mcp-session-id")))
        self.reply(204, {}, None)

    def reply(self, status: int, message: dict[str, Any], result: Any, session: str = "") -> None:
        body = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode() if result else b""
        self.send_response(status)
        for name, value in {"content-type": "application/json" if body else "", "mcp-session-id": session}.items():
            if value:
                self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


class SessionServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # five by default: the kernel resets some of many that connect at once

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.sessions: set[str] = set()
        self.seen: list[tuple[str, dict[str, str]]] = []
        self.calls = 0
        self.one_counts = threading.Lock()
        self.url = f"http://127.0.0.1:{self.server_port}/mcp"
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05})

    def __enter__(self) -> "SessionServer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()
