"""The catalogue as a client knows it: a snapshot, read on connecting and again when a call shows that it is old."""

import asyncio
import time
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Self

from forge_tools.client.connection import NOT_CONNECTED, Connection
from forge_tools.errors import ConfigurationError, ErrorCode, InvalidCallError
from forge_tools.model.overview import THE_TOOL, ServerState, told_of
from forge_tools.model.places import ShellRecord, ShellStatus, host_queue, serving_command
from forge_tools.model.tools import Lane, Schema, ToolCategory, ToolSpec, ToolVersion
from forge_tools.schema import shown, suggestion
from forge_tools.schema.providers import render, require_format
from forge_tools.secrets.encryption import Encryptor
from forge_tools.storage import ToolChangedError
from forge_tools.storage.directory import ANY_TOOL, Directory, Withheld

REFRESH_INTERVAL = 1.0
"""When a snapshot refuses a call, it is first read again if it is older than so many seconds."""

SERVED_INTERVAL = 5.0
"""For how many seconds the count of who serves what is used."""

NOTHING = Directory()

Place = tuple[str, str, str]
"""A queue, a lane, and the key of a tool whose calls wait there, or ANY_TOOL."""

ANOTHER_QUEUE = "Call it in another queue, or change FORGE_WALLS_OF there (docs/walls.md)"


class Snapshot:
    """Every enabled tool, by name and alias, and what else a client must know, as of when this was read from SQL."""

    def __init__(self, found: Directory = NOTHING) -> None:
        self._found = found
        self.has_sessions = found.has_sessions
        self.servers = found.servers
        self.workers = found.queues
        """How many live workers serve each (queue, lane)."""
        self.walls_decide = bool(found.walls.queues or found.walls.withheld)
        """Whether walls decide where some calls run, or that they cannot."""
        self.sessions: dict[str, str | None] = {}
        """The workspaces of sessions, as far as they were looked up since this was read."""
        self.specs = tuple(sorted(found.enabled, key=lambda spec: spec.name))
        self._by_name = {alias: spec for spec in self.specs for alias in spec.aliases}
        # Last, since a tool's own name goes before another tool's alias.
        self._by_name.update({spec.name: spec for spec in self.specs})

    @cached_property
    def encryptor(self) -> Encryptor | None:
        """What encrypts secrets for the workers; None if nobody made a key."""
        key = self._found.encryption_key
        return None if key is None else Encryptor(key.public)

    def after(self, changed: ToolChangedError) -> Self:
        """Return a snapshot with what an insert reported about a tool."""
        current = [] if changed.current is None else [changed.current]
        enabled, disabled = (
            [spec for spec in specs if spec.name != changed.tool_name] + (current if is_its else [])
            for specs, is_its in ((self.specs, changed.is_enabled), (self._found.disabled, not changed.is_enabled))
        )
        snapshot = type(self)(self._found._replace(enabled=enabled, disabled=disabled))
        snapshot.sessions = self.sessions
        return snapshot

    def find(self, name: str) -> ToolSpec | None:
        return self._by_name.get(name)

    def find_disabled(self, name: str) -> ToolSpec | None:
        return next((spec for spec in self._found.disabled if name in (spec.name, *spec.aliases)), None)

    def schemas(self, format: str, category: ToolCategory | None = None) -> list[Schema]:
        """Return schemas in a provider's format, of all tools or one category.

        Raises:
            ValueError: for an unknown format.
        """
        require_format(format)  # also if there is nothing to render
        return [render(spec, format) for spec in self.specs if category is None or spec.category == category]

    def queue_of(self, workspace: object) -> str | None:
        """Return the queue of the host that a workspace is bound to; None if it is shared.

        Raises:
            InvalidCallError: no worker ever had it.
        """
        hosts = self._found.hosts
        if isinstance(workspace, str) and workspace in hosts:
            host = hosts[workspace]
            return None if host is None else host_queue(host)
        known = ", ".join(sorted(hosts)[:20]) or "none; workers are given them in FORGE_WORKSPACES"
        raise InvalidCallError(
            f"Unknown workspace: {shown(workspace)}{suggestion(workspace, hosts)}. Known workspaces: {known}",
            code=ErrorCode.WORKSPACE_NOT_FOUND,
        )

    def unanswered(self, asked: Iterable[Place]) -> Iterator[str]:
        """Say which of those calls no live worker could answer, why, and the ways out."""
        for queue, lane, key in sorted(asked):
            name = key.rpartition("@")[0]
            if key == ANY_TOOL and (queue, lane) not in self.workers:
                yield (
                    f"No live worker serves queue {queue} in lane {lane}; calls wait there until they expire. "
                    f"Start one: {serving_command(queue, lane)}"
                )
            elif key != ANY_TOOL and (queue, lane) in self.workers and not self._found.is_hosted(key, queue, lane):
                yield (
                    f"No live worker of queue {queue} in lane {lane} hosts {key}; its calls wait until one does, or "
                    f"expire{told_of(name, self.servers)}. Start a worker that hosts it, or hide it from models: "
                    f"forge-tools tools disable {name}"
                )

    def lane_of(self, spec: ToolSpec, queue: str) -> Lane:
        """Where a call of that tool runs, in a queue whose calls may all have to run behind walls.

        Raises:
            InvalidCallError: no live worker gives the walls that it is to have.
        """
        walls, lane = self._found.walls, spec.lane
        if lane == "async" and queue in walls.queues:
            if spec.bound_because is not None:
                said = f"{spec.name} cannot have the walls that queue {queue} asks for: {spec.bound_because}"
                raise _unwalled(f"{said}. {ANOTHER_QUEUE}")
            lane = "process"
        if (of_tool := walls.withheld.get((spec.name, queue, lane))) is not None:
            raise _unwalled(_withheld(spec, of_tool, f"queue {queue}, {lane} lane"))
        if (of_queue := walls.withheld.get((ANY_TOOL, queue, lane))) is not None:
            said = f"Queue {queue} asks for walls={of_queue.asked}, and no live worker that serves it gives them"
            raise _unwalled(f"{said}: {of_queue.hostname} gives {of_queue.given}. {ANOTHER_QUEUE}")
        return lane


