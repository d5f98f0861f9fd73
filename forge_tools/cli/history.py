"""`forge-tools history`: what was run, newest first."""

from datetime import datetime
from typing import Annotated, Any

import typer

from forge_tools.cli.database import with_store
from forge_tools.cli.executions import executions_table, summary
from forge_tools.cli.face import OutputOption, face_of
from forge_tools.cli.lazy import command_app
from forge_tools.cli.moments import parse_since
from forge_tools.records import ExecutionRecord, ExecutionStatus, ToolCategory
from forge_tools.storage import Store

app = command_app()


@app.command()
def history(  # noqa: PLR0913 one option a filter
    context: typer.Context,
    *,
    tool: Annotated[str | None, typer.Option(help="Only this tool.")] = None,
    category: Annotated[
        ToolCategory | None, typer.Option(metavar="CATEGORY", help=f"One of {', '.join(ToolCategory)}.")
    ] = None,
    status: Annotated[
        ExecutionStatus | None, typer.Option(metavar="STATUS", help=f"One of {', '.join(ExecutionStatus)}.")
    ] = None,
    agent: Annotated[str | None, typer.Option(help="Only calls of this agent.")] = None,
    session: Annotated[str | None, typer.Option(help="Only calls of this session.")] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Queued since 90s, 15m, 1h, 2d ago, or ISO.")
    ] = None,
    error_code: Annotated[str | None, typer.Option(metavar="CODE", help="Only those that ended with it.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many.")] = 50,
    before: Annotated[str | None, typer.Option(metavar="ID", help="Only older ones: the next page.")] = None,
    output: OutputOption = None,
) -> None:
    """List executions, newest first. As JSON it is one object a line, without outputs: `show` has those."""
    filters: dict[str, Any] = {
        "tool": tool,
        "category": category,
        "status": status,
        "agent_id": agent,
        "session_id": session,
        "since": _moment(since),
        "error_code": error_code,
    }

    async def read(store: Store) -> list[ExecutionRecord]:
        last = await store.history.get(before) if before else None
        page = (last.queued_at, last.id) if last else None
        return await store.history.list(**filters, limit=limit, before=page)

    face = face_of(context)
    records = with_store(read)
    if face.is_json:
        for record in records:
            face.line(summary(record))
    elif not records:
        face.say("Nothing was run yet." if not any(filters.values()) else "No execution matches.", style="dim")
    else:
        face.out.print(executions_table(records, face.out.width))
        if len(records) == limit:
            face.note(f"Older ones: forge-tools history --before {records[-1].id}")


def _moment(text: str | None) -> datetime | None:
    try:
        return parse_since(text) if text else None
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--since") from None
