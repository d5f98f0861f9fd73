"""Which tier of walls each tool gets: the one its operator asks for, else the tool itself. A worker leaves what it cannot give to others."""

import logging
from collections.abc import Iterable, Sequence

from forge_tools.config import Settings
from forge_tools.model import THE_TOOL, Lane, ToolSpec, ToolWalls, WorkerWalls
from forge_tools.sandbox.configured import least_for
from forge_tools.sandbox.walls.commands import LANDLOCK, NAMESPACE
from forge_tools.sandbox.walls.probe import TIERS, Given, given
from forge_tools.setting_types import QUEUE

HIGHEST = LANDLOCK
"""The highest tier for a body; the commands that a tool starts may have `NAMESPACE`."""

LEFT = "Tools need walls that this machine cannot give; their calls are left to other workers"
LESS = "Tools run behind less than the walls that they ask for: this machine cannot give them"

_NO_PROCESS = "bodies of the async lane run in the worker's own process"

logger = logging.getLogger("workers")


class Tiers:
    """Decides for tools by the settings of a worker and by what its lane can give on this machine."""

    def __init__(self, settings: Settings, lane: Lane) -> None:
        self._settings = settings
        self._lane = lane
        lack = given().no_namespaces
        why = (
            f"{_NO_PROCESS}; commands have {given().of_commands(NAMESPACE)} at most, no namespaces: {lack}"
            if lack
            else _NO_PROCESS
        )
        self._given = given() if lane == "process" else Given("none", 0, why)
        self.queues = frozenset(
            name.removeprefix(QUEUE)
            for name, tier in settings.walls_of.items()
            if name.startswith(QUEUE) and tier != "plain"
        )
        """Queues whose calls run behind walls, whatever their tools ask for."""

    def asked(self, spec: ToolSpec, queue: str = "") -> tuple[str, str]:
        """Return the tier of its calls in that queue, in the process lane, or of its commands; and who asks for it."""
        has_commands = spec.walls == NAMESPACE
        tier = self._settings.walls_for(spec.name, spec.category) or self._settings.walls_of.get(f"{QUEUE}{queue}")
        if tier is not None:
            return HIGHEST if tier == NAMESPACE and not has_commands else tier, "FORGE_WALLS_OF"
        if has_commands:
            return NAMESPACE, THE_TOOL
        if self._settings.walls_minimum is not None:
            return self._settings.walls_minimum, "FORGE_WALLS_MINIMUM"
        if self._settings.walls is not None:
            return self._settings.walls, "FORGE_WALLS"
        return spec.walls or "plain", THE_TOOL

    def is_walled(self, spec: ToolSpec, queue: str = "") -> bool:
        """Whether a call of it runs behind walls here."""
        return self._given.tier == HIGHEST and self.asked(spec, queue)[0] == HIGHEST

    def moves(self, spec: ToolSpec) -> bool:
        """Whether its calls run in the process lane because of walls although it declares the async lane."""
        return self._is_raised(spec) and spec.bound_because is None

    def serves(self, queue: str) -> bool:
        """Whether this worker can give calls of that queue the walls that the queue asks for."""
        return queue not in self.queues or self._given.tier == HIGHEST

    def told(self, specs: Iterable[ToolSpec]) -> WorkerWalls:
        """Return what the row of a worker that hosts these tools says of walls."""
        withheld = {spec.name: " ".join(self.asked(spec)) for spec in specs if self._withholds(spec)}
        if self._lane == "process":
            withheld |= {
                f"{QUEUE}{queue}": f"{HIGHEST} FORGE_WALLS_OF" for queue in self.queues if not self.serves(queue)
            }
        return WorkerWalls(tier=self._given.tier, why=self._given.why, withheld=withheld, queues=tuple(self.queues))

    def place(self, spec: ToolSpec) -> ToolWalls:
        """Return what the catalogue says of it; the tier is that of the process lane, whichever lane this worker serves."""
        tier = self._held(spec) if spec.walls == NAMESPACE else self.asked(spec)[0]
        return ToolWalls(tier, is_moved=self.moves(spec))

    def warn(self, specs: Sequence[ToolSpec]) -> None:
        """Log which of these tools are left to other workers, and which run without the walls that they ask for."""
        left = [spec.name for spec in specs if self._withholds(spec)]
        less = [spec.name for spec in specs if spec.name not in left and self._is_below(spec, self.asked(spec)[0])]
        for said, names in ((LEFT, left), (LESS, less)):
            if names:
                logger.warning(said, extra={"tools": ",".join(names), "given": str(self._given)})

    def _withholds(self, spec: ToolSpec) -> bool:
        """Whether this worker does not claim its calls because of walls."""
        if self._lane == "async" and self._is_raised(spec) and not self.moves(spec):
            return True
        tier, whose = self.asked(spec)
        return self._is_below(spec, least_for(self._settings, tier, is_set=whose != THE_TOOL))

    def _is_below(self, spec: ToolSpec, tier: str) -> bool:
        """Whether its calls, or its commands, have less than that tier here; no tool of the other lane has."""
        is_ours = (self._lane == "async") == (spec.walls == NAMESPACE)
        return is_ours and TIERS.index(self._held(spec)) < TIERS.index(tier)

    def _held(self, spec: ToolSpec) -> str:
        """The tier that its commands have on this machine, or its calls in the process lane."""
        tier = self.asked(spec)[0]
        if spec.walls == NAMESPACE:
            return given().of_commands(tier)
        return tier if given().tier == HIGHEST else "plain"

    def _is_raised(self, spec: ToolSpec) -> bool:
        """Whether it declares the async lane and its operator asks for more than that lane gives."""
        if spec.lane != "async" or spec.walls == NAMESPACE:
            return False
        tier, whose = self.asked(spec)
        return tier == HIGHEST and whose in {"FORGE_WALLS_OF", "FORGE_WALLS_MINIMUM"}
