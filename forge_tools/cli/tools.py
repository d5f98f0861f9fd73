"""`forge-tools tools`: the available tools, their schemas for models, their versions, and which are disabled."""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, NamedTuple

import typer
from rich.text import Text
from typer import Argument, Option
from typer.core import TyperGroup

from forge_tools.cli.face import App, Face, LocalToolsOption
from forge_tools.cli.local import local_tools
from forge_tools.cli.parameters import completed_tools, completed_tools_or_commands
from forge_tools.cli.services import await_stack, with_store
from forge_tools.cli.text import Column, compact, facts, flexible, limit, one_line, table
from forge_tools.config import Settings
from forge_tools.errors import ToolNotFoundError
from forge_tools.model.overview import ServerState, told_of
from forge_tools.model.tools import ToolCategory, ToolParameter, ToolSpec, ToolVersion
from forge_tools.schema import suggestion
from forge_tools.schema.providers import FORMATS, render
from forge_tools.storage import Store
from forge_tools.storage.catalogue import chosen

NameArgument = Annotated[str, Argument(help="The tool, by its name or an alias.", autocompletion=completed_tools)]


class _Commands(TyperGroup):
    """Lists the tools if no other command is given."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args if args and args[0] in self.commands else ["list", *args])


app = App(cls=_Commands, help="List the tools and their versions, pin one, or switch a tool off and on.")


class _Tool(NamedTuple):
    spec: ToolSpec
    is_enabled: bool
    tier: str = "none"
    """The walls that its calls have; here there are none."""
    is_hosted: bool = True
    """Whether any live worker hosts it, at a compatible version."""

    @property
    def mark(self) -> str:
        return "(disabled) " if not self.is_enabled else "" if self.is_hosted else "(not hosted) "


class Difference(NamedTuple):
    """A difference at one place, such as `parameters.path.description`; `breaks` means that it may refuse calls."""

    kind: str
    where: str
    before: Any
    after: Any
    breaks: bool = False


def known_format(format: str | None) -> str | None:
    if format is not None and format not in FORMATS:
        raise typer.BadParameter(f"{format!r} is not a format; there are {', '.join(FORMATS)}.", param_hint="--format")
    return format


@app.command("versions")
def list_versions(face: Face, name: NameArgument) -> None:
    """List every definition of a tool that a worker ever published; the default comes first."""
    found = with_store(lambda store: store.catalogue.versions(name))
    if face.is_json:
        face.document([_document(one) for one in found])
        return
    face.out.print(table(_VERSIONS, found, face.out.width))


@app.command()
def diff(
    face: Face,
    name: NameArgument,
    before: Annotated[str | None, Argument(metavar="A", help="A version or digest.")] = None,
    after: Annotated[str | None, Argument(metavar="B", help="Another.")] = None,
) -> None:
    """Show what changed from definition A to B of a tool; without them, from the one published before the default to the default.

    With only A, from it to the default. `!` marks changes that refuse calls that were accepted before.
    """
    found = with_store(lambda store: store.catalogue.versions(name))
    old, new = _pair(found, before, after)
    changes = list(differences(old.spec, new.spec))
    if face.is_json:
        ends = {"from": old, "to": new}
        said = {name: {"version": one.spec.version, "digest": one.digest} for name, one in ends.items()}
        face.document({"tool": new.spec.name, **said, "differences": [one._asdict() for one in changes]})
        return
    if len(found) == 1:
        face.say(f"{new.spec.name} has only one definition, {_label(new)}: there is nothing to compare.")
        return
    face.say(f"{new.spec.name}  {_label(old)} -> {_label(new)}", style="bold")
    for one in changes:
        face.out.print(_line(one), soft_wrap=True)
    if not changes:
        face.say("They are identical.", style="dim")
    if any(one.breaks for one in changes):
        face.say("! refuses calls that were accepted before", style="dim")


@app.command()
def pin(
    face: Face,
    name: NameArgument,
    definition: Annotated[str, Argument(metavar="DIGEST", help="A digest, its beginning, or a version.")],
) -> None:
    """Make one definition of a tool the default and the only one that runs, whatever workers publish, until `unpin`."""

    async def work(store: Store) -> tuple[ToolVersion, list[str]]:
        one = await store.catalogue.pin(name, definition)
        return one, await store.catalogue.hosts_of(one.spec.name, one.digest)

    one, hosts = with_store(work)
    face.tell({**_document(one), "hosted_by": hosts}, f"{one.spec.name} is pinned to {_label(one)}.")
    if not hosts and not face.is_json:
        face.note("No live worker hosts it: calls wait until one does, or expire.", style="yellow")


@app.command()
def unpin(face: Face, name: NameArgument) -> None:
    """Make the definition that a worker published last the default again."""
    one = with_store(lambda store: store.catalogue.pin(name, None))
    said = f"{one.spec.name} is not pinned. The default is the definition published last, {_label(one)}."
    face.tell(_document(one), said)


@app.command(
    "list", epilog="Other commands: versions NAME, diff NAME, pin NAME DIGEST, unpin NAME, disable NAME, enable NAME."
)
def list_tools(
    face: Face,
    name: Annotated[
        str | None, Argument(help="Only this tool, with its parameters.", autocompletion=completed_tools_or_commands)
    ] = None,
    *,
    category: Annotated[
        ToolCategory | None, Option(metavar="CATEGORY", help=f"One of {', '.join(ToolCategory)}.")
    ] = None,
    version: Annotated[str | None, Option(metavar="VERSION|DIGEST", help="With NAME: this definition of it.")] = None,
    format: Annotated[
        str | None,
        Option(metavar="FORMAT", help=f"Print schemas for a model: {', '.join(FORMATS)}.", callback=known_format),
    ] = None,
    local: Annotated[bool, Option("--local", help="List those of this machine, without a stack.")] = False,
    load: LocalToolsOption = None,
) -> None:
    """List the tools that workers have published, or their schemas for a model."""
    servers = tuple[ServerState, ...]()
    is_local = local or bool(load)
    if version is not None and (name is None or is_local):
        raise typer.BadParameter("it needs the NAME of a tool that workers have published.", param_hint="--version")
    if name is not None and version is not None:
        tool = with_store(partial(_defined, name=name, version=version))
        known, name = [tool], tool.spec.name
    elif is_local:
        known = _local(face, load or (), format)
    else:
        await_stack(face, settings := Settings.load())
        known, servers = with_store(_published, settings)
    of_category = [tool for tool in known if category in (None, tool.spec.category)]
    wanted = [tool for tool in of_category if name in (None, tool.spec.name, *tool.spec.aliases)]
    if name is not None and not wanted:
        names = [tool.spec.name for tool in known]
        there_are = f"There are: {', '.join(names) or 'none'}{told_of(name, servers)}."
        raise ToolNotFoundError(name, f"there is no such tool{suggestion(name, names)}. {there_are}")
    if format is not None:  # of disabled tools, only a version that is asked for: models are not offered them
        face.document([render(one.spec, format) for one in wanted if one.is_enabled or version is not None])
    elif face.is_json:
        face.document([_definition(tool) for tool in wanted])
    elif name is not None:
        _print_one(face, wanted[0])
    else:
        _print_all(face, wanted)
    for one in servers if name is None else ():
        if one.status != "serving" or one.left_out:
            face.note(one.sentence, style="yellow")


@app.command()
def enable(face: Face, name: NameArgument) -> None:
    """Offer and run a disabled tool again, within a second and without a restart."""
    tool = with_store(lambda store: store.catalogue.switch(name, is_enabled=True))
    face.tell({"tool": tool, "enabled": True}, f"{tool} is enabled.")


@app.command()
def disable(face: Face, name: NameArgument) -> None:
    """Make clients refuse a tool and workers stop claiming it, within a second and without a restart."""
    tool = with_store(lambda store: store.catalogue.switch(name, is_enabled=False))
    said = f"{tool} is disabled. Running calls may finish; waiting ones stay until it is enabled, or expire."
    face.tell({"tool": tool, "enabled": False}, said)


def _local(face: Face, references: Sequence[str], format: str | None) -> list[_Tool]:
    if face.is_json or format is not None:
        face.claim_output()  # modules may print while they are imported
    return [_Tool(tool.spec, is_enabled=True) for tool in local_tools(Settings.load(), references)]


async def _published(store: Store) -> tuple[list[_Tool], tuple[ServerState, ...]]:
    found = await store.directories.read()
    known = [
        _Tool(spec, is_enabled, found.walls.tier_of(spec), found.is_hosted(spec.key))
        for specs, is_enabled in ((found.enabled, True), (found.disabled, False))
        for spec in specs
    ]
    return known, found.servers


async def _defined(store: Store, *, name: str, version: str) -> _Tool:
    one = chosen(await store.catalogue.versions(name), version)
    # `walls` is the tier in the process lane; in the other, it is that of the commands of a tool, if it starts any.
    tier = "none" if one.spec.lane == "async" and one.spec.walls != "namespace" else one.walls
    is_hosted = (await store.directories.read()).is_hosted(one.spec.key)
    return _Tool(one.spec, one.is_enabled, tier, is_hosted)


def _definition(tool: _Tool) -> dict[str, Any]:
    facts = {"digest": tool.spec.digest, "enabled": tool.is_enabled, "hosted": tool.is_hosted, "tier": tool.tier}
    return tool.spec.model_dump(mode="json") | facts


def _print_all(face: Face, tools: Sequence[_Tool]) -> None:
    if not tools:
        face.say("There are no tools. Workers publish theirs when they start: forge-tools up", style="dim")
        return
    face.out.print(table(_TOOLS, sorted(tools, key=lambda tool: (tool.spec.category, tool.spec.name)), face.out.width))


def _print_one(face: Face, tool: _Tool) -> None:
    spec = tool.spec
    face.say(f"{spec.name} {tool.mark}".rstrip(), style="bold")
    face.say(spec.description)
    can = [name.replace("_", " ") for name, value in spec.capabilities.model_dump().items() if value]
    pairs = {
        "category": spec.category,
        "lane": spec.lane,
        "walls": tool.tier,
        "version": f"{spec.version} ({spec.digest})",
        "also called": ", ".join(spec.aliases) or "-",
        "timeout": limit(spec.timeout) if spec.timeout is not None else "set by the call, else the default",
        "capabilities": ", ".join(can) or "-",
    }
    face.say()
    face.out.print(facts(pairs.items()))
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


def _line(one: Difference) -> Text:
    before, after = (json.dumps(value, ensure_ascii=False) for value in (one.before, one.after))
    mark, style, said = {
        "added": ("+ ", "green", after),
        "removed": ("- ", "red", before),
        "changed": ("~ ", "yellow", f"{before} -> {after}"),
    }[one.kind]
    breaking = "! " if one.breaks else "  "
    return Text.assemble((mark, style), (breaking, "bold red"), f"{one_line(one.where)}: ", (one_line(said), "dim"))


def _pair(found: list[ToolVersion], before: str | None, after: str | None) -> tuple[ToolVersion, ToolVersion]:
    default = found[0]
    if before is not None:
        return chosen(found, before), default if after is None else chosen(found, after)
    older = [one for one in found[1:] if one.first_seen_at <= default.first_seen_at]
    return (older or found[1:] or found)[0], default


def _label(one: ToolVersion) -> str:
    return f"{one.spec.version} ({one.digest})"


def _standing(one: ToolVersion) -> str:
    said = {
        "default": one.is_default,
        "pinned": one.is_pinned,
        "disabled": not one.is_enabled,
        f"in the process lane: {one.demoted_reason}": one.demoted_reason is not None,
    }
    return ", ".join(name for name, applies in said.items() if applies)


def _document(one: ToolVersion) -> dict[str, Any]:
    return {
        "tool": one.spec.name,
        "version": one.spec.version,
        "digest": one.digest,
        "first_seen_at": one.first_seen_at,
        "last_seen_at": one.last_seen_at,
        "default": one.is_default,
        "pinned": one.is_pinned,
        "enabled": one.is_enabled,
        "demoted_reason": one.demoted_reason,
    }


def differences(old: ToolSpec, new: ToolSpec) -> Iterator[Difference]:
    was, now = old.model_dump(mode="json"), new.model_dump(mode="json")
    before, after = ({one["name"]: one for one in values.pop("parameters")} for values in (was, now))
    yield from _of_fields("", was, now)
    for name in dict.fromkeys((*before, *after)):
        where = f"parameters.{name}"
        if name not in after:
            yield Difference("removed", where, _said(before[name]), None, breaks=True)
        elif name not in before:
            yield Difference("added", where, None, _said(after[name]), breaks=after[name]["required"])
        else:
            yield from _of_fields(f"{where}.", before[name], after[name])


def _of_fields(prefix: str, was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Difference]:
    for name in now:
        before, after = was.get(name), now[name]
        if before != after:
            yield Difference("changed", f"{prefix}{name}", before, after, _breaks(name, before, after))


def _breaks(field: str, before: Any, after: Any) -> bool:
    """Whether a changed field may refuse a tool's name, a parameter's value or its absence, if accepted before."""
    match field:
        case "type" | "items" | "properties" | "keywords":
            return True
        case "required":
            return bool(after)
        case "extra":
            return not after
        case "enum":
            return after is not None and (before is None or any(value not in after for value in before))
        case "minimum" | "min_length":
            return after is not None and (before is None or after > before)
        case "maximum" | "max_length":
            return after is not None and (before is None or after < before)
        case "aliases" | "required_properties":
            kept, given = (before, after) if field == "aliases" else (after, before)
            return not set(kept) <= set(given)
    return False


def _said(parameter: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in parameter.items() if name != "name" and value not in (None, [], False)}


_VERSIONS: tuple[Column, ...] = (
    Column("version", lambda one: one.spec.version),
    Column("digest", lambda one: one.digest),
    Column("first seen (UTC)", lambda one: compact(one.first_seen_at)),
    Column("last seen", lambda one: compact(one.last_seen_at)),
    flexible("", _standing),
)

_TOOLS: tuple[Column, ...] = (
    Column("tool", lambda one: one.spec.name),
    Column("category", lambda one: one.spec.category),
    Column("lane", lambda one: one.spec.lane),
    Column("walls", lambda one: one.tier),
    Column("version", lambda one: one.spec.version),
    flexible("description", lambda one: f"{one.mark}{one.spec.description}"),
)
