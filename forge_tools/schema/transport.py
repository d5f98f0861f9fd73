"""What can be sent and stored: values as strict JSON, texts without control characters."""

import json
import math
import re
from collections.abc import Collection
from typing import Any

from forge_tools.errors import InvalidCallError

MAX_DEPTH = 100
"""The deepest nesting of values and schemas; deeper ones exhaust the stacks of later parsers."""

_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_ENCODER = json.JSONEncoder(ensure_ascii=True, allow_nan=False, check_circular=False, separators=(",", ":"))
_FEW = 16
"""Up to this many values of a container are checked one by one; for more, their types come first."""
_LONGEST_INTEGER = 14_280
"""Bits; Python refuses to print integers of more than 4,300 digits."""
_SETTINGS = {
    **dict.fromkeys(("parameters", "context"), "FORGE_MAX_PARAMETER_BYTES"),
    **dict.fromkeys(("output", "metadata", "error_details"), "FORGE_MAX_OUTPUT_BYTES"),
}
"""What raises the limit of the parts of a call and of its result."""
_TEXT = {str}
_ONE_CHARACTER = {int, float, bool, type(None)}
"""Types whose values need at least one character."""


def encode_json(value: Any, what: str, limit: int) -> str:
    """Render `value` as compact ASCII JSON of at most `limit` bytes; tuples become arrays.

    Raises:
        InvalidCallError: naming the path of what JSON cannot carry, starting with `what`, or the size and the limit.
    """
    try:
        if type(value) is not str or len(value) + 2 > limit:
            _survey(value, what, limit)
        text = _ENCODER.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidCallError(_culprit(value, what) or f"{what}: {error}") from error
    if len(text) > limit:
        raise _too_large(what, f"{len(text):,}", limit)
    return text


class Unreadable(dict[str, str]):
    """A placeholder for stored JSON that cannot be decoded; it says so wherever it is printed."""


def decode_json(text: str | None) -> Any:
    """Return the value of stored JSON: None for NULL, `Unreadable` for invalid text, possible only without CHECKs."""
    if text is None:
        return None
    try:
        return json.loads(text)
    except (RecursionError, TypeError, ValueError):
        return Unreadable(unreadable="the database holds invalid JSON here")


def clean_text(text: str) -> str:
    """Make `text` storable and printable: escape control characters except tab and newline, and lone surrogates."""
    return _UNPRINTABLE.sub(_escape, text)


def shown(name: Any) -> str:
    """Shorten and clean a name from a caller, for a message."""
    text = clean_text(str(name))
    return text if len(text) <= 64 else f"{text[:61]}..."


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def _survey(value: Any, what: str, limit: int) -> None:
    """Walk the containers of `value` level by level, before the encoder does.

    It stops what would harm the encoder: depth (cycles are endless depth), texts and sharing that amount to gigabytes,
    and numbers as keys, which the encoder would turn into strings silently. Those raise TypeError: they have no length.
    """
    size = -2  # for the brackets of the outermost level, which do not exist
    level: list[Collection[Any]] = [(value,)]
    for _ in range(MAX_DEPTH + 1):
        deeper: list[Collection[Any]] = []
        for values in level:
            size += len(values) + 1 + _leaf_size(values, deeper)
            if size > limit:
                raise _too_large(what, f"at least {size:,}", limit)
        if not deeper:
            return
        level = deeper
    raise InvalidCallError(_culprit(value, what) or _too_deep(what))


def _leaf_size(values: Collection[Any], deeper: list[Collection[Any]]) -> int:
    """Return the minimum that `values` need in JSON; put the contents of containers among them into `deeper`."""
    if len(values) > _FEW:
        kinds = set(map(type, values))
        if kinds <= _ONE_CHARACTER:
            return len(values)
        if kinds == _TEXT:
            return sum(map(len, values)) + 2 * len(values)
    size = 0
    for value in values:
        if isinstance(value, str):
            size += len(value) + 2
        elif isinstance(value, dict):
            deeper.append(value.values())
            size += sum(map(len, value)) + 3 * len(value)
        elif isinstance(value, list | tuple):
            deeper.append(value)
        else:
            size += 1
    return size


def _too_large(what: str, size: str, limit: int) -> InvalidCallError:
    verb = "are" if what.endswith("s") else "is"
    setting = _SETTINGS.get(what.partition(".")[0])
    way_out = f"Write the data to a file and pass its path, or raise {setting}." if setting else "Make it smaller."
    return InvalidCallError(f"{what} {verb} {size} bytes; the limit is {limit:,}. {way_out}")


def _culprit(value: Any, path: str, depth: int = 0) -> str | None:
    if isinstance(value, dict | list | tuple) and depth >= MAX_DEPTH:
        return _too_deep(path)
    if isinstance(value, dict):
        entries = (_culprit_entry(key, item, path, depth) for key, item in value.items())
        return next(filter(None, entries), None)
    if isinstance(value, list | tuple):
        items = (_culprit(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(value))
        return next(filter(None, items), None)
    reason = _why_not(value)
    return f"{path}: {reason}" if reason else None


def _culprit_entry(key: Any, item: Any, path: str, depth: int) -> str | None:
    if not isinstance(key, str):
        return f"{path}: the key {shown(repr(key))} is not a string. Use string keys."
    return _culprit(item, f"{path}.{shown(key)}", depth + 1)


def _too_deep(path: str) -> str:
    start = path if len(path) <= 80 else f"{path[:77]}..."
    return f"{start}: nested deeper than {MAX_DEPTH} levels, or contains itself. Flatten the value."


def _why_not(value: Any) -> str | None:
    if isinstance(value, float) and not math.isfinite(value):
        name = "NaN" if math.isnan(value) else "Infinity"
        return f"{name} cannot be represented in JSON. Send null or a string."
    if isinstance(value, int) and value.bit_length() > _LONGEST_INTEGER:
        return "the integer is too long for JSON. Send a string."
    if isinstance(value, str | int | float | None):
        return None
    if isinstance(value, bytes | bytearray | memoryview):
        return f"{type(value).__name__} cannot be represented in JSON. Send text, base64, or the path of a file."
    if isinstance(value, set | frozenset):
        return f"a {type(value).__name__} cannot be represented in JSON. Send a list."
    kind = shown(type(value).__name__)
    return f"an object of type {kind} cannot be represented in JSON. Send its text or its fields."
