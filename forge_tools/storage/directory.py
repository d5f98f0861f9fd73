"""What a client must know before it calls, in one statement: tools, workspaces, encryption key, who serves what."""

import base64
import json
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any, NamedTuple, Self

from pydantic import ValidationError

from forge_tools.errors import own_words
from forge_tools.model.overview import ServerState, WorkerWalls
from forge_tools.model.tools import ToolSpec, tool_key
from forge_tools.schema import decode_json
from forge_tools.setting_types import QUEUE
from forge_tools.storage.rows import clean, spec_of

logger = logging.getLogger(__name__)


LIVE_SECONDS = 60.0
"""What a worker instance hosts is ignored after a longer silence."""


Read = Callable[..., Awaitable[Sequence[Sequence[Any]]]]
"""Takes the name of a read-only statement and its values; returns all rows."""


class PublicKey(NamedTuple):
    id: str
    public: bytes


class Withheld(NamedTuple):
    """Why calls of a tool would wait: the tier `asked` for, `whose` wish it is, and a worker that cannot give it."""

    asked: str
    whose: str
    hostname: str
    given: WorkerWalls


class Walls(NamedTuple):
    """Which tiers tools have, and which workers give.

    `tiers` are those of tools in the process lane, by name, and `given` those that its live workers give. All calls in
    `queues` run there, behind walls. No live worker claims calls of `withheld` tools, by (tool, queue, lane).
    """

    tiers: Mapping[str, str] = MappingProxyType({})
    given: frozenset[str] = frozenset()
    queues: frozenset[str] = frozenset()
    withheld: Mapping[tuple[str, str, str], Withheld] = MappingProxyType({})

    def tier_of(self, spec: ToolSpec) -> str:
        """Return the tier that calls of a tool get; on the embedded stack it may be less than the tool asks for."""
        tier = self.tiers.get(spec.name, "plain")
        if spec.lane == "async":
            return tier if spec.walls == "namespace" else "none"  # a body in this lane has none; its commands may
        is_less = tier != "plain" and bool(self.given) and tier not in self.given
        is_withheld = any(tool == spec.name for tool, *_ in self.withheld)
        return ("plain" if "plain" in self.given else "none") if is_less and not is_withheld else tier


ANY_TOOL = ""
"""In place of a tool where all calls of a queue are withheld."""


class LiveWorker(NamedTuple):
    """The row of a live worker; `tools` maps the name of each tool that it hosts to `version digest`."""

    hostname: str
    lane: str
    queues: Sequence[str]
    servers: Sequence[Any]
    walls: WorkerWalls
    tools: Mapping[str, str]

    @classmethod
    def of(cls, hostname: str, lane: str, *told: str) -> Self:
        queues, servers, walls, tools = map(decode_json, told)
        return cls(hostname, lane, queues, servers, walls_of(walls), tools)

    def hosts(self, key: str) -> bool:
        """Whether it claims calls of that tool, `name@major`. One that has published nothing yet is starting, and may."""
        name = key.rpartition("@")[0]
        return not self.tools or (name in self.tools and tool_key(name, self.tools[name]) == key)


class Directory(NamedTuple):
    """What a client knows before it calls.

    Tools are sorted by name, each in its default definition: the pinned one, else the one seen last; its lane is
    `process` if it was demoted or moved. `servers` are the MCP servers that live workers host, `queues` how many of
    those workers serve each (queue, lane).
    """

    enabled: Sequence[ToolSpec] = ()
    disabled: Sequence[ToolSpec] = ()
    hosts: Mapping[str, str | None] = MappingProxyType({})
    """Where each workspace is; None if it is shared."""
    has_sessions: bool = False
    """Whether any session has a workspace of its own."""
    encryption_key: PublicKey | None = None
    """The newest that is not retired."""
    servers: tuple[ServerState, ...] = ()
    queues: Mapping[tuple[str, str], int] = MappingProxyType({})
    walls: Walls = Walls()
    workers: Sequence[LiveWorker] = ()

    def is_hosted(self, key: str, queue: str | None = None, lane: str | None = None) -> bool:
        """Whether a live worker that serves queues hosts a tool at that `name@major`; in that queue and lane, if given."""
        serving = [
            one for one in self.workers if one.queues and queue in (None, *one.queues) and lane in (None, one.lane)
        ]
        return any(one.hosts(key) for one in serving)


