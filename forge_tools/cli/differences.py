"""What differs between two definitions of a tool, and which of it refuses calls that were fine before."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from forge_tools.model import ToolSpec


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
