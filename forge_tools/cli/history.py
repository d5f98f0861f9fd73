"""`forge-tools history`: what was run, newest first."""

from typing import Annotated

import typer

from forge_tools.cli import filters
from forge_tools.cli.database import with_store
from forge_tools.cli.executions import executions_table, summary
from forge_tools.cli.face import OutputOption, face_of
from forge_tools.cli.lazy import command_app
from forge_tools.records import ExecutionRecord
from forge_tools.storage import Store

app = command_app()


@app.command()
def history(  # noqa: PLR0913 one option a filter
    context: typer.Context,
    *,
    tool: filters.ToolOption = None,
    category: filters.CategoryOption = None,
    status: filters.StatusOption = None,
    agent: filters.AgentOption = None,
    session: filters.SessionOption = None,
    queue: filters.QueueOption = None,
    since: filters.SinceOption = None,
    until: filters.UntilOption = None,
    error_code: filters.CodeOption = None,
    error: filters.ErrorOption = None,
    slower_than: filters.SlowerOption = None,
    faster_than: filters.FasterOption = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many.")] = 50,
    before: Annotated[str | None, typer.Option(metavar="ID", help="Only older ones: the next page.")] = None,
    output: OutputOption = None,
) -> None:
    """List executions, newest first. As JSON it is one object a line, without outputs: `show` has those."""
    chosen = filters.given(context)

    async def read(store: Store) -> list[ExecutionRecord]:
        last = (await store.history.get(before)).id if before else None  # a beginning of the id will do
        return await store.history.list(**chosen, limit=limit, before=last)

    face = face_of(context)
    records = with_store(read)
    if face.is_json:
        for record in records:
            face.line(summary(record))
    elif not records:
        face.say("No execution matches." if chosen else "Nothing was run yet.", style="dim")
    else:
        face.out.print(executions_table(records, face.out.width))
        if len(records) == limit:
            face.note(f"Older ones: forge-tools history --before {records[-1].id}")
