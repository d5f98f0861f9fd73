"""The configured MCP servers: the `mcpServers` of a JSON file, in the format of Claude Desktop and Claude Code."""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from forge_tools.environment import expanded
from forge_tools.errors import ConfigurationError
from forge_tools.model import is_secret_name
from forge_tools.sandbox.walls.probe import keeps_to
from forge_tools.schema import shown
from forge_tools.setting_types import Network

_STDIO = frozenset({"stdio"})
_HTTP = frozenset({"http", "streamable-http", "streamableHttp"})

Text = Annotated[str, StringConstraints(pattern=r"^[^\x00]*$")]
Mount = Annotated[str, StringConstraints(pattern=r"^[^\x00]+:r[ow]$")]
Variable = Annotated[str, StringConstraints(pattern=r"^[^\x00=]+$")]

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
    `walls`, `mounts` and `egress` (`network` in a file) are of programs: what they see besides the system and `cwd`, and whom
    they may connect to, as `FORGE_EGRESS` says it of commands.
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
        """Whether a tool of that name may be offered."""
        return _fits(tool, self.allow_tools) and not _fits(tool, self.deny_tools)

    def mounted(self) -> list[tuple[str, str]]:
        """Return the paths that it sees besides, and how: `ro` or `rw`."""
        return [(str(self.cwd / Path(mount[:-3]).expanduser()), mount[-2:]) for mount in self.mounts]

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Usual:
    """What the operator sets for all servers that are programs: the network of those whose entries name none, and the least walls."""

    network: str = ""
    minimum: str = ""


UNSET = Usual()


def read_servers(path: Path, usual: Usual = UNSET) -> list[Server]:
    """Read the servers of a file, without those that are disabled.

    `${NAME}` and `${NAME:-default}` are replaced by variables of our environment. A relative `cwd` is relative to the
    folder of the file, which is also the default.

    Raises:
        ConfigurationError: naming the file, the server and what it must be.
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
    folder = path.resolve().parent
    read = [_server(path, name, declared, folder, usual) for name, declared in servers.items()]
    return [server for server in read if not server.disabled]


def _server(path: Path, name: str, declared: Any, folder: Path, usual: Usual) -> Server:
    where = f'FORGE_MCP_CONFIG: {path}, server "{shown(name)}"'
    if not isinstance(declared, dict):
        raise ConfigurationError(f'{where}: it must be an object, such as {{"command": "..."}}.')
    try:
        server = Server.model_validate({**_expanded(declared, where), "name": name})
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ConfigurationError(f"{where}{', ' if place else ''}{place}: {first['msg']}.") from error
    if server.model_extra:
        unknown = sorted(map(shown, server.model_extra))
        logger.warning("An MCP server has unknown settings", extra={"server": name, "settings": unknown})
    server = server.model_copy(update={"cwd": folder / server.cwd})
    if usual.network and server.command and "egress" not in server.model_fields_set:
        server = server.model_copy(update={"egress": usual.network})
        if said := server.unkept():
            raise ConfigurationError(f"{where}: {said}. FORGE_EGRESS_OF sets that network for category:mcp.")
    if usual.minimum and server.walls == "plain":
        raise ConfigurationError(
            f'{where}: "walls": "plain" is less than FORGE_WALLS_MINIMUM={usual.minimum}. Leave it out.'
        )
    for mounted, _ in server.mounted():
        if not Path(mounted).exists():
            raise ConfigurationError(f"{where}, mounts: {shown(mounted)} does not exist on this host.")
    return server


def _fits(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _expanded(value: Any, where: str) -> Any:
    """Copy what was declared with variables expanded in every text."""
    if isinstance(value, str):
        try:
            return expanded(value)
        except ConfigurationError as error:
            raise ConfigurationError(f"{where}: {error}") from error
    if isinstance(value, Mapping):
        return {name: _expanded(part, where) for name, part in value.items()}
    return [_expanded(part, where) for part in value] if isinstance(value, list) else value
