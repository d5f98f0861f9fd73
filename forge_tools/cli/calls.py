"""`forge-tools cancel` and `replay`: end executions, or run one again."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated

import typer
from typer import Argument, Option

import forge_tools
from forge_tools.cli.face import App, BackgroundOption, Face, can_ask
from forge_tools.cli.live import awaited, cancellable
from forge_tools.cli.parameters import GivenParameters, find_spec
from forge_tools.cli.run import left_alone, report
from forge_tools.cli.selection import Chosen, IdArgument, IdsArgument, filtered
from forge_tools.cli.services import require_stack, whoami, with_history, with_store
from forge_tools.cli.text import counted
from forge_tools.client.calls import tell_of_cancels
from forge_tools.config import Settings
from forge_tools.errors import ForgeError
from forge_tools.model.calls import ToolResult
from forge_tools.model.execution import is_id
from forge_tools.storage import Store

app = App()

_SAID = {
    "cancelled": "Cancelled {id}; it was not running.",
    "requested": "Asked the worker to stop {id}; it does so within one heartbeat, unless the tool ends first.",
    "over": "{id} has already ended; nothing to cancel.",
}
_COUNTED = {
    "cancelled": "Cancelled before they ran: {}.",
    "requested": "Workers were asked to stop: {}.",
    "over": "Had already ended: {}.",
}


@app.command()
@filtered("session", "agent", "tool", "queue")
def cancel(
    face: Face,
    ids: IdsArgument = None,
    *,
    chosen: Chosen,
    reason: Annotated[str, Option(help="The reason, kept with each execution.")] = "",
    yes: Annotated[bool, Option("--yes", help="Do not ask before cancelling all that the filters match.")] = False,
) -> None:
    """Cancel executions: those named, or all that match every given filter and are not over.

    One that waits never starts; one that runs is stopped, its processes too.
    """
    if bool(ids) == bool(chosen):
        raise typer.BadParameter("Give ids, or filters such as --session.", param_hint="cancel")
    settings = Settings.load()
    if chosen:
        ids = list(with_history(lambda history: history.unfinished(**chosen)))
        if not yes and ids:
            asked = counted(len(ids), "call")
            if not can_ask():
                raise typer.BadParameter(f"it would cancel {asked}; confirm with --yes.", param_hint="cancel")
            typer.confirm(f"Cancel {asked}?", abort=True, err=True)
    answers = with_store(lambda store: _cancel(store, settings, ids or (), reason), settings)
    if chosen or len(answers) > 1:
        counts = Counter(answers.values())
        lines = [_COUNTED[one].format(counted(counts[one], "call")) for one in _SAID] if answers else []
        face.tell({"outcomes": answers}, "\n".join(lines) or "No execution that is not over matches.")
    else:
        [(found, answer)] = answers.items()
        face.tell({"id": found, "outcome": answer}, _SAID[answer].format(id=found))


async def _cancel(store: Store, settings: Settings, given: Sequence[str], reason: str) -> dict[str, str]:
    # A whole id is not looked up: a row that cannot be read, because others wrote to it, can still be cancelled.
    wholes = [one.lower() if is_id(one.lower()) else (await store.history.get(one)).id for one in given]
    ids = list(dict.fromkeys(wholes))
    asking = (store.transitions.cancel(id_, actor=whoami(), reason=reason) for id_ in ids)
    answers = dict(zip(ids, await asyncio.gather(*asking, return_exceptions=True), strict=True))
    heard: dict[str, str] = {id_: answer for id_, answer in answers.items() if isinstance(answer, str)}
    with suppress(ForgeError):  # it is stored; workers and submitters also poll
        await tell_of_cancels(store, settings.broker, [id_ for id_, answer in heard.items() if answer != "over"])
    for answer in answers.values():  # only now: workers must hear of the cancels that worked
        if isinstance(answer, BaseException):
            raise answer
    return heard


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
    background: BackgroundOption = False,
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
