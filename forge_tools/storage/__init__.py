"""Storage: the only package that knows SQL. What it stores is the truth; all other packages ask it.

The names below are loaded on first use, so that making calls, or reading history, loads nothing else.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forge_tools.storage.history.history import open_history
    from forge_tools.storage.rows import ToolChangedError, result_of, result_text
    from forge_tools.storage.store import Store, open_store

__all__ = ["Store", "ToolChangedError", "open_history", "open_store", "result_of", "result_text"]

_OWNERS = {"ToolChangedError": "rows", "open_history": "history.history", "result_of": "rows", "result_text": "rows"}
"""The modules of the names that are not in `store`."""


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found = getattr(import_module(f"{__name__}.{_OWNERS.get(name, 'store')}"), name)
    return found
