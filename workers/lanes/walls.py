"""Which tier of walls each tool gets on a worker, and the walls themselves: of each call of the process lane, and around commands."""

import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from forge_tools.artifacts.parts import folder_of
from forge_tools.config import Settings
from forge_tools.mcp.hosted.configuration import ServerWalls
from forge_tools.model.execution import Claim
from forge_tools.model.overview import THE_TOOL, WorkerWalls
from forge_tools.model.tools import Lane, ToolCategory, ToolSpec, ToolWalls
from forge_tools.project import broker_socket
from forge_tools.sandbox.configured import User, commands_of, least_for
from forge_tools.sandbox.processes.spawner import CommandWalls
from forge_tools.sandbox.reach import Reach
from forge_tools.sandbox.spools import SCRATCH, scratch_folder
from forge_tools.sandbox.walls import landlock
from forge_tools.sandbox.walls.cgroups import Limits
from forge_tools.sandbox.walls.commands import LANDLOCK, NAMESPACE
from forge_tools.sandbox.walls.probe import TIERS, Given, given
from forge_tools.sandbox.walls.profile import Profile, needed_to_run, shared_memory
from forge_tools.setting_types import CATEGORY, QUEUE

HIGHEST = LANDLOCK
"""The highest tier for a body; the commands that a tool starts may have `NAMESPACE`."""

LEFT = "Tools need walls that this machine cannot give; their calls are left to other workers"
LESS = "Tools run behind less than the walls that they ask for: this machine cannot give them"

_NO_PROCESS = "bodies of the async lane run in the worker's own process"

IN_REACH = "A workspace holds what the walls of commands cannot cover: without namespaces they can read all of it"

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
        tier = self._settings.walls_for(spec.walled_as, spec.category) or self._settings.walls_of.get(f"{QUEUE}{queue}")
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
        return WorkerWalls(
            tier=self._given.tier,
            why=self._given.why,
            withheld=withheld,
            queues=tuple(self.queues),
            bounded=Limits.given().held,
        )

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


def behind_walls(settings: Settings, reach: Reach) -> Reach:
    """Return that reach with the walls around the commands of this worker.

    Raises:
        ConfigurationError: they cannot keep to the network that a setting asks for.
    """
    tier, networks = commands_of(settings)
    if tier == HIGHEST:
        roots = [root.path.absolute() for root in reach.all_roots()]
        if inside := sorted({path for path in _own(settings, reach) if any(map(Path(path).is_relative_to, roots))}):
            logger.warning(IN_REACH, extra={"paths": ",".join(inside)})
    made = {network: _command_walls(tier, network, settings, reach) for network in set(networks.values())}
    walls = {queue: made[network] for queue, network in networks.items()}
    return replace(reach, commands=walls.pop(""), commands_in=walls)


def _command_walls(tier: str, network: str, settings: Settings, reach: Reach) -> CommandWalls:
    if tier == "plain":
        return CommandWalls()
    own = tuple(_own(settings, reach))
    others = (str(root.path.absolute()) for root in reach.all_roots())
    return CommandWalls(
        tier,
        network,
        closed=tuple(_closed(settings, reach)) if tier == HIGHEST else (*own, *others),
        hidden=own,
        opened=settings.walls_paths,
        cache=settings.cache / "commands",
    )


def server_walls(settings: Settings, reach: Reach) -> ServerWalls:
    """Those around the MCP servers that this worker starts."""
    own = tuple(_own(settings, reach))
    asked = settings.walls_of.get(f"{CATEGORY}{ToolCategory.MCP}")
    return ServerWalls(
        default=asked or "namespace",
        network=settings.egress_of.get(f"{CATEGORY}{ToolCategory.MCP}", ""),
        minimum=settings.walls_minimum or "",
        homes=settings.home / "mcp" / "homes",
        closed=(*own, *(str(root.path.absolute()) for root in reach.all_roots())),
        hidden=own,
        opened=settings.walls_paths,
        machine=given(),
        least=least_for(settings, asked or "namespace", is_set=asked is not None),
    )


