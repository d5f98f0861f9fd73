"""The tools of a worker, including those of its MCP servers: which are published, and which are claimed."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol

from forge_tools.config import Settings
from forge_tools.errors import ToolError
from forge_tools.model.execution import Scope
from forge_tools.model.overview import ServerState
from forge_tools.model.tools import ToolSpec
from forge_tools.storage import Store
from forge_tools.storage.heartbeat import DEMOTED, DISABLED, PINNED, Answers, Question, misplaced
from forge_tools.tool.base import BaseTool
from forge_tools.tool.executor import ToolExecutor
from forge_tools.tool.registry import ScopedRegistry
from workers.lanes.walls import Tiers
from workers.services.service import Service

SETTLE_SECONDS = 0.5
"""How long after a demotion the calls handed back for it take to be in the queue again."""

logger = logging.getLogger(__name__)


class HostedTools(Service):
    """What an executor hosts, as data, and which of its calls this worker claims.

    A tool that blocks is demoted to the process lane: here at once, in SQL soon after, in other workers within seconds;
    one that its operator moved there for its walls is there from the start. A tool that is disabled, pinned to another
    definition, or needs walls that this machine lacks, is not claimed: running calls may finish, the rest wait in SQL.
    """

    name = "demotion"
    failure = "Demoted tools cannot be read or written"

    def __init__(
        self,
        store: Store,
        scope: Scope,
        executor: ToolExecutor,
        ban: Callable[[Iterable[str]], None],
        settings: Settings,
    ) -> None:
        """`ban` keeps demoted tools from starting. `scope` needs no keys: it claims nothing until published."""
        super().__init__(retry=2 * settings.heartbeat)
        self.specs: dict[str, ToolSpec] = {spec.name: spec for spec in executor.specs()}
        """By name; it grows as tools of MCP servers come, for everyone who holds it."""
        self.scope = replace(scope, tool_keys=())
        """What this worker claims now."""
        self._store = store
        self._executor = executor
        self._ban = ban
        self._keeps_first = settings.tool_versions == "pinned"
        self._tiers = Tiers(settings, scope.lane)
        self.walls = self._tiers.told(self.specs.values())
        """What they get here, and which of them get too little."""
        self._published: dict[str, str] = {}
        self._keys: tuple[str, ...] = ()
        self._withdrawn: frozenset[str] = frozenset()
        self._demoted: set[str] = set()
        self._unwritten: dict[str, str] = {}
        self._is_news = False

    async def publish(self) -> None:
        """Publish what is hosted by now, and have its calls claimed.

        Only what is new: what is published again counts as the newest definition, even if another worker has a newer
        one.
        """
        specs = [one for one in self._executor.specs() if self._published.get(one.name) != one.digest]
        if self._published and not specs:
            return
        self.specs.update({spec.name: spec for spec in specs})
        self.walls = self._tiers.told(self.specs.values())
        warnings = await self._store.catalogue.publish(
            specs,
            self.scope.instance,
            keeps_first=self._keeps_first,
            walls=self.walls,
            places={spec.name: self._tiers.place(spec) for spec in specs},
        )
        for warning in warnings:
            logger.warning(warning)
        self._tiers.warn(specs)
        self._demoted |= {spec.name for spec in self._demotable.values() if self._tiers.moves(spec)}
        await self.settle()
        self._switch(*await self._store.catalogue.switches())
        self._keys = tuple(sorted({spec.key for spec in self.specs.values()}))
        self._narrow()
        self._published.update({spec.name: spec.digest for spec in specs})

    def demote(self, tool: str, reason: str) -> None:
        """Demote a tool whose body was found to block here; the lane starts no more of them."""
        if tool in self._demotable:
            self._unwritten.setdefault(tool, reason)
            self._demoted.add(tool)
            self._narrow()
            self._wake()

    def ask(self) -> Sequence[Question[Any]]:
        return DEMOTED, misplaced(self._demoted_keys), DISABLED, PINNED

    def hear(self, answers: Answers) -> None:
        is_misplaced = answers[misplaced(())]  # an answer is found by the name of its question alone
        if is_misplaced or self._known(answers[DEMOTED]) - self._demoted:
            self._wake()
        self._switch(answers[DISABLED], answers[PINNED])

    async def step(self) -> float | None:
        """Settle at once when there is news, and again soon."""
        await self.settle()
        is_news, self._is_news = self._is_news, False
        return SETTLE_SECONDS if is_news else None

    async def settle(self) -> None:
        """Write what is new here, read what is new elsewhere, and move calls that still came to the async lane."""
        for tool, reason in list(self._unwritten.items()):
            await self._store.catalogue.demote(self.specs[tool], reason)
            self._unwritten.pop(tool, None)
            logger.error("A tool blocks; from now on it runs in the process lane", extra={"tool": tool, "why": reason})
        if self._demotable:
            self._demoted |= self._known(await self._store.catalogue.demoted())
        self._ban(self._demoted)
        self._narrow()
        if self._demoted:
            await self._store.catalogue.divert(self._demoted_keys)

    def _switch(self, disabled: Set[str], pinned: Set[tuple[str, str]]) -> None:
        pins = dict(pinned)
        others = {name for name, spec in self.specs.items() if pins.get(name, spec.digest) != spec.digest}
        withdrawn = frozenset(self.specs.keys() & disabled | others)
        if withdrawn != self._withdrawn:
            said = {
                "disabled": ",".join(sorted(withdrawn - others)) or "none",
                "pinned_elsewhere": ",".join(sorted(others)) or "none",
            }
            logger.info("Tools were enabled, disabled, pinned or unpinned", extra=said)
            self._withdrawn = withdrawn
            self._narrow()

    def _narrow(self) -> None:
        excluded = {
            self.specs[name].key
            for name in self._demoted | self._withdrawn | self.specs.keys() & self.walls.withheld.keys()
        }
        self.scope = replace(self.scope, tool_keys=tuple(key for key in self._keys if key not in excluded))

    def _wake(self) -> None:
        self._is_news = True
        self.woken.set()

    def _known(self, demoted: Set[tuple[str, str]]) -> set[str]:
        """Return those hosted here that were demoted in the definition hosted here."""
        return {spec.name for spec in self._demotable.values() if (spec.name, spec.digest) in demoted}

    @property
    def _demotable(self) -> dict[str, ToolSpec]:
        """In the process lane tools may block."""
        return self.specs if self.scope.lane == "async" else {}

    @property
    def _demoted_keys(self) -> tuple[str, ...]:
        return tuple(sorted(self.specs[tool].key for tool in self._demoted))


class Servers(Protocol):
    """The MCP servers of a worker."""

    def follow(self, changed: Callable[[], None]) -> None:
        """Call `changed` from now on, on any thread, whenever `tools` or `states` have something new."""

    def tools(self) -> list[BaseTool]: ...

    def states(self) -> tuple[ServerState, ...]: ...

    def start(self) -> list[BaseTool]: ...

    def close(self) -> None: ...


class ServerTools(Service):
    """Follows the servers: new tools are registered, and then published."""

    name = "MCP servers"
    failure = "The state of MCP servers cannot be written"
    starts_at_once = True

    def __init__(
        self, servers: Servers, registry: ScopedRegistry, tools: HostedTools, store: Store, *, retry: float
    ) -> None:
        super().__init__(retry=retry)
        self._servers = servers
        self._registry = registry
        self._tools = tools
        self._store = store
        self._told: tuple[ServerState, ...] = ()
        self._loop = asyncio.get_running_loop()
        servers.follow(self._changed)

    async def step(self) -> None:
        self._register_new(self._servers.tools())
        await self._tools.publish()
        if (states := self._servers.states()) != self._told:
            await self._store.workers.tell_servers(self._tools.scope.instance, states)
            self._told = states

    def _changed(self) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self.woken.set)

    def _register_new(self, tools: Sequence[BaseTool]) -> None:
        known = {tool.name: tool.spec.digest for tool in self._registry.list_all()}
        for tool in tools:
            if known.get(tool.name) == tool.spec.digest:
                continue
            try:
                self._registry.register(tool, replace=True)
            except ToolError as error:
                logger.error("A tool of an MCP server cannot be offered", extra={"reason": error.message})