def _withheld(spec: ToolSpec, withheld: Withheld, where: str) -> str:
    """Say why a call would wait in vain, and which setting would allow less."""
    less = "landlock" if withheld.asked == "namespace" else "plain"
    setting = f"""set FORGE_WALLS_OF='{{"{spec.walled_as}": "{less}"}}'"""
    change = setting if withheld.whose == THE_TOOL else f"change {withheld.whose}"
    is_bound = spec.lane == "async" and spec.bound_because and withheld.asked != "namespace"
    why = f", and {spec.bound_because}" if is_bound else ""
    return (
        f"{spec.name} is to have walls={withheld.asked}, as {withheld.whose} says, and no live worker of {where}, gives them: "
        f"{withheld.hostname} gives {withheld.given}{why}. To allow less, {change} there (docs/walls.md)"
    )


def _unwalled(said: str) -> InvalidCallError:
    return InvalidCallError(said, code=ErrorCode.WALLS_NOT_AVAILABLE)


def unreachable(host: str, seconds: float | None, shell: ShellRecord | None) -> str:
    """Say why a call to the host of a shell would wait in vain; `seconds` is None if it never had a worker."""
    if seconds is None:
        return f"Host '{host}' is unknown: it never had a worker. Compare the id with those that ListShells shows."
    known = "" if shell is None else f" {shell.id} ({shown(shell.command)}) {_last_known(shell)}"
    return (
        f"Host '{host}' cannot be reached: its workers have been silent for {seconds:.0f} s.{known} "
        "Try again in a minute, or do without it; ListShells shows what is known."
    )


