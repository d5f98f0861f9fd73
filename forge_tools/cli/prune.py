"""`forge-tools prune`: deletes old history, gently."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from forge_tools.cli import filters
from forge_tools.cli.audit import seal_all, signing_key
from forge_tools.cli.database import with_store
from forge_tools.cli.face import Face, OutputOption, face_of
from forge_tools.cli.lazy import command_app
from forge_tools.cli.moments import iso, parse_since
from forge_tools.cli.whoami import whoami
from forge_tools.config import Settings
from forge_tools.records import TERMINAL, ExecutionStatus, new_id
from forge_tools.records.audit import Pruned, Pruning
from forge_tools.storage import Store
from forge_tools.storage.audit import Signer
from forge_tools.storage.retention import PruneRun

app = command_app()


def _moment(text: str) -> datetime:
    try:
        moment = parse_since(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if moment > datetime.now(UTC):
        raise typer.BadParameter(f"{text} lies ahead; nothing has ended before it.")
    return moment


@app.command()
def prune(  # noqa: PLR0913 one option a filter
    context: typer.Context,
    *,
    older_than: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="What ended 90d, 12h ago or before, or before a date in ISO.", callback=_moment
        ),
    ],
    tool: filters.ToolOption = None,
    category: filters.CategoryOption = None,
    status: filters.StatusOption = None,
    keep_failed: Annotated[bool, typer.Option("--keep-failed", help="Only what succeeded.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count.")] = False,
    batch: Annotated[int, typer.Option(min=1, max=5000, help="Executions a transaction, at most.")] = 5000,
    output: OutputOption = None,
) -> None:
    """Delete executions that are over, with attempts, events, reports and artifacts, a few at a time beside live traffic.

    What waits or runs is never touched. It may be stopped and run again. Where history is sealed, checkpoints in the audit
    chain say what went.
    """
    settings, face = Settings.load(), face_of(context)
    kept = tuple(sorted(TERMINAL - {ExecutionStatus.SUCCEEDED})) if keep_failed else ()
    before: Any = older_than  # its callback has read it
    what = Pruning(ended_before=before, tool=tool, category=category, status=status, keep=kept)
    if dry_run:
        count = with_store(lambda store: _count(store, what), settings)
        _say(face, {"executions": count, "before": iso(before), "is_dry_run": True}, f"{count:,} executions would go.")
        return
    run = PruneRun(new_id(), whoami(), signing_key(settings))
    with _progress(face) as told:
        gone = with_store(lambda store: _prune(store, what, run, batch, told), settings)
    said = f"{gone.executions:,} executions, {gone.attempts:,} attempts and {gone.events:,} events deleted."
    counts = {name: getattr(gone, name) for name in ("executions", "attempts", "events")}
    _say(face, counts | {"before": iso(before), "is_dry_run": False, "run": run.id}, f"{said} Run {run.id}.")


async def _count(store: Store, what: Pruning) -> int:
    total, (count, after) = 0, await store.retention.count(what)
    while after is not None:
        total += count
        count, after = await store.retention.count(what, after)
    return total


async def _prune(store: Store, what: Pruning, run: PruneRun, most: int, told: Callable[[Pruned], object]) -> Pruned:
    await _seal_first(store, run.signer)
    total = Pruned()
    async for gone in store.retention.sweep(what, run, most=most):
        total = Pruned(
            total.executions + gone.executions, total.attempts + gone.attempts, total.events + gone.events, gone.last
        )
        told(total)
    return total


async def _seal_first(store: Store, signer: Signer | None) -> None:
    """What is to go should be in a batch, if there are any, so that its checkpoint proves that it was there."""
    head = await store.audit.head()
    if head is not None and (signer is not None or head.key_id is None):
        await seal_all(store, signer)


def _say(face: Face, document: dict[str, Any], text: str) -> None:
    if face.is_json:
        face.document(document)
    else:
        face.say(text)


@contextmanager
def _progress(face: Face) -> Iterator[Callable[[Pruned], object]]:
    if not face.err.is_terminal:
        yield lambda total: None
        return
    columns = (SpinnerColumn(), TextColumn("{task.fields[count]:,} executions deleted"), TimeElapsedColumn())
    with Progress(*columns, console=face.err, transient=True) as progress:
        task = progress.add_task("", total=None, count=0)
        yield lambda total: progress.update(task, count=total.executions)
