"""`forge-tools history`: what was run, newest first."""

from typing import Annotated, Any

import typer

from forge_tools.cli import filters
from forge_tools.cli.database import with_history
from forge_tools.cli.executions import summary
from forge_tools.cli.face import OutputOption, face_of
from forge_tools.cli.lazy import command_app
from forge_tools.cli.listed import KindOption, Listed, OfOption, Rows, listed, narrowed
from forge_tools.records import is_id
from forge_tools.storage.history import History
from forge_tools.storage.paging import Page

PATIENCE_SECONDS = 2.0
"""How long people wait for a page of what no index finds; then it says where to look on. Programs get whole pages."""

app = command_app()


@app.command()
def history(  # noqa: PLR0913 one option a filter
    context: typer.Context,
    *,
    of: OfOption = Rows.EXECUTIONS,
    kind: KindOption = None,
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
    before: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Only older ones: the next page, as the last line of this one says."),
    ] = None,
    output: OutputOption = None,
) -> None:
    """List executions, newest first, or attempts or events. As JSON it is one object a line, without outputs.

    Of attempts, status, error and duration are their own. Of events, times are when they happened, and what else is asked
    is of the execution they happened to.
    """
    chosen = narrowed(filters.given(context), of, kind)

    async def read(known: History) -> tuple[Listed, Page[Any]]:
        last, rows = before, listed(known, of)
        if before and of is Rows.EXECUTIONS and not is_id(before.lower()):
            last = (await known.get(before)).id  # a beginning of the id will do
        return rows, await rows.page(**chosen, limit=limit, before=last, patience=patience)

    face = face_of(context)
    patience = None if face.is_json else PATIENCE_SECONDS
    rows, page = with_history(read)
    if face.is_json:
        for record in page:
            face.line(summary(rows.document(record)))
        return
    if page:
        face.out.print(rows.table(page, face.out.width))
    elif page.older is not None:
        face.say(f"No {of.value.removesuffix('s')} matches among those looked at so far.", style="dim")
    else:
        one = of.value.removesuffix("s")
        if before:
            face.say(f"No older {one} matches." if chosen else f"No {one} is older.", style="dim")
        else:
            face.say(f"No {one} matches." if chosen else _NOTHING[of], style="dim")
    if page.older is not None:
        face.note(f"Older ones: {filters.again(context, before=page.older)}")


_NOTHING = {
    Rows.EXECUTIONS: "Nothing was run yet.",
    Rows.ATTEMPTS: "No attempt has ended yet.",
    Rows.EVENTS: "Nothing was done to any execution yet.",
}
