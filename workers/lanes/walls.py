"""The walls of each call of the process lane, with the folders of the children behind them; and those around commands."""

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

from forge_tools.config import Settings, broker_socket
from forge_tools.mcp.hosted.configuration import ServerWalls
from forge_tools.model import Claim, ToolCategory, ToolSpec
from forge_tools.sandbox.configured import commands_of, least_for
from forge_tools.sandbox.paths.confinement import Root
from forge_tools.sandbox.processes.walled import CommandWalls, LandlockWalls, NamespaceWalls
from forge_tools.sandbox.reach import Reach
from forge_tools.sandbox.spools import SCRATCH, scratch_folder
from forge_tools.sandbox.walls import landlock
from forge_tools.sandbox.walls.probe import given
from forge_tools.sandbox.walls.profile import Profile, needed_to_run, shared_memory
from forge_tools.sandbox.walls.user import User
from forge_tools.setting_types import CATEGORY
from workers.lanes.tiers import HIGHEST, Tiers

IN_REACH = "A workspace holds what the walls of commands cannot cover: without namespaces they can read all of it"

logger = logging.getLogger("workers")


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
    cache = settings.cache / "commands"
    if tier == HIGHEST:
        return LandlockWalls(network, closed=tuple(_closed(settings, reach)), opened=settings.walls_paths, cache=cache)
    own = tuple(_own(settings, reach))
    others = [str(root.path.absolute()) for root in reach.all_roots()]
    return NamespaceWalls(network, closed=(*own, *others), hidden=own, opened=settings.walls_paths, cache=cache)


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
        roots = self._roots(workspace)
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
            self._scratch.chmod(0o711)
            os.chown(scratch, self._user.uid, self._user.gid)
            cache = scratch  # that of root is closed to him
        with suppress(OSError):  # a home that is read-only; calls get slower
            cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        write = [*profile.write, str(cache)]
        return {
            "profile": [profile.read, write, profile.network],
            "scratch": str(scratch),
            "cache": str(cache),
        }

    def remove(self, pid: int) -> None:
        """Remove what that child, which is gone, had for itself."""
        if self._scratch is not None:
            shutil.rmtree(self._scratch / str(pid), ignore_errors=True)

    def close(self) -> None:
        """Remove what is left of all children."""
        self._scratch = None
        self._until_stopped.close()

    def _roots(self, workspace: str | None) -> Sequence[Root]:
        return self._reach.unnamed if workspace is None else self._reach.workspaces.get(workspace, ())

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
    files = (settings.secrets_dir, settings.audit_key, settings.mcp_config, settings.artifact_dir, reach.shells)
    passwords = (value for name, value in settings if name.endswith("_password_file"))
    yield from (str(path.absolute()) for path in (*files, *passwords) if path is not None)
    yield str(broker_socket(settings.home))
    if settings.database.startswith("sqlite"):
        yield settings.database.partition(":///")[2]


def _closed(settings: Settings, reach: Reach) -> Iterator[str]:
    """What the system's folders and those on the import path may not open up."""
    yield from (*_own(settings, reach), tempfile.gettempdir())
    yield from (str(root.path.absolute()) for root in reach.all_roots())
