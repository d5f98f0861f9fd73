"""The program that `forge-tools worker` becomes: reads its arguments, starts the engine, runs the Celery worker."""

import argparse
import logging
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

from celery import signals

from forge_tools.config import Settings
from forge_tools.environment import given_secrets, log_format, misspelt
from forge_tools.errors import ConfigurationError, ForgeError
from forge_tools.logs import set_up
from forge_tools.model.execution import new_id
from forge_tools.model.places import host_queue
from forge_tools.model.tools import ToolCategory
from forge_tools.programs import leave_threads
from forge_tools.sandbox.configured import reach_of, user_of
from forge_tools.sandbox.processes.endings import end
from forge_tools.sandbox.processes.environment import instance_mark, mark_worker
from forge_tools.sandbox.processes.spawner import SPAWNER
from forge_tools.sandbox.processes.trees import MARKS
from forge_tools.sandbox.reach import Reach
from forge_tools.sandbox.walls.cgroups import WAY_OUT, Limits, delegated
from forge_tools.sandbox.walls.commands import NAMESPACE
from forge_tools.sandbox.walls.privileges import harden
from forge_tools.secrets.detection import SecretSource
from forge_tools.setting_types import queue_name
from forge_tools.tool import admit, load_engine, load_project, load_settings, load_tools, require_walled
from forge_tools.tool.base import BaseTool
from forge_tools.tool.executor import ToolExecutor
from forge_tools.tool.registry import ScopedRegistry
from workers.app import drain, leave_on_signals, run_worker, worker_app
from workers.artifacts import ArtifactDesk
from workers.capture import capture, capture_logs
from workers.engine import Engine
from workers.lanes.ownership import orphans
from workers.lanes.walls import Tiers, behind_walls, server_walls
from workers.remote_store import RemoteDocuments, RemoteShells, RemoteStore, WorkerArtifacts, ask_engine
from workers.services.tools import Servers
from workers.worker import Setup

HOSTING = "forge_tools.mcp.hosted.servers"
"""The module that needs the MCP SDK; workers without configured servers do not load it."""

DEFAULT_CONCURRENCY = {"async": 200, "process": os.cpu_count() or 2}

logger = logging.getLogger("workers")


def main(
    arguments: Sequence[str] | None = None,
    *,
    tell: Callable[[str | None], None] = lambda _: None,
    leave: Callable[[], None] = lambda: None,
) -> int:
    """Run a worker; returns the exit code.

    It is 69 if a service cannot be reached, 70 if the engine failed, 75 if another worker is to replace this one, 78
    for a configuration error. `tell` receives None once it claims calls, or the reason why it cannot; `leave` is called once
    it claims no more.
    """
    options = parser().parse_args(arguments)
    _log(options.log_level)
    try:
        return run(options, tell, leave)
    except ForgeError as error:
        logger.error("%s", error)
        tell(error.message)
        return os.EX_CONFIG if isinstance(error, ConfigurationError) else os.EX_UNAVAILABLE


def run(options: argparse.Namespace, tell: Callable[[str | None], None], leave: Callable[[], None]) -> int:
    """Load tools, start the engine, run Celery until it is stopped."""
    harden()
    leave_threads()
    for name, meant in misspelt(Settings.model_fields, MARKS).items():
        logger.warning("Nothing reads %s; did you mean %s?", name, meant)
    settings, options.instance = Settings.load(), options.instance or new_id()
    bounds(settings, options.instance).give()
    setup = setup_of(options, settings)
    if setup.user is not None:
        os.umask(os.umask(0o077) & ~0o020)  # what file tools make in a workspace is for its group to change
    engine = Engine(setup, is_watched=True, leave=leave)
    leave_on_signals()
    mark_worker(setup.worker_id)
    try:
        engine.start()
        tell(None)
        signals.setup_logging.connect(_keep_logging)
        app = worker_app(setup, engine)
        facts = {"lane": setup.lane, "queues": ",".join(setup.queues), "tools": setup.registry.count()}
        logger.info("Worker ready", extra=facts)
        code = run_worker(app, setup, engine)
        if engine.is_broken:
            return os.EX_SOFTWARE
        return os.EX_TEMPFAIL if engine.worker.fitness.is_left else code
    finally:
        drain(engine)
        if setup.servers is not None:
            setup.servers.close()
        SPAWNER.close()
        if setup.executor.reach is not None:
            for walls in (setup.executor.reach.commands, *setup.executor.reach.commands_in.values()):
                walls.spawner.close()
        end(instance_mark(setup.worker_id), started=orphans())
        Limits.given().end_worker(setup.worker_id)


