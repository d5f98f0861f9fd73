"""The configured MCP servers, `mcpServers` of a JSON file in the format of Claude Desktop and Claude Code; and their walls."""

import json
import logging
import os
import socket
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from forge_tools.environment import expanded
from forge_tools.errors import ConfigurationError, own_words
from forge_tools.model.secret_names import is_secret_name
from forge_tools.model.tools import Tier
from forge_tools.sandbox.processes.environment import child_environment
from forge_tools.sandbox.processes.spawner import SPAWNER, Spawner
from forge_tools.sandbox.spools import new_scratch
from forge_tools.sandbox.walls.commands import NAMESPACE
from forge_tools.sandbox.walls.probe import TIERS, Given, keeps_to
from forge_tools.sandbox.walls.profile import behind_landlock, of_machine, of_workspace, parts
from forge_tools.sandbox.web.egress import variables
from forge_tools.schema import shown
from forge_tools.setting_types import Network

_STDIO = frozenset({"stdio"})
_HTTP = frozenset({"http", "streamable-http", "streamableHttp"})

Text = Annotated[str, StringConstraints(pattern=r"^[^\x00]*$")]
Mount = Annotated[str, StringConstraints(pattern=r"^[^\x00]+:r[ow]$")]
Variable = Annotated[str, StringConstraints(pattern=r"^[^\x00=]+$")]

_NAMESPACES = Given("plain", 0)
"""What to assume of a machine that was not probed: it lacks no namespaces."""

logger = logging.getLogger(__name__)


def _egress(network: object) -> object:
    if isinstance(network, bool):
        return "host" if network else "none"
    if isinstance(network, list | tuple) and all(isinstance(host, str) for host in network):
        return ",".join(network) or "none"
    raise ValueError("write true, false, or a list of the hosts that it may connect to")


class Server(BaseModel):
    """How to start or reach one server. `start_timeout` and `timeout` are seconds, the latter for its calls.

    `allow_tools` and `deny_tools` are patterns of names that it may, and may not, offer.
    With `trust_annotations` False, every tool counts as one that may do anything.
    `walls`, `mounts` and `egress` (`network` in a file) are for programs: what they see besides the system and `cwd`, and
    which hosts they may connect to, in the form of `FORGE_EGRESS`.
    """

    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True, extra="allow")

    name: str
    type: str = ""
    command: Text = ""
    args: tuple[Text, ...] = ()
    env: dict[Variable, Text] = Field(default_factory=dict, repr=False)
    cwd: Path = Path()
    url: str = ""
    headers: dict[str, str] = Field(default_factory=dict, repr=False)
    disabled: bool = False
    start_timeout: float = Field(default=20.0, gt=0, le=600)
    timeout: float | None = Field(default=None, gt=0)
    allow_tools: tuple[str, ...] = ("*",)
    deny_tools: tuple[str, ...] = ()
    trust_annotations: bool = True
    walls: Literal["plain", "landlock", "namespace"] | None = None
    egress: Annotated[Network, BeforeValidator(_egress)] = Field(default="host", alias="network")
    mounts: tuple[Mount, ...] = ()

    def offers(self, tool: str) -> bool:
        return _fits(tool, self.allow_tools) and not _fits(tool, self.deny_tools)

    def mounted(self) -> list[tuple[str, bool]]:
        """Return the paths that it sees besides (path, is read-only)."""
        # Path.expanduser would raise for an unknown user.
        return [(str(self.cwd / os.path.expanduser(mount[:-3])), mount.endswith(":ro")) for mount in self.mounts]  # noqa: PTH111  never raises

    def unkept(self) -> str:
        """Say why the walls that it asks for cannot keep it to its network; empty if they can."""
        if self.walls is None or keeps_to(self.walls, self.egress):
            return ""
        return f'"walls": "{self.walls}" cannot keep it to the network {self.egress}; leave its walls out, or write "network": true'

    @property
    def secrets(self) -> Iterator[str]:
        """Values to hide from anybody who sees a message about the server."""
        for name, value in (*self.env.items(), *self.headers.items()):
            if is_secret_name(name):
                yield from (value, value.rpartition(" ")[2])  # `Bearer ...` also appears without its first word

    @model_validator(mode="after")
    def _is_of_one_kind(self) -> Self:
        if bool(self.command) == bool(self.url):
            raise ValueError('give it either a "command" to start, or a "url" to reach')
        if self.url and self.model_fields_set & {"walls", "egress", "mounts"}:
            raise ValueError("walls, network and mounts are of programs; this one runs elsewhere")
        if self.walls == "plain" and self.mounts:
            raise ValueError('mounts need walls, which "walls": "plain" does without')
        if said := self.unkept():
            raise ValueError(said)
        if self.type and self.type not in (_STDIO if self.command else _HTTP):
            raise ValueError(
                f'the type "{shown(self.type)}" is not one of a server with a {"command" if self.command else "url"}; '
                'there are "stdio", for commands, and "http" (streamable), for URLs'
            )
        if self.url and not self.url.startswith(("http://", "https://")):
            raise ValueError("its url must start with http:// or https://")
        return self


