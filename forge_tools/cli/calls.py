"""`forge-tools cancel` and `replay`: end one execution, or run it again."""

from contextlib import suppress
from typing import Annotated

from typer import Argument, Option

import forge_tools
from forge_tools.cli.database import whoami, with_store
from forge_tools.cli.face import App, Face
from forge_tools.cli.live import awaited, cancellable
from forge_tools.cli.parameters import GivenParameters, find_spec
from forge_tools.cli.run import left_alone, report
from forge_tools.cli.selection import IdArgument
from forge_tools.cli.stack import require_stack
from forge_tools.client.calls import tell_of_cancel
from forge_tools.config import Settings
from forge_tools.errors import ForgeError
from forge_tools.model import ToolResult, is_id
from forge_tools.storage import Store

app = App()

_SAID = {
    "cancelled": "Cancelled {id}; it was not running.",
    "requested": "Asked the worker to stop {id}; it does so within one heartbeat, unless the tool ends first.",
    "over": "{id} has already ended; nothing to cancel.",
}


@app.command()
def cancel(
    face: Face,
    execution_id: IdArgument,
    reason: Annotated[str, Option(help="The reason, kept with the execution.")] = "",
) -> None:
    """Cancel an execution. One that waits never starts; one that runs is stopped, its processes too."""

    settings = Settings.load()

    async def ask(store: Store) -> tuple[str, str]:
        whole = execution_id.lower()  # which may be unreadable: somebody else may have written it
        id_ = whole if is_id(whole) else (await store.history.get(execution_id)).id
        answer = await store.transitions.cancel(id_, actor=whoami(), reason=reason)
        if answer != "over":
            with suppress(ForgeError):  # it is stored; workers and submitters also poll
                await tell_of_cancel(store, settings.broker, id_)
        return id_, answer

    found, answer = with_store(ask, settings)
    face.tell({"id": found, "outcome": answer}, _SAID[answer].format(id=found))


@app.command()
def replay(
    face: Face,
    execution_id: IdArgument,
    words: Annotated[
        list[str] | None,
        Argument(metavar="KEY=VALUE", help="Parameters that replace its own; secret ones must be given again."),
    ] = None,
    *,
    json: Annotated[str | None, Option("--json", metavar="JSON|@FILE", help="The same, as one object.")] = None,
    dry_run: Annotated[
        bool | None,
        Option("--dry-run/--no-dry-run", help="Only describe what it would do, or do it. Default: as before."),
    ] = None,
    background: Annotated[bool, Option("--background", help="Print the id and return without waiting.")] = False,
    queue: Annotated[str | None, Option(help="The queue. Default: as before.")] = None,
    reason: Annotated[str, Option(help="The reason, kept with both executions.")] = "",
) -> None:
    """Run an execution of the past again and print the result. Both are linked to each other. Ctrl-C cancels the call."""
    settings = Settings.load()
    require_stack(face, settings, is_left=background)
    given = GivenParameters(words, json, settings.max_parameter_bytes)

    async def again() -> tuple[list[str], ToolResult | None]:
        async with forge_tools.ExecutorClient(settings) as client:
            record = await client.history.get(execution_id)
            parameters = given.typed(find_spec(client.specs(), record.tool))
            changes = {} if queue is None else {"queue": queue}
            handle = await client.calls.replay(
                record.id, parameters, dry_run=dry_run, reason=reason, actor=whoami(), **changes
            )
            return [record.tool], await (left_alone(face, handle) if background else awaited(face, handle))

    report(face, *cancellable(again()))
