"""Who may talk to the HTTP endpoint: holders of the token, and no web page that found its way to this machine."""

import hmac
import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit

from forge_tools.mcp.departure import App, Receive, Scope, Send


class Guard:
    """Refuses requests before anything reads them.

    Where only this machine is served (`is_local`), Host must name it: a page whose name was pointed here says its own. Origin,
    which browsers send, must be of this machine, or that of the endpoint itself. A token, if there is one, must be sent.
    """

    def __init__(self, app: App, *, token: str, is_local: bool) -> None:
        self._app = app
        self._token = token
        self._is_local = is_local

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        refusal = self._refusal(headers)
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            await _refuse(send, *refusal)

    def _refusal(self, headers: Mapping[str, str]) -> tuple[int, str] | None:
        host, origin = headers.get("host", ""), headers.get("origin")
        if self._is_local and not is_loopback(_name(f"//{host}")):
            return 421, "The Host header names another machine than this one."
        if origin is not None and not self._may_embed(origin, host):
            return 403, "Pages of that origin may not use this server."
        if self._token and not self._has_token(headers.get("authorization", "")):
            return 401, "Send the token of this server: Authorization: Bearer ..."
        return None

    def _may_embed(self, origin: str, host: str) -> bool:
        return origin.partition("://")[2] == host or (self._is_local and is_loopback(_name(origin)))

    def _has_token(self, sent: str) -> bool:
        scheme, _, given = sent.partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode("latin-1"), self._token.encode())


def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine as only it can be reached from itself."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _name(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


async def _refuse(send: Send, status: int, said: str) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8")]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": said.encode()})
