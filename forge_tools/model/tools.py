"""What a tool is, as data: its parameters, what it may do, how its schema is told, and the definitions of it that there were."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, model_validator

from forge_tools.model.calls import ExecutionContext, RetryPolicy
from forge_tools.model.redaction import is_secret_name
from forge_tools.setting_types import OpenPath

Lane = Literal["async", "process"]
Tier = Literal["plain", "landlock"]
"""What stands between a body of the process lane and its host (docs/walls.md)."""

Schema = dict[str, Any]

FILE = "file"
ARTIFACT_PATTERN = "^artifact://[0-9a-f]{32}$"

_OPEN_TYPES = frozenset({"boolean", "integer", "number", "null"})
_CONTAINER_TYPES = frozenset({"object", "array", "any"})


class ToolCategory(StrEnum):
    """Groups that agents ask schemas by (spec S0-14)."""

    FILE = "file"
    EXECUTION = "execution"
    WEB = "web"
    TASK = "task"
    NOTEBOOK = "notebook"
    MCP = "mcp"
    OTHER = "other"


class ToolParameter(BaseModel):
    """One parameter of a tool.

    `items` and `properties` are JSON Schema fragments and are validated at every depth; `keywords` are whatever else JSON
    Schema can say of a value, such as `pattern` or `anyOf`. The type `any` is left out of schemas; `file` is the handle of an
    artifact, as `client.upload` returns it, and a string in schemas. `aliases` are accepted
    in calls and never shown in schemas. `sensitive` values are encrypted, and shown as `[redacted]` wherever people look; None
    leaves that to the name, such as `password` or `api_key`. Where `names_host`, the value is a handle such as a shell's id,
    and the call goes to the host it names.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    type: str
    description: str
    required: bool = True
    default: Any = None
    enum: list[Any] | None = None
    min_length: int | None = None
    max_length: int | None = None
    minimum: int | float | None = None
    maximum: int | float | None = None
    items: Schema | None = None
    properties: dict[str, Schema] | None = None
    required_properties: tuple[str, ...] = ()
    keywords: Schema | None = None
    sensitive: bool | None = None
    names_host: bool = False
    aliases: tuple[str, ...] = ()

    @property
    def is_sensitive(self) -> bool:
        """Whether nobody may see its values."""
        if self.sensitive is not None:
            return self.sensitive
        return self.type not in _OPEN_TYPES and any(map(is_secret_name, (self.name, *self.aliases)))

    def to_json_schema(self) -> Schema:
        """Render the property schema: only what is set, `type` and `description` first (spec S0-01..04)."""
        optional = {
            "default": self.default,
            "enum": self.enum,
            "minLength": self.min_length,
            "maxLength": self.max_length,
            "minimum": self.minimum,
            "maximum": self.maximum,
            "items": self.items,
            "properties": self.properties,
            "required": list(self.required_properties) or None,
        }
        schema: Schema = {} if self.type == "any" else {"type": self.type}
        if self.type == FILE:
            schema = {"type": "string", "pattern": ARTIFACT_PATTERN}
        schema["description"] = self.description
        return schema | {key: value for key, value in optional.items() if value is not None} | (self.keywords or {})


class Capabilities(BaseModel):
    """What a tool may do to the world, and whether running it again is harmless (spec S1-15).

    `idempotent`: running it again is harmless whatever happened, a crash included. `retryable`: a failure that it returns
    or raises has left nothing behind; after a time-out or a crash that says nothing. `requires_engine`: only hosts that have an
    engine offer it, and elsewhere a call of it fails. `paths` are what it needs besides its workspace, such as `/data:ro`; walls
    leave them open, and with `accesses_network` the network.
    """

    model_config = ConfigDict(frozen=True)

    writes_files: bool = False
    executes_commands: bool = False
    accesses_network: bool = False
    requires_engine: bool = False
    idempotent: bool = False
    retryable: bool = False
    paths: tuple[OpenPath, ...] = ()


