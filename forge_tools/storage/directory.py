"""What a client must know before it calls, in one statement: tools, workspaces, encryption key, who serves what."""

import base64
import json
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from pydantic import ValidationError

from forge_tools.model import ServerState, ToolSpec, WorkspacePlaces
from forge_tools.schema import decode_json
from forge_tools.storage.rows import clean, spec_of

logger = logging.getLogger(__name__)


LIVE_SECONDS = 60.0
"""What a worker instance hosts is ignored after a longer silence."""


Read = Callable[..., Awaitable[Sequence[Sequence[Any]]]]
"""Takes the name of a read-only statement and its values; returns all rows."""


class PublicKey(NamedTuple):
    """The public half of a key that clients encrypt with."""

    id: str
    public: bytes


class Directory(NamedTuple):
    """Tools are sorted by name, each in its default definition: the pinned one, else the one seen last.

    Demoted ones have lane `process`. `servers` are the MCP servers that live workers host, `queues` how many of those
    workers serve each (queue, lane).
    """

    enabled: list[ToolSpec]
    disabled: list[ToolSpec]
    places: WorkspacePlaces
    encryption_key: PublicKey | None
    """The newest that is not retired."""
    servers: tuple[ServerState, ...]
    queues: Counter[tuple[str, str]]


class Directories:
    """Reads the directory of a database, and other facts that only some calls need."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._unreadable: set[str] = set()

    def definition(
        self, name: str, version: str, digest: str, spec: Any, *, is_demoted: bool = False
    ) -> ToolSpec | None:
        """Return the definition of a tool; None, and one warning, if newer code published it."""
        try:
            return spec_of(spec, digest, is_demoted=is_demoted)
        except ValidationError as error:
            if digest not in self._unreadable:
                self._unreadable.add(digest)
                first = error.errors(include_url=False, include_input=False)[0]
                logger.warning(
                    "Tool '%s' %s (%s) is left out: this version of forge-tools cannot read its definition (%s: %s). "
                    "Newer code published it; install that here, too.",
                    *(name, version, digest, ".".join(map(str, first["loc"])) or "spec", first["msg"]),
                )
            return None

    async def read(self, within: float = LIVE_SECONDS) -> Directory:
        """Read the directory. A live worker has not stopped and was seen `within` seconds.

        Of the hosts of a workspace, those with a live worker come first.
        """
        [[said]] = await self._read("directory", within=within)
        told = json.loads(said)
        enabled, disabled = list[ToolSpec](), list[ToolSpec]()
        for name, version, digest, is_enabled, is_demoted, spec in told["tools"] or ():
            found = self.definition(name, version, digest, decode_json(spec), is_demoted=bool(is_demoted))
            if found is not None:
                (enabled if is_enabled else disabled).append(found)
        hosts: dict[str, str | None] = {}
        for name, hostname, is_shared in told["workspaces"] or ():
            hosts.setdefault(name, None if is_shared else hostname)
        workers = [
            (host, lane, decode_json(queues), decode_json(states))
            for host, lane, queues, states in told["workers"] or ()
        ]
        return Directory(
            enabled,
            disabled,
            WorkspacePlaces(hosts=hosts, has_sessions=bool(told["has_sessions"])),
            PublicKey(told["key"][0], base64.b64decode(told["key"][1])) if told["key"] else None,
            tuple(state for host, _, _, states in workers for state in servers_of(host, states)),
            Counter((queue, lane) for _, lane, queues, _ in workers for queue in queues),
        )

    async def workspace_of(self, session_id: str) -> str | None:
        """Return the workspace that a session was bound to, if any."""
        rows = await self._read("workspace_of_session", session_id=clean(session_id))
        return rows[0][0] if rows else None


def servers_of(hostname: str, states: Sequence[Any]) -> Iterator[ServerState]:
    """Yield the states that this version can read; newer code may have written others."""
    for told in states:
        with suppress(ValidationError):
            yield ServerState.model_validate(told).model_copy(update={"hostname": hostname})
