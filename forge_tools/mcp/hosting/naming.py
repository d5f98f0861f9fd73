"""What the tool of a server is called here: the same on every host and at every start, whatever else there is."""

import re
from hashlib import sha256

MAX_NAME = 64
"""Characters that providers take."""

_HEAD = 40
_FOREIGN = re.compile(r"[^A-Za-z0-9_-]")


def tool_prefix(server: str) -> str:
    """What the names of all tools of a server begin with."""
    return _FOREIGN.sub("_", f"mcp__{server}__")[:_HEAD]


def tool_name(server: str, tool: str) -> str:
    """Return `mcp__server__tool`, with a hash of the two where that would be too long or could mean another pair too.

    It depends on nothing but the two, so that a tool which comes or goes renames no other.
    """
    plain = f"mcp__{server}__{tool}"
    name = _FOREIGN.sub("_", plain)
    if name == plain and len(name) <= MAX_NAME and "__" not in f"{server}_":
        return name
    mark = sha256(f"{server}\0{tool}".encode("utf-8", "surrogatepass")).hexdigest()[:8]
    if len(name) + len(mark) + 1 <= MAX_NAME:
        return f"{name}_{mark}"
    head = f"{name[:_HEAD]}_{mark}_"
    return head + name[len(head) - MAX_NAME :]
