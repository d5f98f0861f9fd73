"""Reports of tools in the server's own process reach its client, without secrets."""

from types import SimpleNamespace
from typing import Any

from forge_tools.mcp.calls import told_here
from forge_tools.model import ExecutionContext
from forge_tools.tool import tool
from forge_tools.tool.executor import ToolExecutor
from forge_tools.tool.registry import ScopedRegistry


@tool(sensitive=["pin"])
async def apart(context: ExecutionContext, pin: str) -> str:
    """Tell a secret in parts."""
    context.emit(f"it is {pin[:4]}")
    context.progress(1, 2, f"with {pin}")
    context.emit(f"{pin[4:]}, not {pin[:4]}")
    return "done"


async def test_a_secret_that_is_told_in_parts_is_told_in_no_notification() -> None:
    told: list[str | None] = []

    async def report_progress(number: float, total: float | None, message: str | None) -> None:
        told.append(message)

    registry = ScopedRegistry()
    registry.register(apart)
    session = SimpleNamespace(report_progress=report_progress)
    ctx: Any = SimpleNamespace(session=session, params={}, protocol_version="2026-07-28")

    result = await told_here(ctx, ToolExecutor(registry).call("apart", {"pin": "hunter22"}))

    assert result.output == "done"
    assert told == ["it is [redacted], not hunt", "with [redacted]"]
