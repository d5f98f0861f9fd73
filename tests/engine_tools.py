"""Tools that need an engine, what makes one, and the tools that keep state."""

from typing import Annotated

from forge_tools.tool import Depends, engine, tool
from forge_tools.tool.base import Capabilities
from forge_tools.tools import Memory, TodoRead, TodoWrite


def make() -> str:
    return "an engine"


@tool(lane="async", capabilities=Capabilities(requires_engine=True, idempotent=True))
async def with_engine(engine: Annotated[str, Depends(engine)]) -> str:
    """Say which engine there is."""
    return engine


@tool(lane="async")
async def with_or_without(engine: Annotated[str | None, Depends(engine)]) -> str:
    """Do with an engine or without."""
    return engine or "none"


TOOLS = [with_engine, with_or_without, TodoRead, TodoWrite, Memory]
