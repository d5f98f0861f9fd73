"""Settings: the sole reader of the environment (`FORGE_*`)."""

import hashlib
import os
import re
import socket
import tempfile
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

from forge_tools.errors import ConfigurationError
from forge_tools.ladder import Ladder
from forge_tools.project import Marker, find_project
from forge_tools.setting_types import OpenPath, RetentionRule, RootSettings, WorkspaceSettings
from forge_tools.urls import require_readable, with_password

LONGEST_DRAIN = 900.0
"""Seconds that a worker which leaves has for what it runs; most bodies end long before, by their own timeouts."""

MAX_SOCKET_PATH = 100
"""Bytes; the kernel stops at 107, and Valkey's own temporary names need a few."""

MIN_TOOL_MEMORY = 2**28
"""Bytes; an idle child with its threads takes about a third of it."""

MIN_DIGEST_KEY = 16
"""Characters; a shorter one could be found by trying."""

WORKSPACE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_VARIABLE = re.compile(r"\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}")


class Settings(BaseSettings):
    """Every setting with its default; `FORGE_DATABASE_URL` sets `database_url`, and so on.

    Durations are seconds. Without URLs the embedded stack in `home` is meant: SQLite and a Valkey socket there. Where `home`
    is not given, `.forge` in the workspace or above it says where it is.
    """

    model_config = SettingsConfigDict(
        env_prefix="FORGE_",
        frozen=True,
        use_attribute_docstrings=True,
        extra="ignore",
        hide_input_in_errors=True,
        validate_default=False,
    )

    workspace: Path = Field(default_factory=Path.cwd)
    """The folder that tools may touch; on workers that of calls which name none."""
    home: Path = Field(default_factory=lambda settings: marker_of(settings["workspace"]).home)
    """Where the embedded stack keeps its data: what `.forge` in the workspace or above it names."""
    project: Path = Field(default_factory=Path.cwd)
    """The folder from which, besides the current one, modules of tools are imported."""
    tools: tuple[str, ...] = ()
    """The user's tools, as a JSON list of modules, packages or files, in place of those in `[tool.forge-tools]`."""
    engine: str = ""
    """What makes the engine of this host, as `module:function`; tools get it by `Depends(engine)`."""
    broker_url: str = ""
    """The broker: `redis://`, `rediss://`, `sentinel://`, `amqp://` or `amqps://`. Empty: that of the embedded stack."""
    broker_password_file: Path | None = None
    """A file with the password of the broker, in place of one in its URL."""
    database_url: str = ""
    """The database: `postgresql://` or `sqlite:///`. Empty: that of the embedded stack."""
    database_password_file: Path | None = None
    """A file with the password of the database, in place of one in its URL."""
    database_pooler: Literal["none", "transaction"] = "none"
    """`transaction` where a pooler such as PgBouncer, in that mode, stands before the database."""
    database_migration_url: str = ""
    """The database as `db upgrade` and `db downgrade` reach it: by a role that owns the tables, past a pooler. Empty: as all others."""
    database_migration_password_file: Path | None = None
    """A file with the password of that URL."""
    hostname: str = Field(
        default_factory=socket.gethostname,
        min_length=1,
        max_length=200,
        pattern=r"^[A-Za-z0-9._-]+$",
        validate_default=True,
    )
    """The name of this host in history, and of its own queue, `host.<name>`."""
    workspace_roots: tuple[RootSettings, ...] = ()
    """Folders of the default workspace, as JSON, in place of `workspace` alone."""
    workspaces: dict[str, WorkspaceSettings] = Field(default_factory=dict)
    """Further workspaces by name, as JSON: `roots`, `shared`, `protected`."""

    max_timeout: float = Field(default=86_400.0, gt=0)
    """Seconds that any call may run, whatever it asks for."""
    kill_grace: float = Field(default=2.0, gt=0)
    """Seconds between the cancellation of a body whose time is up and the kill of its processes."""
    expires: float = Field(default=600.0, gt=0)
    """Seconds that a call waits at most until a worker takes it."""
    background_expires: float = Field(default=86_400.0, gt=0)
    """Seconds that a call waits at most in the queue `background`."""

    heartbeat: float = Field(default=1.0, gt=0)
    """Seconds between two heartbeats of a worker."""
    lease: float = Field(default=15.0, ge=15)
    """Seconds of silence after which a worker counts as dead: five heartbeats or more. The same for all workers of a database."""
    drain: float = Field(default=LONGEST_DRAIN, ge=0)
    """Seconds that a worker which is stopped gives to what it runs."""
    consumption_interval: float = Field(default=10.0, gt=0)
    """Seconds between two looks whether a worker still takes messages; after five without it leaves."""
    result_notifications: bool = True
    """Whether small results travel, encrypted, in the message that wakes their client."""
    encryption_keys: str = ""
    """The folder of the keys that open what clients encrypted. Empty: `keys` in `home`."""
    secrets_dir: Path | None = None
    """A folder with a file for each secret that calls may refer to as `secret://NAME`; `FORGE_SECRET_<NAME>` gives one alone."""
    encrypt_patterns: tuple[str, ...] = ()
    """Regular expressions, as a JSON list: a value that one of them finds is a secret, whatever its parameter. `well-known` stands for those of known services."""
    references_in: tuple[str, ...] = ()
    """Tools, as a JSON list, in whose objects names of secrets are resolved too."""
    shells: str = ""
    """The folder of shells that outlive a call. Empty: `shells-<hostname>` in `home`."""
    shell_interval: float = Field(default=2.0, gt=0)
    """Seconds between two looks at the shells of a host."""
    shell_lost_after: float = Field(default=300.0, ge=15)
    """Seconds after which the shells of a silent host count as lost."""
    shell_kept: float = Field(default=86_400.0, ge=60)
    """Seconds that a shell which has ended is kept."""
    connect_timeout: float = Field(default=3.0, gt=0)
    """Seconds that a connection to a database or broker may take."""
    database_timeout: float = Field(default=5.0, gt=0)
    """Seconds that a client gives to connecting, a statement and its repetitions together."""

    walls: Literal["plain", "landlock"] | None = None
    """What stands between bodies of the process lane and their host, for all tools. Without it each tool says so; the code tools say `landlock`."""
    walls_paths: tuple[OpenPath, ...] = ()
    """Paths, as a JSON list, that these walls leave open to all tools: `/data:ro` to be read, `/data:rw` also to be written."""
    tool_memory: int = Field(default=2**31, ge=0)
    """Bytes of memory for one call of the process lane with all its processes; 0 sets no limit."""
    max_parameter_bytes: int = Field(default=10_000_000, gt=0)
    """Bytes of the parameters of a call, as JSON."""
    max_output_bytes: int = Field(default=50_000_000, gt=0)
    """Bytes of the output of a call, as JSON."""
    artifact_max_bytes: int = Field(default=64 << 20, ge=65_536)
    """Bytes of one output that is kept whole because it is too long for a result."""
    max_part_size: int = Field(default=100 << 20, gt=0)
    """Bytes of one image, file or other part of a result."""
    artifact_quota: int = Field(default=1 << 30, gt=0)
    """Bytes of all of them that one session may keep; over that it loses the first ones."""
    artifact_ttl: float = Field(default=7 * 86_400.0, gt=0)
    """Seconds that they are kept."""
    artifact_dir: Path | None = None
    """A folder for their bytes that all hosts share, by its whole path. Without one they are in the database."""
    idempotency_scope: Literal["agent", "session", "shared"] = "agent"
    """Who shares an idempotency key: `agent`, `session`, or `shared` by all."""
    idempotency_ttl: float = Field(default=86_400.0, gt=0, le=315_360_000.0)
    """Seconds that a key stands for its call."""
    digest_key: SecretStr = Field(default=SecretStr(""), exclude=True)
    """The secret that digests of keyed calls are made with, the same for all clients. Needed on PostgreSQL for keys alone."""
    routes: dict[str, str] = Field(default_factory=dict)
    """Queues by tool or category, as a JSON object; all else waits in `default`."""
    tool_versions: Literal["newest", "pinned"] = "newest"
    """`pinned` has each tool of a worker stay at the definition that was published first, until somebody pins another."""
    retention: tuple[RetentionRule, ...] = ()
    """What workers prune, as a JSON list of rules: `days`, and `tool`, `category`, `status`, `keep`."""
    audit_interval: float = Field(default=10.0, ge=0)
    """Seconds between two batches of the chain of hashes; 0 makes none."""
    audit_key: Path | None = None
    """A file with the key that signs the chain. Embedded: `audit.key` in `home`."""
    log_format: Literal["text", "json"] = "text"
    """`json` has programs log one object a line."""
    web_allowed: tuple[str, ...] = ()
    """Hosts and networks, as a JSON list, that web tools may reach though they are not public."""
    web_ports: tuple[int, ...] = (80, 443, 8080, 8443)
    """Ports, as a JSON list, that web tools may reach."""
    web_robots: bool = False
    """Whether web tools do as the robots.txt of a site says."""
    web_search: Literal["", "searxng", "brave", "tavily"] = ""
    """Whom `WebSearch` asks; empty: nobody."""
    web_search_url: str = ""
    """Where that provider is, if not at its usual address; a SearXNG has none."""
    web_search_key: SecretStr = Field(default=SecretStr(""), exclude=True)
    """The key of that provider."""
    mcp_token: SecretStr = Field(default=SecretStr(""), exclude=True)
    """The token that clients of `forge-tools mcp --http` must send."""
    mcp_config: Path | None = None
    """A file that says which MCP servers workers host."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """What is passed, then the environment, then the project that this folder belongs to."""
        return init_settings, env_settings, _ProjectSource(settings_cls)

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
                raise ValueError(f"{name!r} is no name; use up to 100 letters, digits, '-', '_' and '.'")
        return workspaces

    @model_validator(mode="after")
    def _quota_holds_an_artifact(self) -> Self:
        if self.artifact_quota < self.artifact_max_bytes:
            raise ValueError(
                f"artifact_quota {self.artifact_quota:,} must hold an artifact of {self.artifact_max_bytes:,} bytes"
            )
        return self

    @field_validator("artifact_dir")
    @classmethod
    def _artifacts_are_in_one_place(cls, folder: Path | None) -> Path | None:
        if folder is not None and not folder.is_absolute():
            raise ValueError(f"give the whole path, not {folder}: workers and clients start in different folders")
        return folder

    @field_validator("digest_key")
    @classmethod
    def _digest_key_cannot_be_guessed(cls, key: SecretStr) -> SecretStr:
        if 0 < len(key.get_secret_value()) < MIN_DIGEST_KEY:
            raise ValueError(f"give {MIN_DIGEST_KEY} characters or more that nobody can guess: openssl rand -hex 32")
        return key

    @field_validator("encrypt_patterns")
    @classmethod
    def _patterns_compile(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in patterns:
            try:
                matches_nothing = re.compile(pattern).search("") is not None
            except re.error as error:
                raise ValueError(f"{pattern!r} is no regular expression: {error}") from error
            if matches_nothing:
                raise ValueError(f"{pattern!r} matches an empty text; write what a secret must have")
        return patterns

    @field_validator("tool_memory")
    @classmethod
    def _tool_memory_is_enough_to_start(cls, size: int) -> int:
        if 0 < size < MIN_TOOL_MEMORY:
            raise ValueError(
                f"{size:,} bytes are too few for Python itself; give {MIN_TOOL_MEMORY:,} or more, or 0 for no limit"
            )
        return size

    @classmethod
    def load(cls, **overrides: Any) -> Self:
        """Read the environment, with `overrides` on top.

        Raises:
            ConfigurationError: naming the setting and what it must be.
        """
        try:
            return cls(**{k: v for k, v in overrides.items() if v is not None})
        except SettingsError as error:
            raise ConfigurationError(f"A FORGE_* variable is not what it must be: {error}") from error
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            name, *inside = map(str, first["loc"] or ("settings",))
            where = f"{' > '.join(inside)}: " if inside else ""
            raise ConfigurationError(
                f"FORGE_{name.upper()}: {where}{first['msg'].removeprefix('Value error, ')}"
            ) from error

    @property
    def marker(self) -> Marker | None:
        """What leads to `home` now; None where that was given."""
        return None if "home" in self.model_fields_set else marker_of(self.workspace)

    @property
    def is_embedded(self) -> bool:
        """Whether both broker and database are the ones in `home`."""
        return not self.broker_url and not self.database_url

    @property
    def broker(self) -> str:
        """The broker's URL as Celery takes it: it knows Valkey by the name of the server whose protocol that speaks."""
        url = self._whole_url("broker", self.broker_url, self.broker_password_file)
        url = url or f"redis+socket://{broker_socket(self.home)}"
        return f"redis{url.removeprefix('valkey')}" if url.startswith("valkey") else url

    @property
    def database(self) -> str:
        """The database's URL, without a driver unless the user named one; it says `pooler=transaction` where there is one."""
        url = self._whole_url("database", self.database_url, self.database_password_file)
        if url.startswith("postgres") and self.database_pooler != "none":
            url = f"{url}{'&' if '?' in url else '?'}pooler={self.database_pooler}"
        return url or f"sqlite:///{self.home.resolve() / 'forge.db'}"

    @property
    def migration_database(self) -> str:
        """The URL by which migrations reach the database: past a pooler, and with a role that owns the tables."""
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
    def ladder(self) -> Ladder:
        """What ends a body that does not stop."""
        return Ladder(self.kill_grace, self.lease)

    @property
    def stop_patience(self) -> float:
        """What a worker may take to leave, at most: who starts workers must not kill them before."""
        return self.drain + 3 * self.kill_grace + 10

    @property
    def cache(self) -> Path:
        """Where tools keep what can be worked out again: the folder for it that the XDG specification names."""
        given = Path(os.environ.get("XDG_CACHE_HOME", ""))
        home = given if given.is_absolute() else Path(os.path.expanduser("~/.cache"))  # noqa: PTH111  never raises
        return home / "forge-tools"

    @property
    def embedded_audit_key(self) -> Path:
        """The key that the embedded stack makes for itself, to sign history with."""
        return self.home.resolve() / "audit.key"

    @property
    def shells_folder(self) -> Path:
        """Where this host's shells live: one folder for all its workers, and none for two hosts that share a home."""
        return Path(self.shells or self.home / f"shells-{self.hostname}").resolve()

    @property
    def keys_folder(self) -> Path:
        """Where workers have the keys that open what clients encrypted."""
        return Path(self.encryption_keys or self.home / "keys").resolve()

    def working_dir(self, *, is_local: bool) -> str:
        """Where calls from here run: on one machine in the folder we are in; elsewhere a worker's own, since ours says nothing there."""
        return str(self.workspace.absolute()) if is_local or self.is_embedded else "."

    def queue_for(self, tool: str, category: str) -> str:
        """The queue that configuration routes a tool or its category to."""
        return self.routes.get(tool) or self.routes.get(category) or "default"

    def expiry_for(self, queue: str) -> float:
        """How long a call may wait in that queue before it expires."""
        return self.background_expires if queue == "background" else self.expires


