"""Keeps tools that block out of the async lane: here at once, in SQL soon after, in other workers within seconds."""

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Iterable, Mapping, Set
from contextlib import suppress
from dataclasses import replace
from typing import Any, NoReturn

from forge_tools.errors import ForgeError
from forge_tools.records import Scope, ToolSpec
from forge_tools.sandbox.processes.endings import end
from forge_tools.sandbox.processes.environment import boot_mark
from forge_tools.storage import Store
from forge_tools.storage.looks import Look

SETTLE_SECONDS = 0.5
"""After a demotion, until the calls that were handed back for it are in the queue again."""

LEAVE_SECONDS = 20.0

logger = logging.getLogger(__name__)


class Demotion:
    """What a worker knows of demoted tools among those `hosted` in the async lane, which may grow; `ban` keeps its lane from starting them."""

    def __init__(self, hosted: Mapping[str, ToolSpec]) -> None:
        self.ban: Callable[[Iterable[str]], None] = lambda _: None
        self._hosted = hosted
        self._unwritten: dict[str, str] = {}
        self._banned: set[str] = set()
        self._news = asyncio.Event()

    @property
    def banned(self) -> tuple[str, ...]:
        """The keys of what this worker claims no more."""
        return tuple(sorted(self._hosted[tool].key for tool in self._banned))

    def note(self, tool: str, reason: str) -> None:
        """A body here was found to block; the lane starts no more of them."""
        if tool in self._hosted:
            self._unwritten.setdefault(tool, reason)
            self._banned.add(tool)
            self._news.set()

    def hear(self, look: Look) -> None:
        """A look shows what others found to block, and calls that still came."""
        known = self._known(look.demoted)
        if known - self._banned or look.is_misplaced:
            self._news.set()

    def within(self, scope: Scope) -> Scope:
        """What of `scope` this worker still claims."""
        if not self._banned:
            return scope
        banned = self.banned
        return replace(scope, tool_keys=tuple(key for key in scope.tool_keys if key not in banned))

    async def step(self, store: Store) -> None:
        """Write what is new here, read what is new elsewhere, and move calls that still came to the async lane."""
        for tool, reason in list(self._unwritten.items()):
            await store.catalogue.demote(self._hosted[tool], reason)
            self._unwritten.pop(tool, None)
            logger.error("A tool blocks; it runs in the process lane from now on", extra={"tool": tool, "why": reason})
        known = await store.catalogue.demoted() if self._hosted else set()
        self._banned |= self._known(known)
        self.ban(self._banned)
        if self._banned:
            await store.catalogue.divert(self.banned)

    async def keep(self, store: Store, interval: float) -> None:
        """Do so for ever: at once when there is news and soon again, and every `interval` seconds while it fails."""
        pause: float | None = None
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._news.wait()
            pause = SETTLE_SECONDS if self._news.is_set() else None
            self._news.clear()
            try:
                await self.step(store)
            except ForgeError as error:
                pause = pause or interval
                logger.warning("Demoted tools cannot be read or written", extra={"error": str(error)})

    def _known(self, demoted: Set[tuple[str, str]]) -> set[str]:
        """Those hosted here that were demoted as they are defined here."""
        return {spec.name for spec in self._hosted.values() if (spec.name, spec.digest) in demoted}


async def leave(why: str, boot: str, *last_steps: Coroutine[Any, Any, None]) -> None:
    """Take the last steps in a bounded time, then end this process by force: one of its threads will not come back.

    What its tools left running is ended first: nobody looks after a boot that has settled its calls.
    """
    logger.critical("This worker ends, so that its supervisor starts another", extra={"why": why})
    try:
        async with asyncio.timeout(LEAVE_SECONDS):
            for step in last_steps:
                with suppress(ForgeError):
                    await step
    finally:
        end_process(boot)


def end_process(boot: str) -> NoReturn:
    """End what the tools of this process left running, and then this process, whatever its threads do."""
    try:
        with suppress(OSError):
            end(boot_mark(boot))
    finally:
        os._exit(os.EX_TEMPFAIL)
