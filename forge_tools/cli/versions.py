"""`forge-tools tools versions`, `diff`, `pin` and `unpin`: what a tool was and is, and which definition of it counts."""

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, NamedTuple

import typer
from rich.text import Text

from forge_tools.cli.database import with_store
from forge_tools.cli.face import OutputOption, face_of, one_line
from forge_tools.cli.moments import compact, iso
from forge_tools.cli.tables import Column, table
from forge_tools.errors import ToolNotFoundError
from forge_tools.records import ToolSpec, ToolVersion
from forge_tools.schemas import FORMATS
from forge_tools.storage import Store
from forge_tools.storage.definitions import chosen

FormatOption = Annotated[
    str | None, typer.Option(metavar="FORMAT", help=f"Print schemas for a model: {', '.join(FORMATS)}.")
]
NameArgument = Annotated[str, typer.Argument(help="The tool, by its name or an alias.")]

_MARKS = {"added": ("+", "green"), "removed": ("-", "red"), "changed": ("~", "yellow")}


def check_format(format: str | None) -> None:
    """Refuse a format that nobody can render."""
    if format is not None and format not in FORMATS:
        raise typer.BadParameter(f"{format!r} is none of {', '.join(FORMATS)}.", param_hint="--format")


def read_one(name: str, definition: str) -> ToolVersion:
    """One definition by its version or digest, as it was published."""
    return chosen(with_store(lambda store: store.catalogue.versions(name)), definition)


def list_versions(context: typer.Context, name: NameArgument, output: OutputOption = None) -> None:
    """List every definition of a tool that a worker ever published; the one that counts comes first."""
    face = face_of(context)
    found = with_store(lambda store: store.catalogue.versions(name))
    if face.is_json:
        face.document([_document(one) for one in found])
        return
    columns = [
        *(Column("version"), Column("digest"), Column("first seen (UTC)"), Column("last seen")),
        Column("", is_flexible=True),
    ]
    rows = (
        [one.spec.version, one.digest, compact(one.first_seen_at), compact(one.last_seen_at), _standing(one)]
        for one in found
    )
    face.out.print(table(columns, rows))


def diff(
    context: typer.Context,
    name: NameArgument,
    before: Annotated[str | None, typer.Argument(metavar="[A", help="A version or digest.")] = None,
    after: Annotated[str | None, typer.Argument(metavar="B]", help="Another.")] = None,
    output: OutputOption = None,
) -> None:
    """Show what differs from definition A to B of a tool; without them, from the one published before the default to it.

    With A alone, from it to the default. `!` marks what refuses calls that were accepted before.
    """
    face = face_of(context)
    found = with_store(lambda store: store.catalogue.versions(name))
    old, new = _pair(found, before, after)
    changes = list(differences(old.spec, new.spec))
    if face.is_json:
        face.document(
            {
                "tool": new.spec.name,
                "from": {"version": old.spec.version, "digest": old.digest},
                "to": {"version": new.spec.version, "digest": new.digest},
                "differences": [one._asdict() for one in changes],
            }
        )
        return
    face.say(f"{new.spec.name}  {_label(old)} -> {_label(new)}", style="bold")
    for one in changes:
        face.out.print(_line(one), soft_wrap=True)
    if not changes:
        face.say("Nothing differs.", style="dim")


def pin(
    context: typer.Context,
    name: NameArgument,
    definition: Annotated[str, typer.Argument(metavar="DIGEST", help="A digest, its beginning, or a version.")],
    output: OutputOption = None,
) -> None:
    """Let one definition of a tool be the default, and no other be run, whatever workers publish, until `unpin`."""
    face = face_of(context)
    one, hosts = with_store(lambda store: _pin(store, name, definition))
    if face.is_json:
        face.document({**_document(one), "hosted_by": hosts})
        return
    face.say(f"{one.spec.name} is pinned to {_label(one)}.")
    if not hosts:
        face.note("No live worker hosts it: calls wait until one does, or expire.", style="yellow")


def unpin(context: typer.Context, name: NameArgument, output: OutputOption = None) -> None:
    """Let the definition that a worker published last be the default again."""
    face = face_of(context)
    one = with_store(lambda store: store.catalogue.unpin(name))
    if face.is_json:
        face.document(_document(one))
    else:
        face.say(f"{one.spec.name} is not pinned. The default is the one seen last, {_label(one)}.")


async def _pin(store: Store, name: str, definition: str) -> tuple[ToolVersion, list[str]]:
    one = await store.catalogue.pin(name, definition)
    return one, await store.catalogue.hosts_of(one.spec.name, one.digest)


class Difference(NamedTuple):
    """What differs at one place, such as `parameters.path.description`; `breaks` says that calls may be refused for it."""

    kind: str
    where: str
    before: Any
    after: Any
    breaks: bool = False


def differences(old: ToolSpec, new: ToolSpec) -> Iterator[Difference]:
    """What differs between two definitions: parameters by name, everything else by field."""
    was, now = old.model_dump(mode="json"), new.model_dump(mode="json")
    before, after = ({one["name"]: one for one in values.pop("parameters")} for values in (was, now))
    yield from _of_fields("", was, now)
    for name in [*before, *(name for name in after if name not in before)]:
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
    """Whether a changed field of a tool may refuse a name, or one of a parameter a value or its absence, that was fine before."""
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


def _line(one: Difference) -> Text:
    mark, style = _MARKS[one.kind]
    values = [json.dumps(value, ensure_ascii=False) for value in (one.before, one.after)]
    said = {"added": values[1], "removed": values[0], "changed": " -> ".join(values)}[one.kind]
    breaking = "! " if one.breaks else "  "
    return Text.assemble(
        (f"{mark} ", style), (breaking, "bold red"), f"{one_line(one.where)}: ", (one_line(said), "dim")
    )


def _pair(found: list[ToolVersion], before: str | None, after: str | None) -> tuple[ToolVersion, ToolVersion]:
    default = found[0]
    if before is not None:
        return chosen(found, before), default if after is None else chosen(found, after)
    if len(found) == 1:
        raise ToolNotFoundError(default.spec.name, f"There is one definition of it alone, {_label(default)}")
    older = [one for one in found[1:] if one.first_seen_at <= default.first_seen_at]
    return (older or found[1:])[0], default


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
        "first_seen_at": iso(one.first_seen_at),
        "last_seen_at": iso(one.last_seen_at),
        "default": one.is_default,
        "pinned": one.is_pinned,
        "enabled": one.is_enabled,
        "demoted_reason": one.demoted_reason,
    }
