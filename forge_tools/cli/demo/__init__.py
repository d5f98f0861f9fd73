"""`forge-tools demo`: a real stack at work. It asserts what it prints."""

from forge_tools.cli.demo.command import app

__all__ = ["app"]