def _last_known(shell: ShellRecord) -> str:
    match shell.status:
        case ShellStatus.RUNNING:
            return "was running at its last report, and may still run there."
        case ShellStatus.LOST:
            return "is lost: whether it still runs is unknown."
        case _:
            end = f"code {shell.exit_code}" if shell.exit_code is not None else f"signal {shell.signal}"
            return f"has ended ({shell.status}, {end}); its output is on that host."


class Catalogue:
    """Which tools exist, who serves which queue, and how to enable, disable and pin tools."""

    def __init__(self, connection: Connection, lease: float) -> None:
        self._connection = connection
        self._lease = lease
        self.snapshot = self._unread = Snapshot()
        self.read_at = 0.0
        """When the read of this snapshot began, on the monotonic clock."""
        self._refreshing = asyncio.Lock()

    async def refresh(self) -> None:
        """Read the catalogue again, and who serves what: a worker not seen for a lease serves nothing."""
        began = time.monotonic()
        found = await self._connection.store.directories.read(self._lease)
        if began >= self.read_at:  # otherwise a read that began later has already ended, and knows more
            self.snapshot, self.read_at = Snapshot(found), began

    async def refresh_since(self, moment: float) -> None:
        """Make sure that the snapshot was read after `moment`; concurrent callers share the next read."""
        async with self._refreshing:
            if self.read_at < moment:
                await self.refresh()

    def learn(self, changed: ToolChangedError) -> None:
        """Record what an insert reported about a tool."""
        self.snapshot = self.snapshot.after(changed)

    async def workspace_of(self, session_id: str) -> str | None:
        """Return the workspace that a session is bound to; looked up once per snapshot."""
        sessions = self.snapshot.sessions
        if session_id not in sessions:
            sessions[session_id] = await self._connection.store.directories.workspace_of(session_id)
        return sessions[session_id]

    def specs(self) -> list[ToolSpec]:
        """Return the enabled tools as data, by name; no I/O."""
        return list(self._read.specs)

    def servers(self) -> tuple[ServerState, ...]:
        """Return the MCP servers that live workers host, and their states; no I/O."""
        return self._read.servers

    def schemas(self, format: str = "openai", category: ToolCategory | None = None) -> list[Schema]:
        """Return schemas of all enabled tools, or those of a category, in a provider's format; no I/O.

        Raises:
            ValueError: for an unknown format.
        """
        return self._read.schemas(format, category)

    async def enable(self, tool: str) -> None:
        """Offer and run a disabled tool again.

        Raises:
            ToolNotFoundError: no worker ever published a tool of that name or alias.
        """
        await self._connection.store.catalogue.switch(tool, is_enabled=True)
        await self.refresh()

    async def disable(self, tool: str) -> None:
        """Make clients refuse a tool and workers claim none of its calls, within a heartbeat. Running calls may finish.

        Raises:
            ToolNotFoundError: no worker ever published a tool of that name or alias.
        """
        await self._connection.store.catalogue.switch(tool, is_enabled=False)
        await self.refresh()

    async def versions(self, tool: str) -> list[ToolVersion]:
        """List every definition of a tool that a worker ever published, the default first.

        Raises:
            ToolNotFoundError: none was published.
        """
        return await self._connection.store.catalogue.versions(tool)

    async def pin(self, tool: str, definition: str) -> ToolVersion:
        """Offer and run only one definition of a tool, whatever workers publish; takes effect within a heartbeat.

        `definition` is its version, or its digest or the beginning of one.

        Raises:
            ToolNotFoundError: no worker ever published it; the message names those there are.
        """
        pinned = await self._connection.store.catalogue.pin(tool, definition)
        await self.refresh()
        return pinned

    async def unpin(self, tool: str) -> ToolVersion:
        """Make the definition that a worker published last the default again; returns it.

        Raises:
            ToolNotFoundError: no worker ever published the tool.
        """
        latest = await self._connection.store.catalogue.pin(tool, None)
        await self.refresh()
        return latest

    @property
    def _read(self) -> Snapshot:
        if self.snapshot is self._unread:
            raise ConfigurationError(NOT_CONNECTED)
        return self.snapshot
