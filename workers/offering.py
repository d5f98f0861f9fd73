"""What a worker hosts: published as it comes, and claimed but for what operators withdrew."""

import logging

from forge_tools.config import Settings
from forge_tools.executor import ToolExecutor
from forge_tools.records import ToolSpec
from forge_tools.storage import Store
from workers.claiming import Claiming
from workers.demotion import Demotion
from workers.withdrawal import Withdrawal

logger = logging.getLogger(__name__)


class Offering:
    """The tools of an executor as data; `hosted` grows as tools of MCP servers come, for all who hold it."""

    def __init__(self, settings: Settings, boot: str, executor: ToolExecutor) -> None:
        self.hosted: dict[str, ToolSpec] = {spec.name: spec for spec in executor.specs()}
        self._published: dict[str, str] = {}
        self._keeps_first = settings.tool_versions == "pinned"
        self._boot = boot
        self._executor = executor

    @property
    def keys(self) -> tuple[str, ...]:
        """By which its calls are claimed."""
        return tuple(sorted({spec.key for spec in self.hosted.values()}))

    async def renew(self, store: Store, demotion: Demotion, withdrawal: Withdrawal, claiming: Claiming) -> None:
        """Publish what is hosted by now, and have its calls claimed.

        Only what is new: what is published again counts as the newest definition, also where another worker has a newer one.
        """
        specs = [one for one in self._executor.specs() if self._published.get(one.name) != one.digest]
        if self._published and not specs:
            return
        self.hosted.update({spec.name: spec for spec in specs})
        for warning in await store.catalogue.publish(specs, self._boot, keeps_first=self._keeps_first):
            logger.warning(warning)
        await demotion.step(store)
        withdrawal.hear(*await store.catalogue.switches())
        claiming.host(self.keys)
        self._published.update({spec.name: spec.digest for spec in specs})
