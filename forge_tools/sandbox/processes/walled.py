"""The walls around commands that tools start: none, or Landlock or namespaces, behind which each reaches its workspace and the system."""

import hashlib
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from forge_tools.sandbox.paths.confinement import Root
from forge_tools.sandbox.processes.commands import SPAWNER, Spawner
from forge_tools.sandbox.processes.environment import child_environment
from forge_tools.sandbox.spools import new_scratch
from forge_tools.sandbox.walls.commands import LANDLOCK, NAMESPACE
from forge_tools.sandbox.walls.namespaces import HOST
from forge_tools.sandbox.walls.view import behind_landlock, of_machine, of_workspace
from forge_tools.sandbox.web.egress import Egress, variables


@dataclass(frozen=True, slots=True)
class Around:
    """The walls around one command: `walls` are those around all commands here, none by default; `shown` is what this one sees besides."""

    walls: Sequence[str] = ()
    shown: Sequence[str] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    """Variables of its environment, unless its caller sets them."""

    def egress(self) -> Egress:
        """Return the way out of this one, which the running loop serves until it is closed."""
        return Egress(self.walls[1] if self.walls else HOST)


UNWALLED = Around()


class CommandWalls:
    """No walls: commands reach what their user does."""

    tier = "plain"

    def __init__(self, spawner: Spawner = SPAWNER) -> None:
        self.spawner = spawner

    def around(self, roots: Sequence[Root]) -> Around:
        """Return the walls around a command of a workspace with these roots."""
        return UNWALLED

    def starting(self, around: Around) -> Callable[..., socket.socket]:
        """Return what starts a command behind them, as `run` takes it."""
        return partial(self.spawner.start, shown=around.shown)


class NamespaceWalls(CommandWalls):
    """Namespaces. No command sees what is `closed`; of that, what is `hidden` is not even visible inside a workspace.

    `opened` has further paths, such as `/data:ro`. The commands of a workspace share a folder in `cache`, which is kept.
    """

    tier = NAMESPACE

    def __init__(
        self, network: str, *, closed: Sequence[str], hidden: Sequence[str], opened: Sequence[str], cache: Path
    ) -> None:
        super().__init__(Spawner([NAMESPACE, network, *of_machine(child_environment(), closed, opened)]))
        self._network = network
        self._hidden = hidden
        self._cache = cache

    def around(self, roots: Sequence[Root]) -> Around:
        """Do the same; the environment names the cache."""
        places = _places(roots)
        cache = _cache(self._cache, places)
        return Around(
            self.spawner.walls,
            of_workspace(places, self._hidden, cache),
            variables={"XDG_CACHE_HOME": cache, "TMPDIR": "/tmp", **variables(self._network)},  # noqa: S108  its own
        )


class LandlockWalls(CommandWalls):
    """Landlock and seccomp. No command reaches what is `closed`, unless it lies in its workspace; `opened` and `cache` are
    those of `NamespaceWalls`.

    Its home, where its temporary files are, too, is a folder that goes with it.
    """

    tier = LANDLOCK

    def __init__(self, network: str, *, closed: Sequence[str], opened: Sequence[str], cache: Path) -> None:
        super().__init__(Spawner([LANDLOCK, network, *behind_landlock(child_environment(), closed, opened)]))
        self._cache = cache

    def around(self, roots: Sequence[Root]) -> Around:
        """Do the same; the environment names the cache and the home."""
        places = _places(roots)
        cache, home = _cache(self._cache, places), new_scratch()
        shown = [f"{'ro' if is_read_only else 'rw'}:{path}" for path, is_read_only in places]
        return Around(
            self.spawner.walls,
            [*shown, f"rw:{cache}", f"own:{home}"],
            variables={"XDG_CACHE_HOME": cache, "TMPDIR": home, "HOME": home},
        )


def _places(roots: Sequence[Root]) -> list[tuple[str, bool]]:
    return [(str(root.path.absolute()), root.is_read_only) for root in roots]


def _cache(folder: Path, places: Sequence[tuple[str, bool]]) -> str:
    name = hashlib.blake2b(repr(sorted(places)).encode(), digest_size=8).hexdigest()
    cache = os.path.realpath(folder / name)
    with suppress(OSError):  # a home that is read-only: commands then have one that is not kept, or none
        os.makedirs(cache, mode=0o700, exist_ok=True)  # noqa: PTH103  no Path is wanted
    return cache
