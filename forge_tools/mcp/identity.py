"""Who sends a request: the session and the client's name, as its calls are recorded."""

import hashlib
from typing import Any

from mcp.server.context import ServerRequestContext

from forge_tools.mcp.offer import Caller, Offer, agent_name

SESSION_HEADER = "mcp-session-id"


def caller_of(ctx: ServerRequestContext[Any, Any], offer: Offer) -> Caller:
    """The caller of a request; the session of its HTTP connection where there is one, else that of this server."""
    client = ctx.session.client_params
    agent = agent_name(client.client_info.name, client.client_info.version) if client else None
    session = ctx.request.headers.get(SESSION_HEADER) if ctx.request is not None else None
    return Caller(_disguised(session) if session else offer.session_id, agent)


def _disguised(session_id: str) -> str:
    """Whoever knows the id of a session may use it, so the history gets another that only this one leads to."""
    return f"mcp-{hashlib.blake2b(session_id.encode(), digest_size=12).hexdigest()}"
