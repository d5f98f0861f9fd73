"""The project around the current folder: what `[tool.forge-tools]` in its pyproject.toml says."""

import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forge_tools.errors import ConfigurationError

FILE = "pyproject.toml"
TABLE = "tool.forge-tools"


@dataclass(frozen=True, slots=True)
class Project:
    """A folder with a pyproject.toml that has our table. `tools` are references as `load_tools` takes them."""

    folder: Path
    tools: tuple[str, ...]


def find_project(start: Path | None = None) -> Project | None:
    """The project of a folder, the current one by default: its own, or that of the nearest parent which has one.

    Raises:
        ConfigurationError: naming the file and what is wrong in it.
    """
    start = (start or Path.cwd()).absolute()
    for folder in (start, *start.parents):
        table = _table(folder / FILE)
        if table is not None:
            if folder != start:
                _require_trusted(folder / FILE, start)
            return Project(folder, _references(folder, table))
    return None


def is_path(reference: str) -> bool:
    """Whether a reference names a file or folder, and not a module."""
    return "/" in reference or reference.partition(":")[0].endswith(".py")


def _table(file: Path) -> Any:
    try:
        content = file.read_bytes()
    except OSError:
        return None
    if b"forge-tools" not in content:  # most are of no concern to us, and parsing takes a while
        return None
    try:
        return tomllib.loads(content.decode()).get("tool", {}).get("forge-tools")
    except ValueError as error:
        raise ConfigurationError(f"{file} is no TOML: {error}.") from error


def _references(folder: Path, table: Any) -> tuple[str, ...]:
    where = f"{folder / FILE}, [{TABLE}]"
    if not isinstance(table, dict):
        raise ConfigurationError(f'{where} must be a table, such as tools = ["mytools"].')
    if unknown := sorted(table.keys() - {"tools"}):
        raise ConfigurationError(f"{where}: there is no setting '{unknown[0]}'; the table has `tools` alone.")
    tools = table.get("tools", [])
    if not isinstance(tools, list) or not all(isinstance(one, str) for one in tools):
        raise ConfigurationError(f'{where}: tools must be a list of texts, such as ["mytools", "more/tools.py"].')
    return tuple(str(folder / one) if is_path(one) else one for one in tools)


def _require_trusted(file: Path, start: Path) -> None:
    """What a parent folder names is imported: it must be no stranger's, who may have put it into /tmp."""
    owner = file.stat().st_uid
    if owner not in {os.getuid(), 0, start.stat().st_uid}:
        raise ConfigurationError(
            f"{file} names tools to import, and belongs to another user (uid {owner}). Work in a folder outside of "
            f"{file.parent}, or have that file removed."
        )
