"""The walls around servers that are programs: each sees the system, its own folder and home, and what its entry mounts."""

import os
import socket
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from forge_tools.errors import ConfigurationError
from forge_tools.mcp.hosted.configuration import UNSET, Server, Usual
from forge_tools.model import Tier
from forge_tools.sandbox.processes.commands import SPAWNER, Spawner
from forge_tools.sandbox.processes.environment import child_environment
from forge_tools.sandbox.spools import new_scratch
from forge_tools.sandbox.walls.commands import NAMESPACE
from forge_tools.sandbox.walls.probe import TIERS, Given, keeps_to
from forge_tools.sandbox.walls.profile import parts
from forge_tools.sandbox.walls.view import behind_landlock, of_machine, of_workspace
from forge_tools.sandbox.web.egress import variables

_NAMESPACES = Given("plain", 0)
"""A machine that lacks none, where nobody has asked it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerWalls:
    """How the servers of a worker are started; by default without walls.

    `usual` has what settings say of all servers. `homes` has the home of each server, which is kept. `closed` is what no server sees, and `hidden` what of that stays invisible
    in what its entry mounts; `opened` has further paths, such as `/data:ro`. `machine` says what there is here; a
    server that lacks something has less, but never less than the `least`, than its network takes, or than its entry asks for.
    """

    default: Tier = "plain"
    usual: Usual = UNSET
    homes: Path = Path()
    closed: Sequence[str] = ()
    hidden: Sequence[str] = ()
    opened: Sequence[str] = ()
    machine: Given = _NAMESPACES
    least: str = "plain"
    _spawners: dict[tuple[str, str], Spawner] = field(default_factory=dict)

    def tier(self, server: Server) -> str:
        """Return the tier of a server, whether this machine has it or not."""
        asked = server.walls or (self.default if keeps_to(self.default, server.egress) else NAMESPACE)
        held = self.machine.of_commands(asked)
        least = server.walls or self.least
        is_enough = TIERS.index(held) >= TIERS.index(least) and keeps_to(held, server.egress)
        return held if is_enough else asked

    def start(self, server: Server, *, streams: tuple[int, int, int], grace: float) -> socket.socket:
        """Start a server and return its control socket.

        Raises:
            ConfigurationError: this machine does not have its walls.
            OSError: its folder cannot be opened, or the launcher cannot be started.
        """
        environment, spawner, shown, path = child_environment(), SPAWNER, list[str](), str(server.cwd)
        tier = self.tier(server)
        if tier != self.machine.of_commands(tier):
            why = self.machine.no_namespaces if tier == NAMESPACE else self.machine.why
            raise ConfigurationError(
                f'it is to have walls={tier}, which this machine does not have ({why}); "walls": "plain" in its entry does without'
            )
        if tier != "plain":
            home, spawner = self._home(server.name), self._spawner(tier, server.egress)
            path, mounts = self._mounts(server, home)
            temporary = "/tmp" if tier == NAMESPACE else new_scratch()  # noqa: S108  its own
            shown = self._shown(tier, server, mounts, home, temporary)
            environment |= variables(server.egress)
            environment |= {"HOME": home, "XDG_CACHE_HOME": f"{home}/.cache", "TMPDIR": temporary}
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return spawner.start(
                [server.command, *server.args],
                {**environment, **server.env},
                folder=folder,
                streams=streams,
                grace=grace,
                shown=shown,
            )
        finally:
            os.close(folder)

    def close(self) -> None:
        """End what starts them."""
        for spawner in self._spawners.values():
            spawner.close()

    def _spawner(self, tier: str, network: str) -> Spawner:
        """Return what starts the servers with these walls, each of which is shown everything that it sees."""
        if (tier, network) not in self._spawners:
            self._spawners[tier, network] = Spawner([tier, network])
        return self._spawners[tier, network]

    def _mounts(self, server: Server, home: str) -> tuple[str, list[tuple[str, bool]]]:
        """Return the folder that a server with that home starts in, and the paths that it sees besides (path, is read-only)."""
        folder = os.path.realpath(server.cwd)
        mounts = [(path, how == "ro") for path, how in server.mounted()]
        if self._is_private(folder):
            folder = home
        elif folder not in {os.path.realpath(path) for path, _ in mounts}:
            mounts.insert(0, (folder, True))
        return folder, mounts

    def _shown(self, tier: str, server: Server, mounts: list[tuple[str, bool]], home: str, temporary: str) -> list[str]:
        found = child_environment()
        found["PATH"] = server.env.get("PATH", found["PATH"])
        if tier == NAMESPACE:
            return [*of_machine(found, self.closed, self.opened), *of_workspace(mounts, self.hidden, home)]
        shut = tuple(map(os.path.realpath, self.hidden))
        seen = [(part, read) for path, read in mounts for part in parts(os.path.realpath(path), shut)]
        of_all = behind_landlock(found, (*self.closed, tempfile.gettempdir()), self.opened)
        of_all = [word for word in of_all if not word.startswith("ln:")]  # its home is kept
        return [*of_all, *(f"{'ro' if read else 'rw'}:{part}" for part, read in seen), f"rw:{home}", f"own:{temporary}"]

    def _home(self, server: str) -> str:
        """Return the home of a server, which is made."""
        name = "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in server)[:60]
        home = self.homes / f"{name}-{sha256(server.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"
        (home / ".cache").mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.path.realpath(home)

    def _is_private(self, folder: str) -> bool:
        """Whether it has a whole home in it, with its credentials, or is a part of what is hidden: not to be shown unasked."""
        has_home = Path(os.path.realpath(Path.home())).is_relative_to(folder)
        return has_home or any(Path(folder).is_relative_to(os.path.realpath(path)) for path in self.hidden)
