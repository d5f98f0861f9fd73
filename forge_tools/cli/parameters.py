"""`key=value` on the command line as the values that a tool declares."""

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from forge_tools.records import ToolParameter, ToolSpec

_ASSIGNMENT = re.compile(r"(?P<name>[^=\s]+?)(?P<sign>:=|=)(?P<value>.*)", re.DOTALL)
_BOOLEANS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def find_spec(specs: Iterable[ToolSpec], name: str) -> ToolSpec | None:
    """The tool that is called by that name or alias."""
    return next((spec for spec in specs if name in (spec.name, *spec.aliases)), None)


def parameters_of(words: Sequence[str] | None, whole: str | None, spec: ToolSpec | None) -> dict[str, Any]:
    """The parameters on the command line; what is wrong there is a usage error."""
    try:
        return parse_parameters(words or (), whole, spec)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="KEY=VALUE") from None


def parse_parameters(words: Sequence[str], whole: str | None, spec: ToolSpec | None) -> dict[str, Any]:
    """Read `key=value`, `key:=json` and `key=@file` words over the object `whole` (JSON, or @file).

    A value is read by the type that `spec` declares; of an unknown parameter it is text. An array's key may be repeated.

    Raises:
        ValueError: naming the word, what was expected and how to write it.
    """
    parameters = _whole(whole)
    declared = {name: p for p in (spec.declared if spec else ()) for name in (p.name, *p.aliases)}
    given: set[str] = set()
    for word in words:
        found = _ASSIGNMENT.fullmatch(word)
        if found is None:
            raise ValueError(f"{word!r} is no parameter. Write key=value, key:=json or key=@file.")
        name = found["name"]
        value = _value(name, found["sign"], found["value"], declared.get(name))
        if name in given:
            value = _joined(name, parameters[name], value)
        given.add(name)
        parameters[name] = value
    return parameters


def _whole(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    value = _json(_content(text, "--json"), "--json")
    if not isinstance(value, dict):
        raise ValueError(  # noqa: TRY004 what a user typed, not what a programmer passed
            f"--json is {_kind(value)}; it must be an object with parameters as keys."
        )
    return value


def _value(name: str, sign: str, text: str, parameter: ToolParameter | None) -> Any:
    text = _content(text, name)
    if sign == ":=":
        return _json(text, name)
    kind = parameter.type if parameter else "string"
    if kind == "array" and not text.lstrip().startswith("["):
        of = ((parameter.items if parameter else None) or {}).get("type", "string")
        return [[text] if of == "array" else _READERS.get(of if isinstance(of, str) else "string", _text)(text, name)]
    return _READERS.get(kind, _text)(text, name)


def _joined(name: str, before: Any, value: Any) -> Any:
    if isinstance(before, list) and isinstance(value, list):
        return before + value
    raise ValueError(f"{name} is given twice.")


def _content(text: str, name: str) -> str:
    """What `@file` stands for; `@-` is the standard input."""
    if not text.startswith("@"):
        return text
    try:
        return sys.stdin.read() if text == "@-" else Path(text[1:]).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}: {text[1:]} is not UTF-8 text.") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ValueError(
            f"{name}: {text[1:]!r} cannot be read: {reason}. A text beginning with @ is {name}:='\"@...\"'."
        ) from error


def _json(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = f"{error.msg} at character {error.pos}" if isinstance(error, json.JSONDecodeError) else str(error)
        raise ValueError(f"{name}: not JSON ({reason}). Text needs quotes: {name}:='\"text\"'.") from error


def _text(text: str, _name: str) -> Any:
    return text


def _integer(text: str, name: str) -> Any:
    if not re.fullmatch(r"[+-]?\d{1,4000}", text.strip(), re.ASCII):
        raise ValueError(f"{name}={_shown(text)}: {name} takes an integer.")
    return int(text)


def _number(text: str, name: str) -> Any:
    try:
        return int(text) if re.fullmatch(r"[+-]?\d{1,300}", text.strip(), re.ASCII) else float(text)
    except ValueError:
        raise ValueError(f"{name}={_shown(text)}: {name} takes a number.") from None


def _boolean(text: str, name: str) -> Any:
    value = _BOOLEANS.get(text.strip().lower())
    if value is None:
        raise ValueError(f"{name}={_shown(text)}: {name} takes true or false.")
    return value


_READERS: Mapping[str, Callable[[str, str], Any]] = {
    "integer": _integer,
    "number": _number,
    "boolean": _boolean,
    "array": _json,
    "object": _json,
}


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:39]}…")


def _kind(value: Any) -> str:
    return {list: "an array", str: "a text", type(None): "null", bool: "true or false"}.get(type(value), "a number")
