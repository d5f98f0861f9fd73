"""Settings: what the environment sets (`FORGE_*`), and where the embedded stack is."""

import json
import os
import re
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import quote

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from forge_tools.errors import ConfigurationError, own_words
from forge_tools.project import Marker, broker_socket, find_project
from forge_tools.setting_types import (
    CATEGORY,
    DigestKey,
    GivenNetwork,
    Network,
    NetworkedName,
    OpenPath,
    QueueName,
    RetentionRule,
    RootSettings,
    SecretPattern,
    SharedFolder,
    ToolMemory,
    WalledName,
    WorkspaceSettings,
)
from forge_tools.time_limits import TimeLimits
from forge_tools.urls import database_id, require_known_options, require_readable, with_password

LONGEST_DRAIN = 900.0
"""Seconds that a departing worker has for its running calls; most bodies end long before, by their own timeouts."""

BROKERS = ("redis", "rediss", "valkey", "valkeys", "amqp", "amqps")
"""The schemes of brokers; `redis+socket` and `valkey+socket` are those of sockets."""

_UNREADABLE = re.compile(r'field "(\w+)"')
WORKSPACE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class Settings(BaseSettings):
    """Every setting with its default; `FORGE_DATABASE_URL` sets `database_url`, and so on.

    Durations are seconds. Without URLs, the embedded stack in `home` is used: SQLite and a Valkey socket there. If
    `home` is not given, `.forge` in the workspace or above it names it.
    """

    model_config = SettingsConfigDict(
        env_prefix="FORGE_",
        env_ignore_empty=True,
        frozen=True,
        extra="ignore",
        hide_input_in_errors=True,  # it may be a password
        validate_default=False,
    )

    workspace: Path = Field(default_factory=Path.cwd)
    """The folder that tools may access; on workers, that of calls that name none."""
    home: Path = Field(default_factory=lambda settings: marker_of(settings["workspace"]).home)
    """Where the embedded stack keeps its data; by default the folder that `.forge` in the workspace or above it names."""
    project: Path = Field(default_factory=Path.cwd)
    """A folder from which modules of tools are imported, besides the current one."""
    tools: tuple[str, ...] = Field(default=(), examples=[["mytools"]])
    """The user's tools, as a JSON list of modules, packages or files; it replaces the list in `[tool.forge-tools]`."""
    engine: str = ""
    """The function that makes the engine of this host, as `module:function`; tools get it by `Depends(engine)`."""
    broker_url: str = ""
    """The broker: `redis://`, `rediss://`, `valkey://`, `valkeys://`, `amqp://` or `amqps://`; of a socket `redis+socket:///path?virtual_host=0`. Empty: that of the embedded stack."""
    broker_password_file: Path | None = None
    """A file with the broker's password, instead of one in its URL."""
    database_url: str = ""
    """The database: `postgresql://` or `sqlite:///`. Empty: that of the embedded stack."""
    database_password_file: Path | None = None
    """A file with the database's password, instead of one in its URL."""
    database_pooler: Literal["none", "transaction"] = "none"
    """`transaction` if the URL leads to a pooler in that mode, such as PgBouncer."""
    database_migration_url: str = ""
    """The URL for `db upgrade` and `db downgrade`, with a role that owns the tables and no pooler. Empty: `database_url`."""
    database_migration_password_file: Path | None = None
    """A file with the password for that URL."""
    hostname: str = Field(
        default_factory=socket.gethostname,
        min_length=1,
        max_length=200,
        pattern=r"^[A-Za-z0-9._-]+$",
        validate_default=True,  # what the kernel says may be no name of a queue
    )
    """The name of this host in history and in the name of its own queue, `host.<name>`."""
    workspace_roots: tuple[RootSettings, ...] = Field(default=(), examples=[["/srv/repo"]])
    """The folders of the default workspace, as JSON, instead of only `workspace`."""
    workspaces: dict[str, WorkspaceSettings] = Field(
        default_factory=dict, examples=[{"docs": {"roots": ["/srv/docs"]}}]
    )
    """Further workspaces by name, as JSON: `roots`, `shared`, `protected`."""

    max_timeout: float = Field(default=86_400.0, gt=0)
    """Seconds that any call may run, whatever timeout it asks for."""
    kill_grace: float = Field(default=2.0, gt=0)
    """Seconds between cancelling a body that timed out and killing its processes."""
    expires: float = Field(default=600.0, gt=0)
    """Seconds that a call waits for a worker before it expires."""
    background_expires: float = Field(default=86_400.0, gt=0)
    """Seconds that a call in the queue `background` waits for a worker before it expires."""

    heartbeat: float = Field(default=1.0, gt=0)
    """Seconds between two heartbeats of a worker."""
    lease: float = Field(default=15.0, ge=15)
    """Seconds without a heartbeat after which a worker counts as dead; five heartbeats or more, and the same for all workers of a database."""
    drain: float = Field(default=LONGEST_DRAIN, ge=0)
    """Seconds that running calls have to finish when a worker is stopped."""
    consumption_interval: float = Field(default=10.0, gt=0)
    """Seconds between two checks that a worker still receives messages; it stops after five failed ones."""
    result_notifications: bool = True
    """Whether the message that wakes a client carries small results, encrypted."""
    encryption_keys: str = ""
    """The folder of the keys that decrypt what clients encrypted. Empty: `keys` in `home`."""
    secrets_dir: Path | None = None
    """A folder with a file for each secret that calls may refer to as `secret://NAME`; `FORGE_SECRET_<NAME>` gives a single one."""
    encrypt_patterns: tuple[SecretPattern, ...] = Field(default=(), examples=[["well-known"]])
    """Regular expressions, as a JSON list: a value that one of them matches is a secret in any parameter. `well-known` stands for those of known services."""
    references_in: tuple[str, ...] = Field(default=(), examples=[["Bash"]])
    """Tools, as a JSON list, for which names of secrets are also resolved inside objects."""
    shells: str = ""
    """The folder for shells that outlive a call. Empty: `shells-<hostname>` in `home`."""
    shell_interval: float = Field(default=2.0, gt=0)
    """Seconds between two checks of a host's shells."""
    shell_lost_after: float = Field(default=300.0, ge=15)
    """Seconds after which the shells of a silent host count as lost."""
    shell_kept: float = Field(default=86_400.0, ge=60)
    """Seconds that an ended shell is kept."""
    connect_timeout: float = Field(default=3.0, gt=0)
    """Seconds that connecting to a database may take."""
    database_timeout: float = Field(default=5.0, gt=0)
    """Seconds that a client gives to connecting, a statement and its retries together."""

    walls: Literal["plain", "landlock"] | None = None
    """What isolates bodies of the process lane from their host, for all tools. Empty: each tool decides; the code tools use `landlock`."""
    walls_of: dict[WalledName, Literal["plain", "landlock", "namespace"]] = Field(
        default_factory=dict, examples=[{"Bash": "plain"}]
    )
    """The same as a JSON object, for a tool (`Bash`), else a category (`category:web`), else a queue (`queue:untrusted`)."""
    walls_minimum: Literal["landlock"] | None = None
    """The least that isolates every tool: one of the async lane then runs in the process lane, or is refused if it cannot."""
    walls_paths: tuple[OpenPath, ...] = Field(default=(), examples=[["/data:ro"]])
    """Paths, as a JSON list, that walls leave open to all tools: `/data:ro` to read, `/data:rw` also to write."""
    run_as: str = ""
    """The user that the process lane of a worker started by root runs as, `user` or `user:group`. Empty: root, without capabilities."""
    egress: Network = ""
    """Where commands behind walls may connect to: anywhere (`host`), nowhere (`none`), or, in namespaces, over HTTP to hosts (`api.example.com, *.example.org:8443`). Empty: `host` on the embedded stack, elsewhere `none`."""
    egress_of: dict[NetworkedName, GivenNetwork] = Field(default_factory=dict, examples=[{"queue:builds": "pypi.org"}])
    """The same as a JSON object: for commands by `Bash`, else `category:execution`, else a queue (`queue:builds`); and for MCP servers, `category:mcp`."""
    tool_memory: ToolMemory = 2**31
    """Bytes of memory for one call of the process lane, with all its processes; by cgroup also for a command; 0: no limit."""
    tool_processes: int = Field(default=4096, ge=0, le=2**22)  # the kernel takes no more
    """Processes and threads of one command in namespaces; by cgroup of any call of the process lane and any command; 0: no limit."""
    cgroup: str = ""
    """The folder of a cgroup (v2) that the workers of this host may divide. Empty: their own, if systemd delegates it (`Delegate=yes`)."""
    max_parameter_bytes: int = Field(default=10_000_000, gt=0)
    """Bytes that the parameters of a call may have, as JSON."""
    max_output_bytes: int = Field(default=50_000_000, gt=0)
    """Bytes that the output of a call may have, as JSON."""
    artifact_max_bytes: int = Field(default=64 << 20, ge=65_536)
    """Bytes that one artifact may have: an output kept whole because it is too long for a result."""
    max_part_size: int = Field(default=100 << 20, gt=0)
    """Bytes that one image, file or other part of a result may have."""
    artifact_quota: int = Field(default=1 << 30, gt=0)
    """Bytes of artifacts and parts that one session may keep; beyond that it loses the oldest."""
    artifact_ttl: float = Field(default=7 * 86_400.0, gt=0)
    """Seconds that artifacts and parts are kept."""
    artifact_dir: SharedFolder | None = None
    """A folder for their bytes that all hosts share, as an absolute path. Without one they are in PostgreSQL, or beside an SQLite file in `<file>.artifacts`."""
    idempotency_scope: Literal["agent", "session", "shared"] = "agent"
    """Who shares an idempotency key: one `agent`, one `session`, or all (`shared`)."""
    idempotency_ttl: float = Field(default=86_400.0, gt=0, le=315_360_000.0)
    """Seconds that a key keeps referring to its call after the call has ended."""
    digest_key: DigestKey = Field(default=SecretStr(""), exclude=True)
    """The secret for the digests of calls with an idempotency key, the same for all clients. On PostgreSQL such calls need it."""
    routes: dict[str, QueueName] = Field(default_factory=dict, examples=[{"Bash": "shells"}])
    """Queues by tool or category, as a JSON object; all other calls go to `default`."""
    tool_versions: Literal["newest", "pinned"] = "newest"
    """`pinned` keeps each tool of a worker at the definition that was published first, until somebody pins another."""
    retention: tuple[RetentionRule, ...] = Field(default=(), examples=[[{"days": 90}]])
    """What workers prune, as a JSON list of rules: `days`, and `tool`, `category`, `status`, `keep`."""
    audit_interval: float = Field(default=10.0, ge=0)
    """Seconds between two batches of the audit chain; 0: no chain."""
    audit_key: Path | None = None
    """A file with the key that signs the audit chain. Embedded: `audit.key` in `home`."""
    audit_heads: Path | None = None
    """The file outside the database with the last heads of the audit chain. Embedded: `audit.heads` in `home`; else one per database beside the homes."""
    log_format: Literal["text", "json"] = "text"
    """`json` logs one object per line."""
    web_allowed: tuple[str, ...] = Field(default=(), examples=[["intranet.example.com"]])
    """Hosts and networks, as a JSON list, that web tools may reach although they are not public."""
    web_ports: tuple[int, ...] = Field(default=(80, 443, 8080, 8443), examples=[[80, 443]])
    """Ports, as a JSON list, that web tools may reach."""
    web_robots: bool = False
    """Whether web tools obey the robots.txt of a site."""
    web_search: Literal["", "searxng", "brave", "tavily"] = ""
    """The provider that `WebSearch` asks. Empty: none."""
    web_search_url: str = ""
    """The URL of that provider, if not its usual one; SearXNG has no usual one."""
    web_search_key: SecretStr = Field(default=SecretStr(""), exclude=True)
    """The API key for that provider."""
    mcp_token: SecretStr = Field(default=SecretStr(""), exclude=True)
    """The token that clients of `forge-tools mcp --http` must send."""
    mcp_config: Path | None = None
    """A file that lists the MCP servers that workers host."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Order the sources: arguments, then the environment, then the project that this folder belongs to."""
        found = find_project()
        project = {} if found is None else {"project": found.folder, "tools": found.tools}
        return init_settings, env_settings, InitSettingsSource(settings_cls, project)

    @model_validator(mode="after")
    def _lease_outlasts_heartbeats(self) -> Self:
        if self.lease < 5 * self.heartbeat:
            raise ValueError(f"lease {self.lease}s must be at least five heartbeats of {self.heartbeat}s")
        return self

    @field_validator("broker_url", "database_url", "database_migration_url")
    @classmethod
    def _urls_can_be_read(cls, url: str) -> str:
        if url:
            require_readable(url)
        return url

    @field_validator("broker_url")
    @classmethod
    def _broker_is_supported(cls, url: str) -> str:
        scheme = url.partition("://")[0].partition("+")[0]
        if scheme not in {"", *BROKERS}:
            raise ValueError(f"there is no broker for {scheme[:40]}://; write {'://, '.join(BROKERS)}://")
        require_known_options(url)
        return url

    @field_validator("workspace")
    @classmethod
    def _workspace_is_there(cls, folder: Path) -> Path:
        if not os.path.isdir(folder):  # noqa: PTH112  unlike Path.is_dir it returns False for what cannot be accessed
            raise ValueError(f"there is no folder {folder}")
        return folder

    @model_validator(mode="after")
    def _passwords_can_be_read(self) -> Self:
        if self.broker_password_file or self.database_password_file or self.database_migration_password_file:
            _ = self.broker, self.database, self.migration_database
        return self

    @field_validator("workspaces")
    @classmethod
    def _workspaces_have_names(cls, workspaces: dict[str, WorkspaceSettings]) -> dict[str, WorkspaceSettings]:
        for name in workspaces:
            if not WORKSPACE_NAME.fullmatch(name):
                raise ValueError(f"{name!r} is not a valid name; use up to 100 letters, digits, '-', '_' and '.'")
        return workspaces

    @model_validator(mode="after")
    def _nothing_asks_for_less_than_the_minimum(self) -> Self:
        asked = {"FORGE_WALLS": self.walls} | {
            f"FORGE_WALLS_OF for {name}": tier for name, tier in self.walls_of.items()
        }
        if self.walls_minimum is not None and (less := [name for name, tier in asked.items() if tier == "plain"]):
            raise ValueError(
                f"walls_minimum is {self.walls_minimum}, but {', '.join(less)} says plain; change one of them"
            )
        return self

    @model_validator(mode="after")
    def _quota_holds_an_artifact(self) -> Self:
        if self.artifact_quota < self.artifact_max_bytes:
            raise ValueError(
                f"artifact_quota {self.artifact_quota:,} must be at least artifact_max_bytes, {self.artifact_max_bytes:,}"
            )
        return self

    @classmethod
    def load(cls, given: Self | None = None, /, **overrides: Any) -> Self:
        """Read the environment, with what `given` sets and `overrides` on top.

        Raises:
            ConfigurationError: naming the setting and what it must be.
        """
        if given is not None and not overrides:
            return given
        known = {} if given is None else {name: getattr(given, name) for name in given.model_fields_set}
        try:
            return cls(**known | {k: v for k, v in overrides.items() if v is not None})
        except SettingsError as error:
            found = _UNREADABLE.search(str(error))
            raise ConfigurationError(_said_of((found[1],), "") if found else str(error)) from error
        except ValidationError as error:
            # A default that is made of a wrong setting is no problem of its own.
            problems = [one for one in error.errors(include_url=False) if one["type"] != "default_factory_not_called"]
            raise ConfigurationError("\n".join(_said_of(one["loc"], one["msg"]) for one in problems)) from error

    @property
    def marker(self) -> Marker | None:
        """What leads to `home` now; None if that was given."""
        return None if "home" in self.model_fields_set else marker_of(self.workspace)

    @property
    def is_embedded(self) -> bool:
        """Whether both broker and database are the ones in `home`."""
        return not self.broker_url and not self.database_url

    @property
    def broker(self) -> str:
        """The broker's URL for Celery, which knows Valkey only as a Redis server."""
        url = self._whole_url("broker", self.broker_url, self.broker_password_file)
        url = url or f"redis+socket://{quote(str(broker_socket(self.home)))}"
        return f"redis{url.removeprefix('valkey')}" if url.startswith("valkey") else url

    @property
    def database(self) -> str:
        """The database's URL, without a driver unless the user named one; with `pooler=transaction` if there is one."""
        url = self._whole_url("database", self.database_url, self.database_password_file)
        if url.startswith("postgres") and self.database_pooler != "none":
            url = f"{url}{'&' if '?' in url else '?'}pooler={self.database_pooler}"
        if url:
            return url
        file = self.home.resolve() / "forge.db"
        try:
            str(file).encode()
        except UnicodeEncodeError as error:  # SQLite and Valkey would take it, and much between them would not
            why = "is not UTF-8. Rename that folder, or set FORGE_HOME to another"
            raise ConfigurationError(f"{file.parent}, where the embedded stack keeps its data, {why}.") from error
        return f"sqlite:///{file}"

    @property
    def migration_database(self) -> str:
        """The URL for migrations: it avoids a pooler, and its role owns the tables."""
        url, file = self.database_migration_url, self.database_migration_password_file
        return self._whole_url("database_migration", url, file) or self.database

    @staticmethod
    def _whole_url(server: str, url: str, file: Path | None) -> str:
        if file is None:
            return url
        try:
            return with_password(url, file.read_text().rstrip("\r\n"))
        except (OSError, ValueError) as error:
            what = getattr(error, "strerror", None) or error
            raise ConfigurationError(f"FORGE_{server.upper()}_PASSWORD_FILE {file}: {what}") from error

    @property
    def time_limits(self) -> TimeLimits:
        """What ends a body that does not stop."""
        return TimeLimits(self.kill_grace, self.lease)

    @property
    def stop_patience(self) -> float:
        """The longest that a worker may take to leave: whoever starts workers must not kill them earlier."""
        # As the engine counts: three graces after the drain, and two margins of five seconds.
        return self.drain + 3 * self.kill_grace + 10

    @property
    def cache(self) -> Path:
        """Where tools keep what can be recomputed: the cache folder of the XDG specification."""
        return _xdg_folder("XDG_CACHE_HOME", "~/.cache") / "forge-tools"

    @property
    def embedded_audit_key(self) -> Path:
        """The key that the embedded stack generates to sign history."""
        return self.home.resolve() / "audit.key"

    @property
    def audit_heads_file(self) -> Path:
        """Where the last heads of the audit chain are kept, one file for a database, whoever reaches it."""
        name = f"audit-{database_id(self.database_url)}.heads"
        return self.audit_heads or (_homes() / name if self.database_url else self.home.resolve() / "audit.heads")

    @property
    def shells_folder(self) -> Path:
        """Where this host's shells live: one folder for all its workers, but not for two hosts that share a home."""
        return Path(self.shells or self.home / f"shells-{self.hostname}").resolve()

    @property
    def keys_folder(self) -> Path:
        """Where workers have the keys that decrypt what clients encrypted."""
        return Path(self.encryption_keys or self.home / "keys").resolve()

    def working_dir(self, *, is_local: bool) -> str:
        """Return where calls from here run: on one machine in this folder, elsewhere in a worker's own folder."""
        return str(self.workspace.absolute()) if is_local or self.is_embedded else "."

    def walls_for(self, tool: str, category: str) -> str | None:
        """The tier that configuration sets for a tool or its category; None if for neither."""
        return self.walls_of.get(tool) or self.walls_of.get(f"{CATEGORY}{category}")

    def queue_for(self, tool: str, category: str) -> str:
        """Return the queue that configuration routes a tool or its category to."""
        return self.routes.get(tool) or self.routes.get(category) or "default"

    def expiry_for(self, queue: str) -> float:
        """Return how long a call may wait in that queue before it expires."""
        return self.background_expires if queue == "background" else self.expires


