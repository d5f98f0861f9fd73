"""ReadArtifact: the way on in a long output for models that are not offered Read, and so no files either."""

from collections.abc import Iterable, Mapping
from typing import Any

from forge_tools.records import ToolParameter, ToolSpec, artifact_id
from forge_tools.validation import shown

READER = "Read"
NAME = "ReadArtifact"

_DESCRIPTION = (
    "Read on in an output that was too long to be shown: one that names artifact://... and says where what it left out "
    "begins, such as offset=8197."
)
_HANDLE = ToolParameter(
    name="artifact",
    type="string",
    description="The handle, artifact:// and 32 hexadecimal digits, as the shortened output names it.",
    keywords={"pattern": "^artifact://[0-9a-f]{32}$"},
)
_KEPT = ("offset", "limit", "tail", "column")
"""Those parameters of Read that say which page."""


def artifact_reader(specs: Iterable[ToolSpec]) -> ToolSpec | None:
    """ReadArtifact as the Read among `specs` has it; None without that, or where a tool of that name is there."""
    by_name = {spec.name: spec for spec in specs}
    if READER not in by_name or NAME in by_name:
        return None
    read = by_name[READER]
    paging = tuple(one for one in read.parameters if one.name in _KEPT)
    return read.model_copy(
        update={"name": NAME, "description": _DESCRIPTION, "aliases": (), "parameters": (_HANDLE, *paging)}
    )


def arguments_of_read(arguments: Mapping[str, Any]) -> dict[str, Any] | str:
    """Turn arguments of ReadArtifact into those of Read, or say what is wrong: they must lead to no file."""
    if strange := sorted(arguments.keys() - {_HANDLE.name, *_KEPT}):
        return f"Unknown parameter of {NAME}: {shown(strange[0])}. It takes {_HANDLE.name}, {', '.join(_KEPT)}."
    handle = arguments.get(_HANDLE.name)
    if not isinstance(handle, str) or artifact_id(handle) is None:
        return f"{_HANDLE.name} must be a handle, artifact:// and 32 hexadecimal digits, not {shown(str(handle))}."
    return {"file_path": handle, **{name: arguments[name] for name in _KEPT if name in arguments}}
