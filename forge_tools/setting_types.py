"""Settings that are more than a number or a name, parsed from JSON: workspaces, retention rules, open paths."""

import re
from pathlib import Path
from typing import Annotated

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    StringConstraints,
    field_validator,
    model_validator,
)

MIN_TOOL_MEMORY = 2**28
"""Bytes; an idle child with its threads takes about a third of it."""

MIN_DIGEST_KEY = 16
"""Characters; a shorter key could be guessed."""

OpenPath = Annotated[str, StringConstraints(pattern=r"^/.*:r[ow]$")]
"""A path that walls leave open, and for what: `/data:ro` or `/data:rw`."""

_HOST = re.compile(r"(\*\.)?[a-z0-9_]([a-z0-9._-]*[a-z0-9])?(:[0-9]{1,5})?")


def _network(text: str) -> str:
    hosts = [host for part in text.lower().split(",") if (host := part.strip())]
    for host in hosts:
        port = host.partition(":")[2]
        if not _HOST.fullmatch(host) or (port and not 0 < int(port) < 1 << 16):
            raise ValueError(f"{host!r} is no host; write api.example.com, *.example.org or api.example.com:8443")
    if len(hosts) > 1 and (word := {"host", "none"}.intersection(hosts)):
        raise ValueError(f"{word.pop()!r} stands alone: it says of all hosts whether they can be reached")
    return ",".join(dict.fromkeys(hosts))


Network = Annotated[str, AfterValidator(_network)]
"""Where commands may connect to: `host` for anywhere, `none`, or a list of hosts, such as `api.example.com, *.example.org:8443`."""


def _is_given(network: str) -> str:
    if not network:
        raise ValueError("no network is given. Write host, none, or the hosts, or leave the entry out")
    return network


GivenNetwork = Annotated[Network, AfterValidator(_is_given)]

CATEGORY, QUEUE = "category:", "queue:"

_QUEUE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,204}")


def queue_name(name: object) -> str:
    """Return the name of a queue as it is; raises ValueError if no queue can be called that."""
    if not isinstance(name, str) or not _QUEUE_NAME.fullmatch(name):
        raise ValueError(
            f"Queue {repr(name)[:100]} is not a valid name; use up to 205 letters, digits, '-', '_' and '.'"
        )
    return name


QueueName = Annotated[str, AfterValidator(queue_name)]

WalledName = Annotated[str, StringConstraints(pattern=rf"^({CATEGORY}|{QUEUE})?[A-Za-z0-9_][A-Za-z0-9._-]*$")]
"""What walls are set for: a tool by its name, a category or a queue."""


def _starts_programs(name: str) -> str:
    if name not in {"Bash", "category:execution", "category:mcp"} and not name.startswith(QUEUE):
        raise ValueError(
            f"{name} starts no programs behind walls of their own; this is for Bash, category:execution, category:mcp and queues. "
            "Whether the body of a tool has the network, the tool declares: Capabilities(accesses_network=True)"
        )
    return name


NetworkedName = Annotated[WalledName, AfterValidator(_starts_programs)]
"""What a network is set for: commands, by their tool, its category or a queue, and MCP servers, by their category."""


def _compiles(pattern: str) -> str:
    try:
        matches_nothing = re.compile(pattern).search("") is not None
    except re.error as error:
        raise ValueError(f"{pattern!r} is not a regular expression: {error}") from error
    if matches_nothing:
        raise ValueError(f"{pattern!r} matches an empty text; require at least one character")
    return pattern


SecretPattern = Annotated[str, AfterValidator(_compiles)]
"""A regular expression that a secret matches, and an empty text does not."""


def _is_whole(folder: Path) -> Path:
    if not folder.is_absolute():
        raise ValueError(f"give an absolute path, not {folder}: workers and clients start in different folders")
    return folder


SharedFolder = Annotated[Path, AfterValidator(_is_whole)]
"""A folder that several programs share, as an absolute path."""


def _is_enough_to_start(size: int) -> int:
    if 0 < size < MIN_TOOL_MEMORY:
        raise ValueError(
            f"{size:,} bytes are too few to start Python; give {MIN_TOOL_MEMORY:,} or more, or 0 for no limit"
        )
    return size


ToolMemory = Annotated[int, Field(ge=0, lt=2**63), AfterValidator(_is_enough_to_start)]
"""Bytes for one call; 0 sets no limit."""


def _cannot_be_guessed(key: SecretStr) -> SecretStr:
    if 0 < len(key.get_secret_value()) < MIN_DIGEST_KEY:
        raise ValueError(f"give {MIN_DIGEST_KEY} characters or more that nobody can guess: openssl rand -hex 32")
    return key


DigestKey = Annotated[SecretStr, AfterValidator(_cannot_be_guessed)]
"""A secret for digests; empty for none."""


class RootSettings(BaseModel):
    """A folder of a workspace; a plain path stands for one that may be written to."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: Path
    read_only: bool = False

    @model_validator(mode="before")
    @classmethod
    def _path_alone(cls, value: object) -> object:
        return {"path": value} if isinstance(value, str | Path) else value


class WorkspaceSettings(BaseModel):
    """A named workspace. `protected` are patterns of names that no tool touches, besides those it never does.

    One that is not `shared` is bound to the host of the worker that has it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    roots: tuple[RootSettings, ...]
    shared: bool = False
    protected: tuple[Annotated[str, StringConstraints(pattern=r"^[^/]+$")], ...] = ()

    @field_validator("roots", mode="before")
    @classmethod
    def _there_is_a_root(cls, roots: object) -> object:
        if isinstance(roots, list | tuple) and roots:
            return roots
        raise ValueError('a workspace needs a list of at least one folder, such as ["/srv/repo"]')


class RetentionRule(BaseModel):
    """What workers prune: executions that ended so many days ago and meet the other conditions."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    days: float = Field(gt=0)
    tool: str | None = None
    category: str | None = None
    status: str | None = None
    keep: tuple[str, ...] = ()