def _said_of(place: Sequence[int | str], message: str) -> str:
    """Say what is wrong with a setting, and show one that is written in JSON; its value may be a secret."""
    name, *inside = map(str, place or ("settings",))
    field, variable_name = Settings.model_fields.get(name), f"FORGE_{name.upper()}"
    error = ": ".join(filter(None, (" > ".join(inside), own_words(message))))
    if field is None or not field.examples:
        return f"{variable_name}: {error}"
    (example,) = field.examples
    form = f"a JSON {'object' if isinstance(example, dict) else 'list'}, such as '{json.dumps(example)}'"
    return f"{variable_name}: {error}. Write {form}." if error else f"{variable_name} is no JSON. Write {form}."


def marker_of(folder: Path) -> Marker:
    """Return what leads to the home of a folder's embedded stack.

    Raises:
        ConfigurationError: a `.forge` cannot be read.
    """
    return Marker.find(folder, _homes())


def _homes() -> Path:
    """Return where the homes of embedded stacks are: the state folder of the XDG specification."""
    state = _xdg_folder("XDG_STATE_HOME", "~/.local/state") / "forge-tools"
    # Without a home: its usual name for such users, since only an embedded stack needs one.
    return state if state.is_absolute() else Path("/nonexistent/.local/state/forge-tools")


def _xdg_folder(variable: str, usual: str) -> Path:
    given = Path(os.environ.get(variable, ""))
    return given if given.is_absolute() else Path(os.path.expanduser(usual))  # noqa: PTH111  never raises
