"""What adapters ask of an executor: a ToolExecutor in this process and an ExecutorClient of workers are both one."""

from collections.abc import Mapping
from typing import Any, Protocol

from forge_tools.records import CallOptions, ExecutionContext, Schema, ToolCategory, ToolResult, ToolSpec


class Executor(Protocol):
    """Runs tools by name, and tells which there are."""

    async def execute(self, tool_name: str, context: ExecutionContext, /, **parameters: Any) -> ToolResult:
        """Call a tool; whatever is wrong with the call, or goes wrong in it, is a failed result."""
        ...

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any],
        context: ExecutionContext | None = None,
        options: CallOptions | None = None,
    ) -> ToolResult:
        """Do what `execute` does, for arguments that come as one object."""
        ...

    def specs(self) -> list[ToolSpec]:
        """The tools as data, without I/O."""
        ...

    def get_all_schemas(self, format: str = "openai") -> list[Schema]:
        """Their schemas, in a provider's format.

        Raises:
            ValueError: for a format that is not known.
        """
        ...

    def get_schemas_by_category(self, category: ToolCategory, format: str = "openai") -> list[Schema]:
        """The schemas of one category.

        Raises:
            ValueError: for a format that is not known.
        """
        ...
