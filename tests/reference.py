"""Pages that are made of the code itself: `python -m tests.reference` writes them, `tests/architecture/test_pages.py` holds them current."""

import inspect
import io
import os
import re
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout, suppress
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

from pydantic import SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from typer.main import get_command

from forge_tools.cli.main import Commands, app, main
from forge_tools.config import Settings
from workers.program import parser

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"

MADE = "This page is made by `python -m tests.reference`."

API = {
    "forge_tools": "what most programs import",
    "forge_tools.client": "calls on workers",
    "forge_tools.tool": "tools from functions, factories and packages",
    "forge_tools.testing": "tools in tests",
    "forge_tools.adapters": "models and their tools",
}

_FIRST_OF = {
    "workspace": "Where things are",
    "max_timeout": "Time",
    "heartbeat": "Workers",
    "encryption_keys": "Secrets",
    "shells": "Shells",
    "connect_timeout": "Databases and brokers",
    "walls": "Walls",
    "tool_memory": "Sizes and artifacts",
    "idempotency_scope": "Calls",
    "retention": "History",
    "log_format": "Logs and MCP",
}
"""The setting with which each part of the page begins, in the order in which they are declared."""


def settings() -> str:
    """`settings.md`."""
    text = f"""# Settings

For whoever runs clients or workers. Settings come from the environment and nowhere else; a program that uses the library may pass them: `Settings(lease=30)`. Lists and objects are written as JSON,
durations in seconds, sizes in bytes. A value that cannot be is refused at the start, with its variable and what it must be. [database.md](database.md), [secrets.md](secrets.md), [workspaces.md](workspaces.md) and [artifacts.md](artifacts.md) say more of
theirs. {MADE}
"""
    for name, field in Settings.model_fields.items():
        if title := _FIRST_OF.get(name):
            text += f"\n## {title}\n\n| variable | default | meaning |\n|---|---|---|\n"
        text += f"| `FORGE_{name.upper()}` | {_default(field)} | {_cell(field.description or '')} |\n"
    return (
        text
        + """
`FORGE_SECRET_<NAME>` is a secret that calls may name ([secrets.md](secrets.md)); a worker takes it out of its environment when it starts. `XDG_STATE_HOME` says where homes of
embedded stacks are. `FORGE_TOOLS` stands in place of `[tool.forge-tools]` in `pyproject.toml` ([tools.md](tools.md#loading-tools)). `forge-tools doctor` checks what is set: [commands.md](commands.md).
"""
    )


def _default(field: FieldInfo) -> str:
    if field.default is PydanticUndefined:
        made = {
            "workspace": "the current folder",
            "home": "outside of the workspace",
            "project": "that of the `pyproject.toml`",
            "hostname": "that of the system",
        }
        return next((said for name, said in made.items() if Settings.model_fields[name] is field), "none")
    if field.default in (None, "", ()) or (
        isinstance(field.default, SecretStr) and not field.default.get_secret_value()
    ):
        return "none"
    if isinstance(field.default, bool):
        return f"`{str(field.default).lower()}`"
    return f"{field.default:,.15g}" if isinstance(field.default, int | float) else f"`{field.default}`"


def commands() -> str:
    """`commands.md`."""
    text = f"""# Commands and their options

For whoever types them: what each says of itself. What they have in common, their exit codes and their JSON are in [cli.md](cli.md). {MADE}
"""
    with patch.dict(os.environ, COLUMNS="80"):
        text += "".join(_section(name) for name in Commands.summaries)
    return (
        text
        + "\nThe settings that all of them share: [settings.md](settings.md). What errors mean: [errors.md](errors.md).\n"
    )


def _section(name: str) -> str:
    return f"\n## {name}\n" + "".join(f"\n```text\n{one}\n```\n" for one in _helps(name))


def _helps(name: str) -> Iterator[str]:
    if name == "worker":
        yield _trimmed(parser().format_help())
        return
    yield _help(name)
    inner = get_command(app).get_command(None, name)
    for part in getattr(inner, "commands", {}):
        yield _help(name, part)


def _help(*words: str) -> str:
    shown = io.StringIO()
    with redirect_stdout(shown), suppress(SystemExit):
        main([*words, "--help"])
    return _trimmed(shown.getvalue())


def _trimmed(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def api() -> str:
    """`api.md`."""
    text = f"""# The Python API

For those who call tools from Python or write them. What is listed here is public: it stays from one release to the next. Names that begin with `_`, and modules that are not here, may change. {MADE}
"""
    for name, purpose in API.items():
        module = import_module(name)
        text += f"\n## {name}: {purpose}\n"
        names = getattr(module, "__all__", None) or ["InlineExecutor"]
        text += "".join(_documented(one, getattr(module, one)) for one in names)
    return (
        text
        + "\nExamples that run: [tools.md](tools.md), [tutorial.md](tutorial.md), [openai.md](openai.md). Codes: [errors.md](errors.md).\n"
    )


def _documented(name: str, value: Any) -> str:
    text = f"\n### {name}\n\n"
    if inspect.isclass(value):
        text += f"{_prose(_own_doc(value))}\n"
        if issubclass(value, Enum):
            return text + "\n" + ", ".join(f"`{one.name}`" for one in value) + "\n"
        members = [one for one in _members(value) if one]
        return text + ("\n" + "\n".join(members) + "\n" if members else "")
    return text + f"`{name}{_signature(value)}`: {_prose(inspect.getdoc(value))}\n"


def _own_doc(value: type) -> str | None:
    return next(
        (
            one.__dict__.get("__doc__")
            for one in value.__mro__
            if one.__module__.startswith("forge_tools") and one.__dict__.get("__doc__")
        ),
        None,
    )


def _members(value: type) -> Iterator[str]:
    seen: set[str] = set()
    for owner in value.__mro__:
        if not owner.__module__.startswith("forge_tools"):
            continue
        for name, member in vars(owner).items():
            if name in seen or name.startswith("_"):
                continue
            seen.add(name)
            function = member.__func__ if isinstance(member, classmethod | staticmethod) else member
            if isinstance(member, property):
                yield _item(name, "", member.fget)
            elif inspect.isfunction(function):
                yield _item(name, _signature(function), function)


def _item(name: str, signature: str, function: Callable[..., Any] | None) -> str:
    said = _prose(function.__doc__) if function is not None and function.__doc__ else ""
    return f"- `{name}{signature}`" + (f": {said}" if said else "")


def _signature(function: Any) -> str:
    try:
        formal = inspect.signature(function)
    except (TypeError, ValueError):
        return "(...)"
    kept = [
        one.replace(annotation=inspect.Parameter.empty, default=_plain(one.default))
        for name, one in formal.parameters.items()
        if name not in {"self", "cls"}
    ]
    return re.sub(
        r"<(\w+)[^<>]*>", r"\1", str(formal.replace(parameters=kept, return_annotation=inspect.Signature.empty))
    )


def _plain(default: Any) -> Any:
    is_simple = default is inspect.Parameter.empty or isinstance(default, str | int | float | tuple | None)
    return default if is_simple and not isinstance(default, Enum) else ...


def _prose(text: str | None) -> str:
    """A docstring's sentences on one line; its sections as sentences."""
    return " ".join((text or "").replace("\b", "").split())


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


PAGES: dict[str, Callable[[], str]] = {"settings.md": settings, "commands.md": commands, "api.md": api}

if __name__ == "__main__":
    for page, make in PAGES.items():
        (DOCS / page).write_text(make())