class _ProjectSource(PydanticBaseSettingsSource):
    """What the pyproject.toml around the current folder says."""

    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:
        return None, field_name, False

    def __call__(self) -> dict[str, Any]:
        found = find_project()
        return {} if found is None else {"project": found.folder, "tools": found.tools}


def expanded(text: str) -> str:
    """Fill in `${NAME}` and `${NAME:-default}` from the environment, for files that name secrets and do not hold them.

    Raises:
        ConfigurationError: a variable without a default is not set.
    """

    def value(match: re.Match[str]) -> str:
        found = os.environ.get(match["name"], match["default"])
        if found is None:
            raise ConfigurationError(
                f"${{{match['name']}}} is not set. Set it, or write ${{{match['name']}:-default}}."
            )
        return found

    return _VARIABLE.sub(value, text)


def log_format() -> Literal["text", "json"]:
    """That of the settings, for a program that logs before it has read them."""
    return "json" if os.environ.get("FORGE_LOG_FORMAT", "").strip().lower() == "json" else "text"


def variable(name: str) -> str | None:
    """A setting of a tool's own, by its name in the environment."""
    return os.environ.get(name)


def given_secrets(*, are_taken: bool = False) -> dict[str, str]:
    """The secrets that calls and tools may refer to, `FORGE_SECRET_<NAME>`, by name. Those that `are_taken` are in this process's environment no more."""
    prefix = "FORGE_SECRET_"
    read = os.environ.pop if are_taken else os.environ.__getitem__
    return {name.removeprefix(prefix): read(name) for name in list(os.environ) if name.startswith(prefix)}


