"""The one-machine stack: a folder with its lock, Valkey, SQLite and three workers. It prints nothing; callers do.

What runs a stack is loaded on first use, so that asking whether one runs loads nothing else.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from forge_tools.embedded.home import Holder, stack_holder

if TYPE_CHECKING:
    from forge_tools.embedded.stack import EmbeddedStack, StackStatus, WorkerPlan, forget
    from forge_tools.embedded.supervision import ProcessStatus

__all__ = ["EmbeddedStack", "Holder", "ProcessStatus", "StackStatus", "WorkerPlan", "forget", "stack_holder"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    owner = "supervision" if name == "ProcessStatus" else "stack"
    globals()[name] = found = getattr(import_module(f"{__name__}.{owner}"), name)
    return found
