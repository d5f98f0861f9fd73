"""A command group that imports a command's module only when that command is run."""

from collections.abc import Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import Any, ClassVar, NamedTuple

import typer
from typer.core import TyperGroup
from typer.main import get_command


class Lazy(NamedTuple):
    """Where a command lives (a module with `app`), and its line in the list of commands."""

    module: str
    summary: str


class LazyGroup(TyperGroup):
    """Lists its commands without importing them."""

    registry: ClassVar[Mapping[str, Lazy]] = {}

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.registry)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        lazy = self.registry.get(cmd_name)
        if lazy is None:
            return None
        command = get_command(import_module(lazy.module).app)
        command.name = cmd_name
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0]
        if name not in self.registry and not name.startswith("-"):
            close = get_close_matches(name, self.registry, n=2)
            hint = f" Did you mean {' or '.join(close)}?" if close else ""
            ctx.fail(f"No such command: {ascii(name)[1:-1]}.{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, lazy.summary) for name, lazy in self.registry.items()])


def command_app(**options: Any) -> typer.Typer:
    """Make the Typer app of one command's module: plain help that is quick to load and readable at 80 columns."""
    return typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, **options)
