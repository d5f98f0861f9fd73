"""The agent's side: submit calls, await results, read the catalogue and the history. Imports no tool and no worker."""

from forge_tools.client.call import Call
from forge_tools.client.client import ExecutorClient
from forge_tools.client.handle import Handle
from forge_tools.client.sync import SyncExecutorClient, SyncHandle

__all__ = ["Call", "ExecutorClient", "Handle", "SyncExecutorClient", "SyncHandle"]