def marker_of(folder: Path) -> Marker:
    """What leads to the home of the embedded stack of a folder.

    Raises:
        ConfigurationError: a `.forge` cannot be read.
    """
    return Marker.find(folder, _homes())


def _homes() -> Path:
    """Where the homes of embedded stacks are: the folder for state that the XDG specification names."""
    given = Path(os.environ.get("XDG_STATE_HOME", ""))
    state = given if given.is_absolute() else Path(os.path.expanduser("~/.local/state"))  # noqa: PTH111  never raises
    if not state.is_absolute():  # nobody's home, by the name that systems give it; only an embedded stack needs one
        state = Path("/nonexistent/.local/state")
    return state / "forge-tools"


def broker_socket(home: Path) -> Path:
    """Where the embedded broker of `home` listens; moved to a private folder when the path is too long for a socket."""
    here = home.resolve() / "valkey.sock"
    name = hashlib.blake2b(os.fsencode(here), digest_size=8).hexdigest()
    private = f"forge-tools-{os.getuid()}"
    folders = [Path(tempfile.gettempdir()) / private, Path("/tmp") / private]  # noqa: S108 made 0700, its owner checked
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        folders.insert(0, Path(runtime))
    places = [here, *(folder / f"{name}.sock" for folder in folders)]
    return next((place for place in places if len(os.fsencode(place)) <= MAX_SOCKET_PATH), places[-1])
