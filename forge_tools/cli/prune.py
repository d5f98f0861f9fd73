"""`forge-tools prune`: deletes old history, gently."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.progress import SpinnerColumn, TextColumn
from typer import Option

from forge_tools.cli.audit import seal_all, signing_key
from forge_tools.cli.face import App, Face
from forge_tools.cli.live import moving_line
from forge_tools.cli.selection import Chosen, filtered, moment
from forge_tools.cli.services import whoami, with_store
from forge_tools.cli.text import counted
from forge_tools.config import Settings
from forge_tools.model.audit import Pruned, Pruning
from forge_tools.model.execution import TERMINAL, ExecutionStatus, new_id
from forge_tools.storage import Store
from forge_tools.storage.retention import AT_ONCE, PruneRun

app = App()


def _past(text: str) -> datetime:
    at = moment(text)
    if at > datetime.now(UTC):
        raise typer.BadParameter(f"{text} is in the future.")
    return at


@app.command()
@filtered("tool", "category", "status")
def prune(
    face: Face,
    *,
    older_than: Annotated[
        str,
        Option(
            metavar="TIME", help="What ended at least so long ago (90d, 12h), or before an ISO date.", callback=_past
        ),
    ],
    chosen: Chosen,
    keep_failed: Annotated[bool, Option("--keep-failed", help="Delete only successful executions.")] = False,
    dry_run: Annotated[bool, Option("--dry-run", help="Only count; delete nothing.")] = False,
    batch: Annotated[
        int | None,
        Option(
            min=1,
            max=5000,
            help=f"Executions per transaction; else {AT_ONCE['sqlite']} on SQLite and {AT_ONCE['postgresql']} on PostgreSQL.",
        ),
    ] = None,
) -> None:
    """Delete ended executions with their attempts, events, reports and artifacts, a few at a time beside live traffic.

    Waiting and running executions are never touched. The command may be stopped and run again. If history is sealed,
    checkpoints in the audit chain record what was deleted.
    """
    settings = Settings.load()
    kept = tuple(sorted(TERMINAL - {ExecutionStatus.SUCCEEDED})) if keep_failed else ()
    before: Any = older_than  # its callback has parsed it
    what = Pruning(ended_before=before, keep=kept, **chosen)
    said = {"before": before, "is_dry_run": dry_run}
    if dry_run:
        count = with_store(lambda store: store.retention.count(what), settings)
        face.tell({"executions": count, **said}, f"{counted(count, 'execution')} would be deleted.")
        return
    run = PruneRun(new_id(), whoami(), signing_key(settings))
    with moving_line(face, SpinnerColumn(), TextColumn("{task.fields[count]:,} executions deleted"), count=0) as told:
        gone = with_store(lambda store: _prune(store, what, run, batch, told), settings)
    counts = {name: getattr(gone, name) for name in ("executions", "attempts", "events")}
    executions, attempts, events = (counted(count, name.removesuffix("s")) for name, count in counts.items())
    face.tell(counts | said | {"run": run.id}, f"{executions}, {attempts} and {events} deleted. Run {run.id}.")


async def _prune(store: Store, what: Pruning, run: PruneRun, most: int | None, told: Callable[..., object]) -> Pruned:
    head = await store.audit.head()
    # Without its key, a signed chain would get batches without a signature, which verify reports.
    if head is not None and (run.signer is not None or head.key_id is None):
        await seal_all(store, run.signer)  # so that a checkpoint proves the deleted rows, if any
    total = Pruned()
    async for gone in store.retention.sweep(what, run, most=most):
        total = Pruned(
            total.executions + gone.executions, total.attempts + gone.attempts, total.events + gone.events, gone.last
        )
        told(count=total.executions)
    return total
