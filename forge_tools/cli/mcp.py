"""`forge-tools mcp`: serves the tools to clients of the Model Context Protocol, on standard streams or over HTTP."""

import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any, NoReturn

import typer
from typer import Option

from forge_tools.cli.face import App, Face, LocalToolsOption, can_ask, face_of
from forge_tools.cli.local import local_executor, local_tools
from forge_tools.cli.services import await_stack
from forge_tools.config import Settings
from forge_tools.errors import ConfigurationError
from forge_tools.logs import CallLog, set_up
from forge_tools.model.tools import ToolCategory
from forge_tools.sandbox.artifacts import FolderArtifacts
from forge_tools.sandbox.spools import scratch_folder

app = App()


@app.command()
def mcp(  # noqa: PLR0913 one option each
    context: typer.Context,
    *,
    http: Annotated[
        str | None,
        Option(metavar="HOST:PORT", help="Serve over HTTP at this address instead of on the standard streams."),
    ] = None,
    categories: Annotated[str | None, Option(metavar="A,B", help="Offer only tools of these categories.")] = None,
    tags: Annotated[str | None, Option(metavar="A,B", help="Offer only tools that have one of these tags.")] = None,
    names: Annotated[str | None, Option(metavar="A,B", help="Offer only these tools.")] = None,
    local: Annotated[bool, Option("--local", help="Run them in this process: no stack, no record.")] = False,
    tools: LocalToolsOption = None,
    background_tools: Annotated[
        bool, Option("--background-tools", help="Offer submit_tool, poll_execution and cancel_execution too.")
    ] = False,
    task_after: Annotated[
        float,
        Option(min=0, metavar="SECONDS", help="Calls that last longer become tasks, if the client supports tasks."),
    ] = 5.0,
    dry_run: Annotated[bool, Option("--dry-run", help="Tools only describe what they would do.")] = False,
    working_dir: Annotated[
        str | None, Option(metavar="DIR", help="Working directory of the calls, in the workspace.")
    ] = None,
    session_id: Annotated[str | None, Option(metavar="ID", help="Record calls under this session.")] = None,
    refresh: Annotated[
        float, Option(min=0.1, metavar="SECONDS", help="How often to check for added and removed tools.")
    ] = 5.0,
) -> None:
    """Serve the tools to clients of the Model Context Protocol.

    Without --http, standard output carries only the protocol, whatever tools print; the command ends with standard input.
    """
    if local and background_tools:
        raise typer.BadParameter("calls in this process are not recorded; leave out --background-tools.")
    if tools and not local:
        raise typer.BadParameter("workers load their own tools; add --local, or start a worker with --tools.")
    settings = Settings.load()
    offer = _module("calls").Offer(
        categories=_categories(categories),
        tags=_words(tags),
        names=_words(names),
        working_dir=working_dir or settings.working_dir(is_local=local),
        dry_run=dry_run,
        background_tools=background_tools,
        task_after=task_after,
        refresh_interval=refresh,
        routes=settings.routes,
        session_id=session_id,
    )
    set_up(logging.INFO, settings.log_format, sys.stderr)
    transport = _transport(face_of(context), settings, http)
    if local:
        _serve_here(transport, settings, offer, tools or ())
    else:
        await_stack(face_of(context), settings)
        _module("server").serve_workers(transport, settings, offer)


def _transport(face: Face, settings: Settings, http: str | None) -> Any:
    longest = 2 * settings.max_parameter_bytes  # the largest arguments, as text that doubles in size
    if http is None:
        if can_ask():
            face.note("Serving MCP on the standard streams, for a client that starts this command. Ctrl-C ends it.")
        return _module("stdio").Stdio.claim(longest)
    transport = _module("http").Http.bind(http, settings.mcp_token.get_secret_value(), longest)
    face.note(f"Serving MCP at {transport.url}")
    return transport


def _serve_here(transport: Any, settings: Settings, offer: Any, references: Sequence[str]) -> NoReturn:
    """Keep long outputs as long as this process and its sessions live."""
    tools = local_tools(settings, references)  # after the transport has taken the streams: imports may print
    logging.getLogger().addHandler(CallLog())
    with scratch_folder("forge-mcp-") as folder:
        kept = FolderArtifacts(
            folder, max_bytes=settings.artifact_max_bytes, quota=settings.artifact_quota, ttl=settings.artifact_ttl
        )
        _module("server").serve_here(transport, local_executor(tools, settings, kept), offer, kept)
    sys.stderr.flush()
    os._exit(0)  # at once: otherwise a thread blocked by a tool would be awaited


def _module(name: str) -> Any:
    """Import what needs the SDK, which takes longer to load than everything else; `--help` does not need it."""
    try:
        import_module("mcp")
    except ImportError as error:
        raise ConfigurationError("The MCP SDK is not installed. Run: pip install 'forge-tools[mcp]'") from error
    return import_module(f"forge_tools.mcp.{name}")


def _words(text: str | None) -> frozenset[str] | None:
    return None if text is None else frozenset(filter(None, (word.strip() for word in text.split(","))))


def _categories(text: str | None) -> frozenset[str] | None:
    words = _words(text)
    try:
        return words and frozenset(map(ToolCategory, sorted(words)))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--categories") from error
