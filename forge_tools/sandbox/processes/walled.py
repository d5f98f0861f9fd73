"""The walls around commands that tools start on a host: none, or namespaces in which each sees its workspace and the system."""

import hashlib
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from forge_tools.sandbox.paths.confinement import Root
from forge_tools.sandbox.processes.commands import SPAWNER, Spawner
from forge_tools.sandbox.processes.environment import child_environment
from forge_tools.sandbox.walls.view import of_machine, of_workspace

Start = Callable[..., socket.socket]


class CommandWalls:
    """No walls: what is started reaches what its user does."""

    tier = "plain"

    def __init__(self, spawner: Spawner = SPAWNER) -> None:
        self.spawner = spawner

    def around(self, roots: Sequence[Root]) -> tuple[Start, dict[str, str]]:
        """What starts a command of a workspace with these roots, and what its environment must have."""
        return self.spawner.start, {}


class NamespaceWalls(CommandWalls):
    """Namespaces: `closed` is shown to no command, `hidden` of it not even where it lies in a workspace.

    `opened` has further paths, such as `/data:ro`. A folder in `cache` is kept for the commands of each workspace.
    """

    tier = "namespace"

    def __init__(
        self, network: str, *, closed: Sequence[str], hidden: Sequence[str], opened: Sequence[str], cache: Path
    ) -> None:
        super().__init__(Spawner([network, *of_machine(child_environment(), closed, opened)]))
        self._hidden = hidden
        self._cache = cache

    def around(self, roots: Sequence[Root]) -> tuple[Start, dict[str, str]]:
        """As above; the names in the environment are its cache's."""
        places = [(str(root.path.absolute()), root.is_read_only) for root in roots]
        name = hashlib.blake2b(repr(sorted(places)).encode(), digest_size=8).hexdigest()
        cache = os.path.realpath(self._cache / name)
        with suppress(OSError):  # a home that is read-only: commands then have one that is not kept
            os.makedirs(cache, mode=0o700, exist_ok=True)  # noqa: PTH103  no Path is wanted
        shown = of_workspace(places, self._hidden, cache)
        return partial(self.spawner.start, shown=shown), {"XDG_CACHE_HOME": cache}
