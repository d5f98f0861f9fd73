"""`forge-tools tools`: what there is to run, and the schemas a model is given."""

import json
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.table import Table

from forge_tools.cli.database import with_store
from forge_tools.cli.face import Face, OutputOption, face_of
from forge_tools.cli.lazy import command_app
from forge_tools.cli.local import local_tools
from forge_tools.cli.moments import limit
from forge_tools.cli.tables import Column, facts, table
from forge_tools.errors import ToolNotFoundError
from forge_tools.records import ToolCategory, ToolParameter, ToolSpec
from forge_tools.schemas import FORMATS, render
from forge_tools.storage import Store

app = command_app()


@app.command()
def tools(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(help="Only this tool, with its parameters.")] = None,
    *,
    category: Annotated[
        ToolCategory | None, typer.Option(metavar="CATEGORY", help=f"One of {', '.join(ToolCategory)}.")
    ] = None,
    format: Annotated[
        str | None, typer.Option(metavar="FORMAT", help=f"Print schemas for a model: {', '.join(FORMATS)}.")
    ] = None,
    local: Annotated[bool, typer.Option("--local", help="Those of this machine, without a stack.")] = False,
    load: Annotated[
        list[str] | None, typer.Option("--tools", metavar="MODULE:ATTRIBUTE", help="With --local: these too.")
    ] = None,
    output: OutputOption = None,
) -> None:
    """List the tools that workers have published, or their schemas for a model."""
    if format is not None and format not in FORMATS:
        raise typer.BadParameter(f"{format!r} is none of {', '.join(FORMATS)}.", param_hint="--format")
    face = face_of(context)
    is_local = local or bool(load)
    specs = [tool.spec for tool in local_tools(load or ())] if is_local else with_store(_published)
    chosen = [spec for spec in specs if category in (None, spec.category) and name in (None, spec.name, *spec.aliases)]
    if name is not None and not chosen:
        raise ToolNotFoundError(
            name, f"there is no such tool. There are: {', '.join(s.name for s in specs) or 'none'}."
        )
    if format is not None:
        face.document([render(spec, format) for spec in chosen])
    elif face.is_json:
        face.document([{**spec.model_dump(mode="json"), "digest": spec.digest} for spec in chosen])
    elif name is not None:
        _print_one(face, chosen[0])
    else:
        _print_all(face, chosen)


async def _published(store: Store) -> list[ToolSpec]:
    return await store.catalogue.specs()


def _print_all(face: Face, specs: Sequence[ToolSpec]) -> None:
    if not specs:
        face.say("No tool. Workers publish theirs when they start: forge-tools up", style="dim")
        return
    face.out.print(_list(sorted(specs, key=lambda spec: (spec.category, spec.name))))


def _list(specs: Sequence[ToolSpec]) -> Table:
    columns = [
        *(Column("tool"), Column("category"), Column("lane"), Column("version")),
        Column("description", is_flexible=True),
    ]
    return table(columns, ([s.name, s.category, s.lane, s.version, s.description] for s in specs))


def _print_one(face: Face, spec: ToolSpec) -> None:
    face.say(spec.name, style="bold")
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
    if spec.parameters:
        face.say("\nParameters", style="bold")
        face.out.print(facts((p.name, _parameter(p)) for p in spec.parameters))


def _parameter(parameter: ToolParameter) -> str:
    need = "required" if parameter.required else "optional"
    default: Any = parameter.default
    if not parameter.required and default is not None:
        need = f"default {json.dumps(default)}"
    choices = f" One of {', '.join(map(str, parameter.enum))}." if parameter.enum else ""
    return f"{parameter.type}, {need}. {parameter.description}{choices}"
