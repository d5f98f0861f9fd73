"""Tools and parameters on the command line: what `key=value` means, an example of it, and what a shell completes."""

import json
import math
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

import typer

from forge_tools.cli.face import INTERRUPTED
from forge_tools.errors import ForgeError
from forge_tools.model.tools import ToolParameter, ToolSpec
from forge_tools.schema import Validator
from forge_tools.signals import ENDINGS, handled, not_ignored

Offer = tuple[str, str]
"""A word, and a description that some shells show beside it."""

_ASSIGNMENT = re.compile(r"(?P<name>[^=\s]+?)(?P<sign>:=|=)(?P<value>.*)", re.DOTALL)  # lazy: names do not eat the `:`
_BOOLEANS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def find_spec(specs: Iterable[ToolSpec], name: str) -> ToolSpec | None:
    return next((spec for spec in specs if name in (spec.name, *spec.aliases)), None)


def completed_tools(incomplete: str) -> list[Offer]:
    return _beginning(incomplete, ((spec.name, spec.description) for spec in _published()))


def completed_parameters(context: typer.Context, incomplete: str) -> list[Offer]:
    spec = find_spec(_published(), context.params.get("name") or "")
    return _beginning(incomplete, ((f"{one.name}=", one.description) for one in (spec.declared if spec else ())))


def completed_tools_or_commands(context: typer.Context, incomplete: str) -> list[Offer]:
    """Complete the name of a tool, or a command beside the one on the command line."""
    beside = getattr(context.parent and context.parent.command, "commands", {})
    commands = ((name, command.get_short_help_str()) for name, command in beside.items())
    return [*_beginning(incomplete, commands), *completed_tools(incomplete)]


def _beginning(incomplete: str, offers: Iterator[Offer]) -> list[Offer]:
    return [offer for offer in offers if offer[0].startswith(incomplete)]


def _published() -> list[ToolSpec]:
    services = import_module("forge_tools.cli.services")  # imported late: most commands complete nothing
    try:
        directory = services.with_store(lambda store: store.directories.read())
    except ForgeError:  # no database, nothing to offer
        return []
    return [*directory.enabled, *directory.disabled]


class GivenParameters:
    """The parameters on the command line, with the files that they name; values get types once the tool is known.

    `words` are `key=value`, `key:=json` and `key=@file`, over the object `whole` (JSON, or @file). Make it before an
    event loop runs: Ctrl-C, SIGTERM and SIGHUP end the reading of files, which may be pipes.
    """

    def __init__(self, words: Sequence[str] | None, whole: str | None, limit: int) -> None:
        with handled(not_ignored(*ENDINGS), _end):
            self._whole = _whole(whole, limit)
            self._words = [_assignment(word, limit) for word in words or ()]

    def typed(self, spec: ToolSpec | None) -> dict[str, Any]:
        """Read each value by the type that `spec` declares, else as text. Keys of arrays may repeat."""
        parameters = dict(self._whole)
        declared = {name: p for p in (spec.declared if spec else ()) for name in (p.name, *p.aliases)}
        given: set[str] = set()
        for name, sign, text in self._words:
            value = _value(name, sign, text, declared.get(name))
            if name in given:
                if not (isinstance(parameters[name], list) and isinstance(value, list)):
                    raise typer.BadParameter(f"{name} is given twice.", param_hint="KEY=VALUE")
                value = parameters[name] + value
            given.add(name)
            parameters[name] = value
        return parameters