class Walls:
    """The profiles of calls, and the folder of each walled child, in which it alone may write: its home, and its temporary files."""

    def __init__(
        self, settings: Settings, reach: Reach, specs: Iterable[ToolSpec], *, user: User | None = None
    ) -> None:
        self._tiers = tiers = Tiers(settings, "process")
        self._specs = {spec.name: spec for spec in specs}
        self._settings, self._reach, self._user = settings, reach, user
        are_there = any(tiers.is_walled(spec, queue) for spec in self._specs.values() for queue in ("", *tiers.queues))
        closed = tuple(_closed(settings, reach)) if are_there else ()
        if are_there:
            landlock.prepare()
        self._needed, self._shared = needed_to_run(closed), shared_memory(closed)
        self._profiles: dict[tuple[str, str, str | None], Profile | None] = {}
        self._until_stopped = ExitStack()
        self._scratch: Path | None = None

    def profile(self, claim: Claim) -> Profile | None:
        """The walls of that call; None where it has none. Equal ones are the same object, so that comparing is cheap."""
        key = claim.tool, claim.queue, self._workspace(claim.context)
        if key not in self._profiles:
            found = self._made(*key)
            self._profiles[key] = next((one for one in self._profiles.values() if one == found), found)
        return self._profiles[key]

    def _made(self, tool: str, queue: str, workspace: str | None) -> Profile | None:
        spec = self._specs.get(tool)
        if spec is None or not self._tiers.is_walled(spec, queue):
            return None
        roots = self._reach.unnamed if workspace is None else self._reach.workspaces.get(workspace, ())
        opened = [(path[:-3], path[-2:]) for path in (*self._settings.walls_paths, *spec.capabilities.paths)]
        opened += [(str(root.path), "ro" if root.is_read_only else "rw") for root in roots]
        read, write = ({path for path, how in opened if how == wanted} for wanted in ("ro", "rw"))
        return Profile(
            (*self._needed, *sorted(read)), (*self._shared, *sorted(write)), network=spec.capabilities.accesses_network
        )

    def worth_telling(self, claim: Claim, profile: Profile | None) -> str | None:
        """The tier of that call, where it is not the one that its tool declares."""
        spec, tier = self._specs.get(claim.tool), "plain" if profile is None else HIGHEST
        declared = "none" if spec is None or spec.lane == "async" else spec.walls or "plain"
        return None if tier == declared else tier

    def around(self, pid: int, profile: Profile) -> dict[str, Any]:
        """What that child is told to apply. Its folders are made here: what is not there cannot be opened up."""
        if self._scratch is None:
            self._scratch = self._until_stopped.enter_context(scratch_folder(SCRATCH))
        name = hashlib.blake2b(repr(profile).encode(), digest_size=8).hexdigest()
        scratch, cache = self._scratch / str(pid), self._settings.cache / "walled" / name
        scratch.mkdir(mode=0o700, exist_ok=True)
        if self._user is not None:
            self._scratch.chmod(0o711)  # he may pass through it, but not list it
            os.chown(scratch, self._user.uid, self._user.gid)
            cache = scratch  # that of root is closed to him
        with suppress(OSError):  # a home that is read-only; calls get slower
            cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        write = [*profile.write, str(cache)]
        return {"profile": [profile.read, write, profile.network], "scratch": str(scratch), "cache": str(cache)}

    def remove(self, pid: int) -> None:
        """Remove what that child, which is gone, had for itself."""
        if self._scratch is not None:
            shutil.rmtree(self._scratch / str(pid), ignore_errors=True)

    def close(self) -> None:
        """Remove what is left of all children."""
        self._scratch = None
        self._until_stopped.close()

    def _workspace(self, context: str) -> str | None:
        """The workspace that a call names; one that is not here is "", which has no roots, and its body then says so."""
        try:
            name = json.loads(context).get("workspace")
        except (ValueError, AttributeError, RecursionError):  # as the body will say, too
            return ""
        return name if name is None or (isinstance(name, str) and name in self._reach.workspaces) else ""


def _own(settings: Settings, reach: Reach) -> Iterator[str]:
    """What this worker has for itself: keys, passwords, databases, caches."""
    yield from (str(settings.home.absolute()), str(settings.keys_folder), str(settings.cache))
    files = (settings.secrets_dir, settings.audit_key, settings.mcp_config, folder_of(settings), reach.shells)
    passwords = (value for name, value in settings if name.endswith("_password_file"))
    yield from (str(path.absolute()) for path in (*files, *passwords) if path is not None)
    yield str(broker_socket(settings.home))
    if settings.database.startswith("sqlite"):
        yield settings.database.partition(":///")[2]


def _closed(settings: Settings, reach: Reach) -> Iterator[str]:
    """What the system's folders and those on the import path may not open up."""
    yield from (*_own(settings, reach), tempfile.gettempdir())
    yield from (str(root.path.absolute()) for root in reach.all_roots())
