"""A tool as data: its parameters, capabilities, schema and past definitions."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from typing import Any, Literal, NamedTuple, NoReturn, Self

from pydantic import BaseModel, ConfigDict, model_validator

from forge_tools.model.calls import ExecutionContext, RetryPolicy
from forge_tools.model.secret_names import is_secret_name
from forge_tools.setting_types import OpenPath

Lane = Literal["async", "process"]
Tier = Literal["plain", "landlock", "namespace"]
"""What isolates from its host a body of the process lane, or the commands that a tool starts (docs/walls.md)."""

COMMANDS = "Bash"
"""The tool whose name stands for all commands in the settings of walls."""

Schema = dict[str, Any]

FILE = "file"
ARTIFACT_PATTERN = "^artifact://([0-9a-f]{32}){1,2}$"

_OPEN_TYPES = frozenset({"boolean", "integer", "number", "null"})
_CONTAINER_TYPES = frozenset({"object", "array", "any"})


class ToolCategory(StrEnum):
    """Groups by which agents select schemas (spec S0-14)."""

    FILE = "file"
    EXECUTION = "execution"
    WEB = "web"
    TASK = "task"
    NOTEBOOK = "notebook"
    MCP = "mcp"
    OTHER = "other"

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        raise ValueError(f"{value!r} is not a category; there are {', '.join(cls)}.")


_BOUND = frozenset({ToolCategory.EXECUTION, ToolCategory.TASK, ToolCategory.MCP})
"""Shells, documents and MCP servers, which a process of one call does not reach."""


class ToolParameter(BaseModel):
    """One parameter of a tool.

    `items` and `properties` are JSON Schema fragments, validated at every depth; `keywords` holds any other JSON Schema
    keyword, such as `pattern` or `anyOf`. The type `any` is left out of schemas; `file` is the handle of an artifact,
    as `client.upload` returns it, and a string in schemas. `aliases` are accepted in calls and never shown in schemas.
    `sensitive` values are encrypted, and shown to people as `[redacted]`; None lets the name decide, such as `password`
    or `api_key`. With `names_host`, the value is a handle such as a shell's id, and the call goes to the host it names.
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
        """Render the property schema: only the fields that are set, `type` and `description` first (spec S0-01..04)."""
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

    `idempotent`: running it again is harmless in every case, even after a crash. `retryable`: a failure that it returns
    or raises left nothing behind; this does not cover timeouts and crashes. `requires_engine`: only hosts that have an
    engine offer it; elsewhere a call of it fails. `paths` are what it needs besides its workspace, such as `/data:ro`: walls
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
    """A tool as data: the catalogue stores it, and clients validate with it and export it without importing the tool.

    `lane` is where its body runs; `timeout` is its own default in seconds. `retry` marks its failures as worth another
    try and sets the delay; `max_attempts` None means that of `retry`, else 3 if idempotent, else 1.
    `extra` allows arguments outside `parameters`. `input_schema` is a complete schema written by others: then
    `parameters` is empty and the schema is the only authority. `walls` is the tier that the tool asks for.
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
        has_others = self.lane == "async" and self.category in {ToolCategory.EXECUTION, ToolCategory.MCP}
        if self.walls == "namespace" and not has_others:
            raise ValueError('walls="namespace" is for tools of category execution in the async lane; use "landlock"')
        if self.lane == "async" and self.walls not in {None, "namespace"}:
            raise ValueError(f'walls="{self.walls}" need a process: declare lane="process"')
        return self

    @cached_property
    def declared(self) -> tuple[ToolParameter, ...]:
        """The parameters; for a tool with a complete schema, its properties with name, type and description."""
        properties = (self.input_schema or {}).get("properties")
        if not isinstance(properties, dict):
            return self.parameters
        required = (self.input_schema or {}).get("required")
        names = required if isinstance(required, list) else []
        return tuple(_property(name, part, required=name in names) for name, part in properties.items())

    @cached_property
    def digest(self) -> str:
        """A short stable hash of the whole definition; different digests of one version mean that two hosts disagree."""
        said = self.model_dump(mode="json", exclude_defaults=True)  # fields that a later release adds change no digest
        text = json.dumps(said, sort_keys=True, ensure_ascii=True)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> "ToolSpec":
        """Copy the definition without its cached values."""
        copy = super().model_copy(update=update, deep=deep)
        for name in vars(copy).keys() - ToolSpec.model_fields.keys():
            del vars(copy)[name]
        return copy

    @property
    def key(self) -> str:
        """`name@major`: what a worker must host to run a call accepted for this version."""
        return tool_key(self.name, self.version)

    @property
    def bound_because(self) -> str | None:
        """Why it cannot move from the async lane to a process behind walls; None where it can."""
        can = self.capabilities
        if can.requires_engine or can.executes_commands:
            return "it has its worker's engine" if can.requires_engine else "its commands run in processes of their own"
        return f"tools of category {self.category} work on what their worker has" if self.category in _BOUND else None

    @property
    def walled_as(self) -> str:
        """The name under which settings set its walls: `Bash` for all tools that start commands or read and end shells."""
        return COMMANDS if self.walls == "namespace" and self.category == ToolCategory.EXECUTION else self.name

    @property
    def attempts(self) -> int:
        """How many body starts an execution of this tool may have."""
        if self.max_attempts is not None:
            return self.max_attempts
        if self.retry is not None:
            return max(1, self.retry.max_attempts)
        return 3 if self.capabilities.idempotent else 1

    def timeout_for(self, context: ExecutionContext, maximum: float | None = None) -> tuple[float, str]:
        """Return the timeout of a call in seconds and its source (contradiction C07).

        It is the caller's explicit value, else the tool's default, else 120 s; then capped by `maximum`.
        """
        if "timeout" in context.model_fields_set:
            seconds, source = context.timeout, "call"
        elif self.timeout is not None:
            seconds, source = self.timeout, "tool"
        else:
            seconds, source = context.timeout, "default"
        if maximum is not None and maximum < seconds < math.inf:  # infinity is for the caller's checks to refuse
            return maximum, f"operator maximum (asked {seconds:g}s by {source})"
        return seconds, source

    @cached_property
    def sensitive(self) -> frozenset[str]:
        """Names, including aliases, of the parameters whose values nobody may see."""
        return frozenset(name for p in self.declared if p.is_sensitive for name in (p.name, *p.aliases))

    @cached_property
    def may_hide(self) -> bool:
        """Whether a call that it accepts may contain something to hide, in any form."""
        return bool(self.sensitive or self._containers or self.extra)

    def hidden(self, parameters: Mapping[str, Any]) -> list[str]:
        """Return the names among `parameters` whose values nobody may see.

        Names unknown to the tool are included if they look like those of secrets. If the tool has sensitive parameters,
        all unknown names are included, since they may be misspelt.
        """
        unknown = (name for name in parameters if name not in self._open_names)
        return [name for name in unknown if self.sensitive or is_secret_name(name)]

    def holding(self, parameters: Mapping[str, Any]) -> list[str]:
        """Return the names among `parameters` whose values are shown, except secrets named inside them."""
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


class ToolWalls(NamedTuple):
    """The tier that a tool has in the process lane, and whether its operator has it run there for that."""

    tier: str = "plain"
    is_moved: bool = False


def tool_key(name: str, version: str) -> str:
    """Return `name@major`, by which calls are accepted and claimed."""
    return f"{name}@{version.partition('.')[0]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolVersion:
    """One published definition of a tool, with the digest it had then.

    Models are offered the default, and calls are checked by it. While one is pinned, no other is run.
    """

    spec: ToolSpec
    digest: str
    first_seen_at: datetime
    last_seen_at: datetime
    is_default: bool
    is_pinned: bool
    is_enabled: bool
    walls: str = "plain"
    """Its tier in the process lane, according to the worker that published it last."""
    demoted_reason: str | None = None
