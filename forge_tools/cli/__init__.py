"""The command `forge-tools`: reads arguments, calls the layers below, prints. Nothing else in the package prints."""

from forge_tools.cli.main import main

__all__ = ["main"]
