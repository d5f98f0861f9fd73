"""The agent's side: tools in each model SDK's format. An adapter imports its SDK where it is used, never at the top."""

from forge_tools.adapters.conversation import Conversation, Reply, Step, Turn, Usage
from forge_tools.adapters.toolset import Answer, ToolCall, Toolset

__all__ = ["Answer", "Conversation", "Reply", "Step", "ToolCall", "Toolset", "Turn", "Usage"]
