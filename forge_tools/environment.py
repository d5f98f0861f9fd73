"""What is read from the environment besides the settings: secrets, settings of tools, and names that nothing reads."""

import os
import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Literal

from forge_tools.errors import ConfigurationError

_VARIABLE = re.compile(r"\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}")


def expanded(text: str) -> str:
    """Replace `${NAME}` and `${NAME:-default}` from the environment, for files that name secrets without holding them.

    Raises:
        ConfigurationError: a variable without a default is not set.
    """

    def value(match: re.Match[str]) -> str:
        found = os.environ.get(match["name"], match["default"])
        if found is None:
            raise ConfigurationError(
                f"${{{match['name']}}} is not set. Set it, or write ${{{match['name']}:-default}}."
            )
        return found

    return _VARIABLE.sub(value, text)


def log_format() -> Literal["text", "json"]:
    """Return the setting, for a program that logs before it has read its settings."""
    return "json" if os.environ.get("FORGE_LOG_FORMAT", "").strip().lower() == "json" else "text"


def variable(name: str) -> str | None:
    """Return a tool's own setting, by its name in the environment."""
    return os.environ.get(name)


def given_secrets(*, are_taken: bool = False) -> dict[str, str]:
    """Return the secrets that calls and tools may name, `FORGE_SECRET_<NAME>`; `are_taken` hides them from tools."""
    prefix = "FORGE_SECRET_"
    read = os.environ.pop if are_taken else os.environ.__getitem__
    return {name.removeprefix(prefix): read(name) for name in list(os.environ) if name.startswith(prefix)}


def misspelt(settings: Iterable[str], known: Iterable[str] = ()) -> dict[str, str]:
    """Return variables that nothing reads, each with that of the `settings` which was probably meant.

    Other names are left alone: they may be settings of tools. `known` are variables of ours that are no settings.
    """
    names = [f"FORGE_{name.upper()}" for name in settings]
    strange = {name for name in os.environ if name.startswith("FORGE_")} - {*names, *known}
    close = {name: get_close_matches(name, names, n=1, cutoff=0.85) for name in sorted(strange)}
    return {
        name: found[0]
        for name, found in close.items()
        if found and not name.startswith(("FORGE_SECRET_", "FORGE_TEST"))
    }