def bounds(settings: Settings, worker: str) -> Limits:
    """Return the limits of a call, by groups if one is delegated to this process, which becomes that worker.

    Raises:
        ConfigurationError: FORGE_CGROUP names a group that cannot be divided.
    """
    limits, (base, _) = Limits(settings.tool_memory, settings.tool_processes), delegated(settings.cgroup)
    try:
        return limits.divided(base, worker) if base else limits
    except OSError as error:
        if settings.cgroup:
            raise ConfigurationError(f"FORGE_CGROUP={base} cannot be divided: {error}. {WAY_OUT}") from error
        logger.warning("The cgroup of this worker cannot be divided", extra={"cgroup": base, "error": str(error)})
        return limits


def setup_of(options: argparse.Namespace, settings: Settings) -> Setup:
    """Return what a worker with these options is built from; starts the MCP servers that it hosts."""
    secrets, registry = given_secrets(are_taken=True), ScopedRegistry()
    desk, store = ArtifactDesk(settings), RemoteStore()
    artifacts = WorkerArtifacts(settings.artifact_max_bytes, ask_engine(desk, store))
    reach = replace(reach_of(settings, artifacts=artifacts), documents=None)  # children have no database to ask
    servers = hosted_servers(options, settings, reach)
    tools = offered(options, settings, () if servers is None else servers.start())
    registry.register_many(tools)
    told = load_settings(tools, SecretSource(secrets, settings.secrets_dir))
    if options.lane == "async":
        reach = replace(reach, book=RemoteShells(store), documents=RemoteDocuments(store))
        if any(tool.spec.walls == NAMESPACE for tool in tools):
            reach = behind_walls(settings, reach)
    return Setup(
        settings=settings,
        lane=options.lane,
        queues=tuple(dict.fromkeys((*_served(options, settings), host_queue(settings.hostname)))),
        concurrency=options.concurrency or DEFAULT_CONCURRENCY[options.lane],
        executor=ToolExecutor(
            registry,
            max_timeout=settings.max_timeout,
            reach=reach,
            history_limit=0,
            overrides=load_engine(settings) | told,
        ),
        artifacts=desk,
        remote_store=store,
        secrets=secrets,
        servers=servers,
        registry=registry,
        user=user_of(settings, reach),
        worker_id=options.instance,
    )


def offered(options: argparse.Namespace, settings: Settings, hosted: Sequence[BaseTool] = ()) -> list[BaseTool]:
    """Return the tools this worker starts with: the user's own, those `hosted`, and any that `--categories` admits."""
    own, others = load_project(settings, options.tools), load_tools(builtins=not options.no_builtins)
    require_walled(settings, own)
    named = [*_runnable(own, settings), *hosted]
    found = _runnable(others, settings)
    categories = _admitted(options, settings)
    if _hosts_servers(options, settings) and categories == [ToolCategory.MCP]:
        return named  # it is not a configuration error that none of the servers is there yet
    names = {tool.name for tool in named}
    return named + [tool for tool in admit(found, categories) if tool.name not in names]


def _served(options: argparse.Namespace, settings: Settings) -> list[str]:
    tiers = Tiers(settings, options.lane)
    served = [queue for queue in options.queues if tiers.serves(queue)]
    if left := [queue for queue in options.queues if queue not in served]:
        logger.warning("Queues are left to other workers, since their calls are to have walls", extra={"queues": left})
    return served


def _runnable(tools: Sequence[BaseTool], settings: Settings) -> list[BaseTool]:
    """Leave out tools that need an engine that this host lacks, so that their calls go to hosts that have one."""
    engineless = [tool.spec.name for tool in tools if tool.spec.capabilities.requires_engine and not settings.engine]
    if engineless:
        way_out = "set FORGE_ENGINE=module:function to offer them here"
        logger.warning(
            "Tools need an engine, which this host does not have; " + way_out, extra={"tools": ",".join(engineless)}
        )
    return [tool for tool in tools if tool.spec.name not in engineless]