def read_servers(path: Path, network: str = "", minimum: str = "") -> list[Server]:
    """Read the servers of a file, without those that are disabled.

    Programs whose entries name no network have `network`, if that is given, and none has less walls than the `minimum`.

    `${NAME}` and `${NAME:-default}` are replaced by variables of our environment. A relative `cwd` is relative to the
    folder of the file, which is also the default.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"FORGE_MCP_CONFIG: {path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise ConfigurationError(f"FORGE_MCP_CONFIG: {path} is no JSON: {error}.") from error
    servers = found.get("mcpServers") if isinstance(found, dict) else None
    if not isinstance(servers, dict):
        raise ConfigurationError(
            f'FORGE_MCP_CONFIG: {path} has no servers. Write {{"mcpServers": {{"NAME": {{"command": "..."}}}}}}.'
        )
    read = [_server(path, name, declared, network, minimum) for name, declared in servers.items()]
    return [server for server in read if not server.disabled]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerWalls:
    """How the servers of a worker are started; by default without walls.

    `network` and `minimum` are those of `read_servers`. `homes` has the home of each server, which is kept. What is
    `closed` no server sees unless its entry mounts it, and what is `hidden` not even then; `opened` has further paths,
    such as `/data:ro`. If this `machine` lacks the walls of a server, it gets lower ones, but none below the `least`,
    below what keeps it to its network, or below what its entry asks for.
    """

    default: Tier = "plain"
    network: str = ""
    minimum: str = ""
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
        argv, environment = [server.command, *server.args], {**environment, **server.env}
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return spawner.start(argv, environment, folder=folder, streams=streams, grace=grace, shown=shown)
        finally:
            os.close(folder)

    def close(self) -> None:
        for spawner in self._spawners.values():
            spawner.close()

    def _spawner(self, tier: str, network: str) -> Spawner:
        """Return what starts the servers with these walls, each of which is shown everything that it sees."""
        if (tier, network) not in self._spawners:
            self._spawners[tier, network] = Spawner([tier, network])
        return self._spawners[tier, network]

    def _mounts(self, server: Server, home: str) -> tuple[str, list[tuple[str, bool]]]:
        """Return the folder that a server with that home starts in, and the paths that it sees besides."""
        folder = os.path.realpath(server.cwd)
        mounts = server.mounted()
        if self._is_private(folder):
            folder = home
        elif folder not in {os.path.realpath(path) for path, _ in mounts}:
            mounts.insert(0, (folder, True))  # read-only, unless its entry mounts it otherwise
        return folder, mounts

    def _shown(self, tier: str, server: Server, mounts: list[tuple[str, bool]], home: str, temporary: str) -> list[str]:
        found = child_environment()
        found["PATH"] = server.env.get("PATH", found["PATH"])
        if tier == NAMESPACE:
            return [*of_machine(found, self.closed, self.opened), *of_workspace(mounts, self.hidden, home)]
        shut = tuple(map(os.path.realpath, self.hidden))
        seen = [(part, read) for path, read in mounts for part in parts(os.path.realpath(path), shut)]
        of_all = behind_landlock(found, (*self.closed, tempfile.gettempdir()), self.opened)
        of_all = [word for word in of_all if not word.startswith("ln:")]  # links go into homes made for one command
        return [*of_all, *(f"{'ro' if read else 'rw'}:{part}" for part, read in seen), f"rw:{home}", f"own:{temporary}"]

    def _home(self, server: str) -> str:
        name = "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in server)[:60]
        # With a hash, since names may differ only in what is replaced or cut.
        home = self.homes / f"{name}-{sha256(server.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"
        (home / ".cache").mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.path.realpath(home)

    def _is_private(self, folder: str) -> bool:
        """Whether a folder contains our home, with its credentials, or lies in what is hidden: it is not shown unasked."""
        has_home = Path(os.path.realpath(Path.home())).is_relative_to(folder)
        return has_home or any(Path(folder).is_relative_to(os.path.realpath(path)) for path in self.hidden)


def _server(path: Path, name: str, declared: Any, network: str, minimum: str) -> Server:
    where = f'FORGE_MCP_CONFIG: {path}, server "{shown(name)}"'
    if not isinstance(declared, dict):
        raise ConfigurationError(f'{where}: it must be an object, such as {{"command": "..."}}.')
    try:
        server = Server.model_validate({**_expanded(declared, where), "name": name})
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ConfigurationError(f"{where}{', ' if place else ''}{place}: {own_words(first['msg'])}.") from error
    if server.model_extra:
        unknown = sorted(map(shown, server.model_extra))
        logger.warning("An MCP server has unknown settings", extra={"server": name, "settings": unknown})
    server = server.model_copy(update={"cwd": path.resolve().parent / server.cwd})
    if network and server.command and "egress" not in server.model_fields_set:
        server = server.model_copy(update={"egress": network})
        if said := server.unkept():
            raise ConfigurationError(f"{where}: {said}. FORGE_EGRESS_OF sets that network for category:mcp.")
    if minimum and server.walls == "plain":
        raise ConfigurationError(f'{where}: "walls": "plain" is less than FORGE_WALLS_MINIMUM={minimum}. Leave it out.')
    for mounted, _ in server.mounted():
        if not Path(mounted).exists():
            raise ConfigurationError(f"{where}, mounts: {shown(mounted)} does not exist on this host.")
    return server


def _fits(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _expanded(value: Any, where: str) -> Any:
    if isinstance(value, str):
        try:
            return expanded(value)
        except ConfigurationError as error:
            raise ConfigurationError(f"{where}: {error}") from error
    if isinstance(value, Mapping):
        return {name: _expanded(part, where) for name, part in value.items()}
    return [_expanded(part, where) for part in value] if isinstance(value, list) else value
