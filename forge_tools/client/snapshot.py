"""The catalogue as the client holds it: validation, schemas and places without a tool or a worker."""

from collections.abc import Sequence
from functools import cached_property
from typing import Self

from forge_tools.errors import ErrorCode, InvalidCallError
from forge_tools.records import Schema, SealingKey, ServerState, ToolCategory, ToolSpec, WorkspacePlaces
from forge_tools.records.places import host_queue
from forge_tools.schemas import render, require_format
from forge_tools.secrecy import Sealer
from forge_tools.storage import Store, ToolChangedError
from forge_tools.validation import Validator, shown, suggestion

NOWHERE = WorkspacePlaces()


class Snapshot:
    """Every enabled tool, by name and alias, and where workspaces are, as SQL had it when this was read.

    `disabled` are those that are switched off, `servers` the MCP servers that live workers host.
    """

    def __init__(
        self,
        specs: Sequence[ToolSpec] = (),
        places: WorkspacePlaces = NOWHERE,
        disabled: Sequence[ToolSpec] = (),
        sealing_key: SealingKey | None = None,
        servers: tuple[ServerState, ...] = (),
    ) -> None:
        self._sealing_key = sealing_key
        self.places = places
        self.servers = servers
        self._disabled = {name: spec for spec in disabled for name in (spec.name, *spec.aliases)}
        self.sessions: dict[str, str | None] = {}
        """The workspaces of those sessions that were asked for since."""
        self.specs = tuple(sorted(specs, key=lambda spec: spec.name))
        self._by_name = {alias: spec for spec in self.specs for alias in spec.aliases}
        self._by_name.update({spec.name: spec for spec in self.specs})
        self._validators: dict[str, Validator] = {}

    @classmethod
    async def read(cls, store: Store, lease: float) -> Self:
        """Read it; who was seen for the last time a `lease` ago serves nothing."""
        specs, disabled = await store.catalogue.read()
        places, key = await store.workspaces.places(within=lease), await store.sealing.current()
        return cls(specs, places, disabled, key, await store.workers.servers(lease))

    @cached_property
    def sealer(self) -> Sealer | None:
        """What seals secrets for the workers; None where nobody made a key."""
        return None if self._sealing_key is None else Sealer(self._sealing_key.public)

    def after(self, changed: ToolChangedError) -> Self:
        """The same with what an insert said of a tool."""
        name, current = changed.tool_name, [] if changed.current is None else [changed.current]
        enabled = [spec for spec in self.specs if spec.name != name]
        disabled = [spec for called, spec in self._disabled.items() if called == spec.name != name]
        (enabled if changed.is_enabled else disabled).extend(current)
        snapshot = type(self)(enabled, self.places, disabled, self._sealing_key, self.servers)
        snapshot.sessions = self.sessions
        return snapshot

    def find(self, name: str) -> ToolSpec | None:
        return self._by_name.get(name)

    def find_disabled(self, name: str) -> ToolSpec | None:
        return self._disabled.get(name)

    def validator(self, spec: ToolSpec) -> Validator:
        """The prepared validator of that tool; built at its first call."""
        validator = self._validators.get(spec.name)
        if validator is None:
            validator = self._validators[spec.name] = Validator.for_spec(spec)
        return validator

    def schemas(self, format: str, category: ToolCategory | None = None) -> list[Schema]:
        """Schemas in a provider's format, of all tools or one category.

        Raises:
            ValueError: for a format that is not known.
        """
        require_format(format)
        return [render(spec, format) for spec in self.specs if category is None or spec.category == category]

    def queue_of(self, workspace: object) -> str | None:
        """The queue of the host that a workspace is bound to; None where it is shared.

        Raises:
            InvalidCallError: no worker ever had it.
        """
        hosts = self.places.hosts
        if isinstance(workspace, str) and workspace in hosts:
            host = hosts[workspace]
            return None if host is None else host_queue(host)
        known = ", ".join(sorted(hosts)[:20]) or "none; workers get them by FORGE_WORKSPACES"
        refused = InvalidCallError(
            f"Unknown workspace: {shown(workspace)}{suggestion(workspace, hosts)}. Known workspaces: {known}"
        )
        refused.code = ErrorCode.WORKSPACE_NOT_FOUND
        raise refused
