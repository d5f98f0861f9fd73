"""`forge-tools top`: a stack as it works, from SQL alone. It watches; it never acts."""

from forge_tools.cli.top.command import app

__all__ = ["app"]
