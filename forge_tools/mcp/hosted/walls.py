"""The walls around servers that are programs: each sees the system, its own folder and home, and what its entry mounts."""

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from forge_tools.errors import ConfigurationError
from forge_tools.mcp.hosted.configuration import Server
from forge_tools.model import Tier
from forge_tools.sandbox.processes.commands import SPAWNER, Spawner
from forge_tools.sandbox.processes.environment import child_environment
from forge_tools.sandbox.walls.commands import NAMESPACE
from forge_tools.sandbox.walls.view import of_machine, of_workspace
from forge_tools.sandbox.web.egress import variables


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerWalls:
    """How the servers of a worker are started; by default without walls.

    `homes` has the home of each server, which is kept. `closed` is what no server sees, and `hidden` what of that stays invisible
    in what its entry mounts; `opened` has further paths, such as `/data:ro`. `lack` says why this machine has no namespaces; where
    servers `may_lack` them, only those whose entries ask for them do not start.
    """

    default: Tier = "plain"
    homes: Path = Path()
    closed: Sequence[str] = ()
    hidden: Sequence[str] = ()
    opened: Sequence[str] = ()
    lack: str = ""
    may_lack: bool = False
    _spawners: dict[str, Spawner] = field(default_factory=dict)

    def tier(self, server: Server) -> Tier:
        """Return the tier of a server, whether this machine has it or not."""
        if server.walls is not None:
            return server.walls
        if self.lack and self.may_lack and server.egress == "host":
            return "plain"
        return self.default if server.egress == "host" else "namespace"

    def start(self, server: Server, *, streams: tuple[int, int, int], grace: float) -> socket.socket:
        """Start a server and return its control socket.

        Raises:
            ConfigurationError: this machine has no namespaces for it.
            OSError: its folder cannot be opened, or the launcher cannot be started.
        """
        environment, spawner, shown, path = child_environment(), SPAWNER, list[str](), str(server.cwd)
        if self.tier(server) == "namespace":
            if self.lack:
                raise ConfigurationError(
                    f'it is to be started in namespaces, which this machine does not have ({self.lack}); "walls": "plain" in its entry does without'
                )
            home, spawner = self._home(server.name), self._spawner(server.egress)
            path, shown = self._shown(server, home)
            environment |= variables(server.egress)
            environment |= {"HOME": home, "XDG_CACHE_HOME": f"{home}/.cache", "TMPDIR": "/tmp"}  # noqa: S108  its own
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

    def _spawner(self, network: str) -> Spawner:
        """Return what starts the servers with that network, each of which is shown everything that it sees."""
        if network not in self._spawners:
            self._spawners[network] = Spawner([NAMESPACE, network])
        return self._spawners[network]

    def _shown(self, server: Server, home: str) -> tuple[str, list[str]]:
        """Return the folder that a server with that home starts in, and what it is shown."""
        folder = os.path.realpath(server.cwd)
        mounts = [(path, how == "ro") for path, how in server.mounted()]
        if self._is_private(folder):
            folder = home
        elif folder not in {os.path.realpath(path) for path, _ in mounts}:
            mounts.insert(0, (folder, True))
        found = child_environment()
        found["PATH"] = server.env.get("PATH", found["PATH"])
        return folder, [*of_machine(found, self.closed, self.opened), *of_workspace(mounts, self.hidden, home)]

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
