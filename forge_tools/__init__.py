"""A task-queue-backed distributed tool runner for AI agents.

Import from the module that owns the name: `forge_tools.base`, `.registry`, `.executor`, `.client`.
"""

__version__ = "0.1.0"
