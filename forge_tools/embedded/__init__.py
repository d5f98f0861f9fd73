"""The one-machine stack: a folder with its lock, Valkey, SQLite and three workers. It prints nothing; callers do."""

from forge_tools.embedded.home import Holder, stack_holder
from forge_tools.embedded.stack import EmbeddedStack, StackStatus, WorkerPlan, forget
from forge_tools.embedded.supervision import ProcessStatus

__all__ = ["EmbeddedStack", "Holder", "ProcessStatus", "StackStatus", "WorkerPlan", "forget", "stack_holder"]
