"""Storage: the one package that knows SQL. What is written here is the truth; everything else asks it."""

from forge_tools.storage.definitions import ToolChangedError
from forge_tools.storage.store import Store, open_store

__all__ = ["Store", "ToolChangedError", "open_store"]