def example_command(spec: ToolSpec) -> str:
    """Write a `forge-tools` command that runs the tool with valid parameters, or shows it where none can be made up."""
    made = {one.name: _example(one.to_json_schema()) for one in spec.declared if one.required}
    if Validator.for_spec(spec).all_errors(made):
        return shlex.join(["tools", spec.name])
    words = (f"{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in made.items())
    return shlex.join(["run", spec.name, *words])


def _example(schema: Mapping[str, Any]) -> Any:
    """Make up a value of the type that the schema names; the caller checks whether the schema accepts it."""
    for choices in ("examples", "enum"):
        if schema.get(choices):
            return schema[choices][0]
    one_of = schema.get("anyOf") or schema.get("oneOf")
    if one_of:
        return _example(one_of[0])
    kind = schema.get("type")
    if kind == "array":
        return [_example(schema["items"])] if isinstance(schema.get("items"), dict) else []
    if kind == "object":
        inner = schema.get("properties") or {}
        return {name: _example(inner[name]) for name in schema.get("required") or () if name in inner}
    if kind in {"integer", "number"}:
        return max(schema.get("minimum", -math.inf), min(schema.get("maximum", 1), 1))
    return kind == "boolean" or "hello"


def _wrong(name: str, said: str) -> typer.BadParameter:
    if name == "--json":
        return typer.BadParameter(said, param_hint=name)
    return typer.BadParameter(f"{name}: {said}", param_hint="KEY=VALUE")


def _end(*_: object) -> None:
    raise typer.Exit(INTERRUPTED)


def _assignment(word: str, limit: int) -> tuple[str, str, str]:
    found = _ASSIGNMENT.fullmatch(word)
    if found is None:
        said = f"{word!r} is not a parameter. Write key=value, key:=json or key=@file."
        raise typer.BadParameter(said, param_hint="KEY=VALUE")
    return found["name"], found["sign"], _content(found["value"], found["name"], limit)


def _whole(text: str | None, limit: int) -> dict[str, Any]:
    if text is None:
        return {}
    value = _json(_content(text, "--json", limit), "--json")
    if not isinstance(value, dict):
        kinds = {list: "an array", str: "a text", type(None): "null", bool: "true or false"}
        kind = kinds.get(type(value), "a number")
        raise _wrong("--json", f"that is {kind}; it must be an object with parameters as keys.")
    return value


def _value(name: str, sign: str, text: str, parameter: ToolParameter | None) -> Any:
    kind = parameter.type if parameter else "string"
    if sign == ":=" or kind == "object":
        return _json(text, name)
    if kind != "array":
        return _scalar(text, name, kind)
    if text.lstrip().startswith("["):
        return _json(text, name)
    of = ((parameter and parameter.items) or {}).get("type", "string")
    if of == "object":
        return [_json(text, name)]
    return [[text] if of == "array" else _scalar(text, name, of)]


def _scalar(text: str, name: str, kind: Any) -> Any:
    if not isinstance(kind, str) or kind not in _SCALARS:
        return text
    what, read = _SCALARS[kind]
    try:
        return read(text.strip())
    except (KeyError, ValueError):
        shown = text if len(text) <= 40 else f"{text[:39]}…"
        said = f"{name}={shown!r}: {name} takes {what}."
        raise typer.BadParameter(said, param_hint="KEY=VALUE") from None


def _content(text: str, name: str, limit: int) -> str:
    """Read the file named in `@file`; `@-` is the standard input. `limit` is in bytes, which are never fewer than characters."""
    if not text.startswith("@"):
        return text
    try:
        if text == "@-" and sys.stdin is None:
            raise ValueError("standard input is closed")
        with nullcontext(sys.stdin) if text == "@-" else Path(text[1:]).open(encoding="utf-8") as file:
            content = file.read(limit + 1)
    except UnicodeDecodeError as error:
        raise _wrong(name, f"{text[1:]} is not UTF-8 text.") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        way_out = "" if name == "--json" else f" Write a text that begins with @ as {name}:='\"@...\"'."
        raise _wrong(name, f"{text[1:]!r} cannot be read: {reason}.{way_out}") from error
    if len(content) > limit:
        said = f"has more than {limit:,} bytes, which is all that parameters may have (FORGE_MAX_PARAMETER_BYTES)."
        raise _wrong(name, f"{text[1:]!r} {said}")
    return content


def _json(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = f"{error.msg} at character {error.pos}" if isinstance(error, json.JSONDecodeError) else str(error)
        way_out = (
            'Write it as --json \'{"key": "value"}\'' if name == "--json" else f"Text needs quotes: {name}:='\"text\"'"
        )
        raise _wrong(name, f"not JSON ({reason}). {way_out}.") from error


def _integer(text: str) -> int:
    if not re.fullmatch(r"[+-]?\d{1,4000}", text, re.ASCII):  # int() takes 1_000, and no more than 4,300 digits
        raise ValueError(text)
    return int(text)


def _number(text: str) -> float:
    # An integer keeps all of its digits, unless it is too long for any float.
    return int(text) if re.fullmatch(r"[+-]?\d{1,300}", text, re.ASCII) else float(text)


_SCALARS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "integer": ("an integer", _integer),
    "number": ("a number", _number),
    "boolean": ("true or false", lambda text: _BOOLEANS[text.lower()]),
}