class ToolSpec(BaseModel):
    """A tool as data: what the catalogue stores and clients validate and export without importing the tool.

    `lane` is where its body runs; `timeout` its own default in seconds. `retry` says that its failures are worth another
    try, and how far apart; `max_attempts` None means those of `retry`, else 3 if idempotent, else 1.
    `extra` says whether arguments outside `parameters` are passed on. `input_schema` is the whole schema of the arguments
    where others wrote it; then there are no `parameters`, and it alone decides. `walls` is the tier that it asks for.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    description: str
    category: ToolCategory
    parameters: tuple[ToolParameter, ...] = ()
    version: str = "1.0.0"
    capabilities: Capabilities = Capabilities()
    tags: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    lane: Lane = "process"
    timeout: float | None = None
    max_attempts: int | None = None
    retry: RetryPolicy | None = None
    extra: bool = False
    input_schema: Schema | None = None
    output_schema: Schema | None = None
    walls: Tier | None = None

    @model_validator(mode="after")
    def _walls_stand_around_processes(self) -> Self:
        if self.lane == "async" and self.walls is not None:
            raise ValueError(f'walls="{self.walls}" stand around a process: declare lane="process"')
        return self

    @cached_property
    def declared(self) -> tuple[ToolParameter, ...]:
        """The parameters; of a tool with a whole schema, its properties with name, type and description."""
        properties = (self.input_schema or {}).get("properties")
        if not isinstance(properties, dict):
            return self.parameters
        required = (self.input_schema or {}).get("required")
        names = required if isinstance(required, list) else []
        return tuple(_property(name, part, required=name in names) for name, part in properties.items())

    @cached_property
    def digest(self) -> str:
        """Short stable hash of the whole definition; two hosts with different digests of one version disagree."""
        said = self.model_dump(mode="json", exclude_defaults=True)  # what a later release adds changes no digest
        text = json.dumps(said, sort_keys=True, ensure_ascii=True)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> "ToolSpec":
        """Copy the definition; what was worked out of this one is not the copy's."""
        copy = super().model_copy(update=update, deep=deep)
        for name in vars(copy).keys() - ToolSpec.model_fields.keys():
            del vars(copy)[name]
        return copy

    @property
    def key(self) -> str:
        """`name@major`: what a worker must host to run a call accepted for this version."""
        return tool_key(self.name, self.version)

    @property
    def attempts(self) -> int:
        """How many body starts an execution of this tool may have."""
        if self.max_attempts is not None:
            return self.max_attempts
        if self.retry is not None:
            return max(1, self.retry.max_attempts)
        return 3 if self.capabilities.idempotent else 1

    def timeout_for(self, context: ExecutionContext, maximum: float | None = None) -> tuple[float, str]:
        """Decide the timeout of a call in seconds, and say where it came from (contradiction C07).

        The caller's explicit value, else the tool's default, else 120 s; then capped by `maximum`.
        """
        if (explicit := context.explicit_timeout) is not None:
            seconds, source = explicit, "call"
        elif self.timeout is not None:
            seconds, source = self.timeout, "tool"
        else:
            seconds, source = context.timeout, "default"
        if maximum is not None and seconds > maximum:
            return maximum, f"operator maximum (asked {seconds:g}s by {source})"
        return seconds, source

    @cached_property
    def sensitive(self) -> frozenset[str]:
        """Names, aliases included, of the parameters whose values nobody may see."""
        return frozenset(name for p in self.declared if p.is_sensitive for name in (p.name, *p.aliases))

    @cached_property
    def may_hide(self) -> bool:
        """Whether a call that it accepts may have something to hide, whatever that looks like."""
        return bool(self.sensitive or self._containers or self.extra)

    def hidden(self, parameters: Mapping[str, Any]) -> list[str]:
        """The names among `parameters` whose values nobody may see.

        Names that the tool does not know are among them if they say that they stand for a secret, and all of them where it
        has sensitive parameters: they may be misspelt ones.
        """
        unknown = (name for name in parameters if name not in self._open_names)
        return [name for name in unknown if self.sensitive or is_secret_name(name)]

    def holding(self, parameters: Mapping[str, Any]) -> list[str]:
        """The names among `parameters` whose values are shown, but for what has the name of a secret inside them."""
        return [
            name
            for name in parameters
            if name in self._containers or not (name in self._open_names or self.sensitive or is_secret_name(name))
        ]

    @cached_property
    def _containers(self) -> frozenset[str]:
        may_hold = (p for p in self.declared if p.type in _CONTAINER_TYPES)
        return frozenset(name for p in may_hold for name in (p.name, *p.aliases)) - self.sensitive

    @cached_property
    def _open_names(self) -> frozenset[str]:
        return frozenset(name for p in self.declared for name in (p.name, *p.aliases)) - self.sensitive


def _property(name: str, schema: Any, *, required: bool) -> ToolParameter:
    said = schema if isinstance(schema, dict) else {}
    kind, description = said.get("type"), said.get("description")
    return ToolParameter(
        name=name,
        type=kind if isinstance(kind, str) else "any",
        description=description if isinstance(description, str) else "",
        required=required,
    )


def tool_key(name: str, version: str) -> str:
    """`name@major`, by which calls are accepted and claimed."""
    return f"{name}@{version.partition('.')[0]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolVersion:
    """One definition of a tool as it was published, with the digest that it had then.

    The default is the one that models are offered and calls are checked by. While one is pinned, no other is run.
    """

    spec: ToolSpec
    digest: str
    first_seen_at: datetime
    last_seen_at: datetime
    is_default: bool
    is_pinned: bool
    is_enabled: bool
    demoted_reason: str | None = None
