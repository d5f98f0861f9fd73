"""`forge-tools cancel`: end an execution, waiting or running."""

from contextlib import suppress
from typing import Annotated

from typer import Option

from forge_tools.cli.database import whoami, with_store
from forge_tools.cli.face import App, Face
from forge_tools.cli.ids import IdArgument
from forge_tools.client.calls import tell_of_cancel
from forge_tools.config import Settings
from forge_tools.errors import ForgeError
from forge_tools.model import is_id
from forge_tools.storage import Store

app = App()

_SAID = {
    "cancelled": "Cancelled {id}; it was not running.",
    "requested": "Asked the worker to stop {id}; it does so within a heartbeat at the latest, unless the tool ends first.",
    "over": "{id} is over already; nothing to cancel.",
}


@app.command()
def cancel(
    face: Face,
    execution_id: IdArgument,
    reason: Annotated[str, Option(help="Why; kept with the execution.")] = "",
) -> None:
    """Cancel an execution. One that waits never starts; one that runs is stopped, its processes too."""

    settings = Settings.load()

    async def ask(store: Store) -> tuple[str, str]:
        whole = execution_id.lower()  # which need not be read: somebody else may have written it
        id_ = whole if is_id(whole) else (await store.history.get(execution_id)).id
        answer = await store.transitions.cancel(id_, actor=whoami(), reason=reason)
        if answer != "over":
            with suppress(ForgeError):  # it is stored; workers and submitters look by themselves, too
                await tell_of_cancel(store, settings.broker, id_)
        return id_, answer

    found, answer = with_store(ask, settings)
    face.tell({"id": found, "outcome": answer}, _SAID[answer].format(id=found))
