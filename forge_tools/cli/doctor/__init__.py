"""`forge-tools doctor`: what is wrong, and the way out. A check reports; it never mends."""

from forge_tools.cli.doctor.command import app

__all__ = ["app"]