def hosted_servers(options: argparse.Namespace, settings: Settings, reach: Reach) -> Servers | None:
    """Return the configured MCP servers, if this worker hosts any."""
    if not _hosts_servers(options, settings):
        return None
    try:
        hosting = import_module(HOSTING)
    except ModuleNotFoundError as error:
        if error.name not in {"mcp", "mcp_types"}:
            raise
        raise ConfigurationError("FORGE_MCP_CONFIG needs an extra: pip install 'forge-tools[mcp]'.") from error
    servers: Servers = hosting.hosted_servers(
        settings.mcp_config, settings.max_output_bytes, settings.home / "mcp", server_walls(settings, reach)
    )
    return servers


def _hosts_servers(options: argparse.Namespace, settings: Settings) -> bool:
    """Return whether this worker hosts MCP servers: their tools only await, so the async lane has them all."""
    categories = _admitted(options, settings)
    is_admitted = categories is None or ToolCategory.MCP in categories
    return options.lane == "async" and settings.mcp_config is not None and is_admitted


def _admitted(options: argparse.Namespace, settings: Settings) -> list[ToolCategory] | None:
    """Return the admitted categories; None admits all.

    The embedded stack trusts its user; elsewhere running commands must be asked for by name.
    """
    categories: list[ToolCategory] | None = options.categories
    if categories is None and not settings.is_embedded:
        return [category for category in ToolCategory if category != ToolCategory.EXECUTION]
    return categories


def parser() -> argparse.ArgumentParser:
    """Return the parser of `forge-tools worker`."""
    parse = argparse.ArgumentParser(
        prog="forge-tools worker",
        usage="forge-tools worker --lane async|process [OPTIONS]",
        description="Run one worker, for production or another host.",
        formatter_class=_Help,
        add_help=False,
    )
    options = parse.add_argument_group("Options")
    options.add_argument("--lane", choices=("async", "process"), required=True, help="Lane in which bodies run.")
    options.add_argument("--queues", type=_queues, default=("default",), help="Comma-separated; default: default.")
    options.add_argument(
        "--concurrency",
        type=_slots,
        help="Concurrent bodies (async, default: 200) or processes (default: one per core).",
    )
    options.add_argument("--tools", action="append", default=[], metavar="MODULE|FILE", help="Load these tools too.")
    options.add_argument(
        "--categories", type=_categories, help="Offer only tools of these categories, comma-separated."
    )
    options.add_argument("--no-builtins", action="store_true", help="Do not load the built-in tools.")
    options.add_argument(
        "--log-level", default="INFO", choices=("DEBUG", "INFO", "WARNING", "ERROR"), help="Default: INFO."
    )
    options.add_argument("--instance", help=argparse.SUPPRESS)  # an id that the embedded stack made up for this start
    options.add_argument("--help", action="help", help="Show this message and exit.")
    return parse


class _Help(argparse.HelpFormatter):
    """Begins like the help of the other commands."""

    def add_usage(self, usage: Any, actions: Any, groups: Any, prefix: str | None = None) -> None:
        super().add_usage(usage, actions, groups, "Usage: " if prefix is None else prefix)


def _names(text: str, kind: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise argparse.ArgumentTypeError(f"name at least one {kind}")
    return names


def _queues(text: str) -> tuple[str, ...]:
    try:
        return tuple(map(queue_name, _names(text, "queue")))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _slots(text: str) -> int:
    if not re.fullmatch(r"[1-9]\d{0,3}", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to 9,999")
    return int(text)


def _categories(text: str) -> list[ToolCategory]:
    try:
        return [ToolCategory(name) for name in _names(text, "category")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _log(level: str) -> None:
    set_up(level, log_format(), capture())
    capture_logs()
    logging.getLogger("celery.worker.request").setLevel(logging.CRITICAL)  # the engine says what a lost child means
    if level == "INFO":  # two lines per call would only repeat what SQL holds
        logging.getLogger("forge_tools.tools").setLevel(logging.WARNING)
        logging.getLogger("celery").setLevel(logging.WARNING)


def _keep_logging(**_: object) -> None:
    """Keep our logging: Celery configures its own unless somebody handles its signal."""
