"""What a shell is offered to complete: tools and their parameters. Where no database answers, that is nothing."""

from collections.abc import Iterator
from importlib import import_module

import typer

from forge_tools.cli.parameters import find_spec
from forge_tools.errors import ForgeError
from forge_tools.model import ToolSpec

Offer = tuple[str, str]
"""A word, and a description that some shells show beside it."""


def completed_tools(incomplete: str) -> list[Offer]:
    """Complete the name of a published tool."""
    return _beginning(incomplete, ((spec.name, spec.description) for spec in _published()))


def completed_parameters(context: typer.Context, incomplete: str) -> list[Offer]:
    """Complete a parameter of the tool on the command line."""
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
    database = import_module("forge_tools.cli.database")  # imported late: most commands complete nothing
    try:
        directory = database.with_store(lambda store: store.directories.read())
    except ForgeError:  # no database, nothing to offer
        return []
    return [*directory.enabled, *directory.disabled]
