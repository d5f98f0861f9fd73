"""`forge-tools tools`: what there is to run, the schemas a model is given, their versions, and which are switched off."""

import json
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import typer
from rich.table import Table
from typer.core import TyperGroup

from forge_tools.cli import versions
from forge_tools.cli.database import with_store
from forge_tools.cli.face import Face, OutputOption, face_of
from forge_tools.cli.lazy import command_app
from forge_tools.cli.local import local_tools
from forge_tools.cli.moments import limit
from forge_tools.cli.tables import Column, facts, table
from forge_tools.errors import ToolNotFoundError
from forge_tools.records import ServerState, ToolCategory, ToolParameter, ToolSpec, told_of
from forge_tools.schemas import render
from forge_tools.storage import Store
from forge_tools.storage.catalogue import LIVE_SECONDS


class _Commands(TyperGroup):
    """Lists the tools where no other command is named."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args if args and args[0] in self.commands else ["list", *args])


app = command_app(cls=_Commands)


@app.callback()
def _tools() -> None:
    """List the tools and their versions, pin one, or switch a tool off and on."""


app.command("versions")(versions.list_versions)
app.command("diff")(versions.diff)
app.command("pin")(versions.pin)
app.command("unpin")(versions.unpin)


@app.command(
    "list",
    epilog="Other commands: versions NAME, diff NAME, pin NAME DIGEST, unpin NAME, disable NAME, enable NAME.",
)
def list_tools(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(help="Only this tool, with its parameters.")] = None,
    *,
    category: Annotated[
        ToolCategory | None, typer.Option(metavar="CATEGORY", help=f"One of {', '.join(ToolCategory)}.")
    ] = None,
    version: Annotated[
        str | None, typer.Option(metavar="VERSION|DIGEST", help="With NAME: as it was defined then.")
    ] = None,
    format: versions.FormatOption = None,
    local: Annotated[bool, typer.Option("--local", help="Those of this machine, without a stack.")] = False,
    load: Annotated[
        list[str] | None, typer.Option("--tools", metavar="MODULE:ATTRIBUTE", help="With --local: these too.")
    ] = None,
    output: OutputOption = None,
) -> None:
    """List the tools that workers have published, or their schemas for a model."""
    versions.check_format(format)
    face = face_of(context)
    is_local = local or bool(load)
    servers: tuple[ServerState, ...] = ()
    if version is not None and (name is None or is_local):
        raise typer.BadParameter("it needs the NAME of a tool that workers have published.", param_hint="--version")
    if name is not None and version is not None:
        found = versions.read_one(name, version)
        known, name = [_Tool(found.spec, found.is_enabled)], found.spec.name
    elif is_local:
        known = _local(load or ())
    else:
        known, servers = with_store(_published)
    chosen = [
        tool
        for tool in known
        if category in (None, tool.spec.category) and name in (None, tool.spec.name, *tool.spec.aliases)
    ]
    if name is not None and not chosen:
        names = ", ".join(tool.spec.name for tool in known) or "none"
        raise ToolNotFoundError(name, f"there is no such tool. There are: {names}{told_of(name, servers)}.")
    if format is not None:
        face.document([render(spec, format) for spec, is_enabled in chosen if is_enabled or version is not None])
    elif face.is_json:
        face.document([_definition(tool) for tool in chosen])
    elif name is not None:
        _print_one(face, chosen[0])
    else:
        _print_all(face, chosen)
    for one in servers if name is None else ():
        if one.status != "serving" or one.left_out:
            face.note(one.sentence, style="yellow")


@app.command()
def enable(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The tool, by its name or an alias.")],
    output: OutputOption = None,
) -> None:
    """Have a disabled tool offered and run again, within a second and without a restart."""
    _switch(face_of(context), name, is_enabled=True)


@app.command()
def disable(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The tool, by its name or an alias.")],
    output: OutputOption = None,
) -> None:
    """Have a tool refused by clients and claimed by no worker, within a second and without a restart."""
    _switch(face_of(context), name, is_enabled=False)


class _Tool(NamedTuple):
    spec: ToolSpec
    is_enabled: bool


def _local(references: Sequence[str]) -> list[_Tool]:
    return [_Tool(tool.spec, is_enabled=True) for tool in local_tools(references)]


async def _published(store: Store) -> tuple[list[_Tool], tuple[ServerState, ...]]:
    enabled, disabled = await store.catalogue.read()
    known = [_Tool(spec, is_enabled=True) for spec in enabled] + [_Tool(spec, is_enabled=False) for spec in disabled]
    return known, await store.workers.servers(LIVE_SECONDS)


def _definition(tool: _Tool) -> dict[str, Any]:
    spec = tool.spec
    return {**spec.model_dump(mode="json"), "digest": spec.digest, "enabled": tool.is_enabled}


def _switch(face: Face, name: str, *, is_enabled: bool) -> None:
    tool = with_store(lambda store: store.catalogue.switch(name, is_enabled=is_enabled))
    if face.is_json:
        face.document({"tool": tool, "enabled": is_enabled})
    elif is_enabled:
        face.say(f"{tool} is enabled.")
    else:
        face.say(f"{tool} is disabled. What runs may finish; calls that wait stay until it is enabled, or expire.")


def _print_all(face: Face, tools: Sequence[_Tool]) -> None:
    if not tools:
        face.say("No tool. Workers publish theirs when they start: forge-tools up", style="dim")
        return
    face.out.print(_list(sorted(tools, key=lambda tool: (tool.spec.category, tool.spec.name))))


def _list(tools: Sequence[_Tool]) -> Table:
    columns = [
        *(Column("tool"), Column("category"), Column("lane"), Column("version")),
        Column("description", is_flexible=True),
    ]
    rows = (
        [s.name, s.category, s.lane, s.version, s.description if is_enabled else f"(disabled) {s.description}"]
        for s, is_enabled in tools
    )
    return table(columns, rows)


def _print_one(face: Face, tool: _Tool) -> None:
    spec = tool.spec
    face.say(spec.name if tool.is_enabled else f"{spec.name} (disabled)", style="bold")
    face.say(spec.description)
    timeout = limit(spec.timeout) if spec.timeout is not None else "as the call says, else the default"
    can = [name.replace("_", " ") for name, value in spec.capabilities.model_dump().items() if value]
    pairs = [
        *(("category", spec.category), ("lane", spec.lane), ("version", f"{spec.version} ({spec.digest})")),
        *(
            ("also called", ", ".join(spec.aliases) or "-"),
            ("timeout", timeout),
            ("capabilities", ", ".join(can) or "-"),
        ),
    ]
    face.say()
    face.out.print(facts(pairs))
    if spec.declared:
        face.say("\nParameters", style="bold")
        face.out.print(facts((p.name, _parameter(p)) for p in spec.declared))


def _parameter(parameter: ToolParameter) -> str:
    need = "required" if parameter.required else "optional"
    default: Any = parameter.default
    if not parameter.required and default is not None:
        need = f"default {json.dumps(default)}"
    choices = f" One of {', '.join(map(str, parameter.enum))}." if parameter.enum else ""
    return f"{parameter.type}, {need}. {parameter.description}{choices}"
