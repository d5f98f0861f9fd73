"""`key=value` on the command line as the values that a tool declares."""

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from forge_tools.records import ToolParameter, ToolSpec

_ASSIGNMENT = re.compile(r"(?P<name>[^=\s]+?)(?P<sign>:=|=)(?P<value>.*)", re.DOTALL)
_BOOLEANS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


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
        value = _value(found, declared.get(name))
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


def _value(found: Mapping[str, str] | re.Match[str], parameter: ToolParameter | None) -> Any:
    name, text = found["name"], found["value"]
    if found["sign"] == ":=":
        return _json(_content(text, name), name)
    text = _content(text, name)
    return _READERS.get(parameter.type if parameter else "string", _text)(text, name, parameter)


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


def _text(text: str, _name: str, _parameter: ToolParameter | None) -> Any:
    return text


def _integer(text: str, name: str, _parameter: ToolParameter | None) -> Any:
    if not re.fullmatch(r"[+-]?\d{1,4000}", text.strip(), re.ASCII):
        raise ValueError(f"{name}={_shown(text)}: {name} takes an integer.")
    return int(text)


def _number(text: str, name: str, _parameter: ToolParameter | None) -> Any:
    try:
        return int(text) if re.fullmatch(r"[+-]?\d{1,300}", text.strip(), re.ASCII) else float(text)
    except ValueError:
        raise ValueError(f"{name}={_shown(text)}: {name} takes a number.") from None


def _boolean(text: str, name: str, _parameter: ToolParameter | None) -> Any:
    value = _BOOLEANS.get(text.strip().lower())
    if value is None:
        raise ValueError(f"{name}={_shown(text)}: {name} takes true or false.")
    return value


def _array(text: str, name: str, parameter: ToolParameter | None) -> Any:
    if text.lstrip().startswith("["):
        return _json(text, name)
    kind = ((parameter.items if parameter else None) or {}).get("type", "string")
    return [_READERS.get(kind if isinstance(kind, str) else "string", _text)(text, name, None)]


def _object(text: str, name: str, _parameter: ToolParameter | None) -> Any:
    return _json(text, name)


_READERS: Mapping[str, Callable[[str, str, ToolParameter | None], Any]] = {
    "integer": _integer,
    "number": _number,
    "boolean": _boolean,
    "array": _array,
    "object": _object,
}


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:39]}…")


def _kind(value: Any) -> str:
    return {list: "an array", str: "a text", type(None): "null", bool: "true or false"}.get(type(value), "a number")