class Directories:
    """Reads the directory of a database, and other facts that only some calls need."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._unreadable: set[str] = set()

    def definition(self, name: str, version: str, digest: str, spec: Any, *, is_moved: bool = False) -> ToolSpec | None:
        """Return the definition of a tool; None, and one warning, if newer code published it."""
        try:
            return spec_of(spec, digest, is_moved=is_moved)
        except ValidationError as error:
            if digest not in self._unreadable:
                self._unreadable.add(digest)
                first = error.errors(include_url=False, include_input=False)[0]
                logger.warning(
                    "Tool '%s' %s (%s) is left out: this version of forge-tools cannot read its definition (%s: %s). "
                    "Newer code published it; install that here, too.",
                    *(name, version, digest, ".".join(map(str, first["loc"])) or "spec", own_words(first["msg"])),
                )
            return None

    async def read(self, within: float = LIVE_SECONDS) -> Directory:
        """Read the directory. A live worker has not stopped and was seen `within` seconds.

        Of the hosts of a workspace, those with a live worker come first.
        """
        [[said]] = await self._read("directory", within=within)
        told = json.loads(said)
        enabled, disabled = list[ToolSpec](), list[ToolSpec]()
        for name, version, digest, is_enabled, is_moved, spec, _ in told["tools"] or ():
            found = self.definition(name, version, digest, decode_json(spec), is_moved=bool(is_moved))
            if found is not None:
                (enabled if is_enabled else disabled).append(found)
        hosts: dict[str, str | None] = {}
        for name, hostname, is_shared in told["workspaces"] or ():
            hosts.setdefault(name, None if is_shared else hostname)
        workers = [LiveWorker.of(*row) for row in told["workers"] or ()]
        return Directory(
            enabled,
            disabled,
            hosts,
            bool(told["has_sessions"]),
            PublicKey(told["key"][0], base64.b64decode(told["key"][1])) if told["key"] else None,
            tuple(state for one in workers for state in servers_of(one.hostname, one.servers)),
            Counter((queue, one.lane) for one in workers for queue in one.queues),
            Walls(
                {name: tier for name, *_, tier in told["tools"] or ()},
                frozenset(one.walls.tier for one in workers if one.lane == "process"),
                frozenset(queue for one in workers for queue in one.walls.queues),
                _withheld(workers),
            ),
            workers,
        )

    async def workspace_of(self, session_id: str) -> str | None:
        rows = await self._read("workspace_of_session", session_id=clean(session_id))
        return rows[0][0] if rows else None


def _withheld(workers: Sequence[LiveWorker]) -> dict[tuple[str, str, str], Withheld]:
    """Return what no live worker claims for want of walls: tools in a queue and lane, or all calls of a queue."""
    hosted = dict[tuple[str, str], set[str]]()
    for one in workers:
        for queue in one.queues:
            hosted.setdefault((queue, one.lane), {ANY_TOOL}).update(one.tools)
    found = dict[tuple[str, str, str], Withheld]()
    for one in workers:
        for name, said in one.walls.withheld.items():
            asked, _, whose = said.partition(" ")
            tool, queues = (ANY_TOOL, [name.removeprefix(QUEUE)]) if name.startswith(QUEUE) else (name, one.queues)
            for queue in queues:
                if tool not in hosted.get((queue, one.lane), ()):
                    found[tool, queue, one.lane] = Withheld(asked, whose, one.hostname, one.walls)
    return found


def walls_of(told: Mapping[str, Any]) -> WorkerWalls:
    """Read what a worker's row says of its walls; newer code may have added more."""
    names = WorkerWalls.__dataclass_fields__
    said = {name: value for name, value in told.items() if name in names}
    return WorkerWalls(**said | {"queues": tuple(said.get("queues", ()))})


def servers_of(hostname: str, states: Sequence[Any]) -> Iterator[ServerState]:
    """Yield the states that this version can read; newer code may have written others."""
    for told in states:
        with suppress(ValidationError):
            yield ServerState.model_validate(told).model_copy(update={"hostname": hostname})
