"""`forge-tools show`: everything about one execution."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer
from rich.text import Text

from forge_tools.cli import exits
from forge_tools.cli.database import with_store
from forge_tools.cli.definition import Definition, definition_of
from forge_tools.cli.executions import document, queue_wait_ms, styled
from forge_tools.cli.face import Face, OutputOption, face_of, one_line
from forge_tools.cli.following import until_over
from forge_tools.cli.lazy import command_app
from forge_tools.cli.live import measured
from forge_tools.cli.moments import compact, iso, limit, took
from forge_tools.cli.tables import facts
from forge_tools.cli.timeline import as_text, timeline
from forge_tools.cli.versions import check_format
from forge_tools.records import Artifact, Attempt, Event, ExecutionRecord, ExecutionStatus, Progress
from forge_tools.schemas import render
from forge_tools.storage import Store

MAX_LINES = 40
"""Lines of output that are shown unless `--full` is given."""

_SOURCES = {"call": "asked by the call", "tool": "the tool's default", "default": "the general default"}

_SAID = frozenset({"agent_id", "session_id", "working_dir", "timeout"})
"""What the facts at the top have of the context."""

app = command_app()


@dataclass(frozen=True, slots=True)
class _Story:
    record: ExecutionRecord
    attempts: list[Attempt]
    events: list[Event]
    artifacts: list[Artifact]
    definition: Definition
    progress: Progress | None


@app.command()
def show(
    context: typer.Context,
    execution_id: Annotated[str, typer.Argument(metavar="ID", help="Its id, or a unique beginning of it.")],
    *,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it is over.")] = False,
    timeout: Annotated[float | None, typer.Option(min=0, help="Seconds to wait at most; it goes on.")] = None,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow", "-f", help="Show progress and output while it runs, on the error stream; then as ever."
        ),
    ] = False,
    full: Annotated[bool, typer.Option("--full", help="The whole output, however long.")] = False,
    schema: Annotated[
        str | None,
        typer.Option("--schema", metavar="FORMAT", help="Print only the schema that the call was checked by."),
    ] = None,
    output: OutputOption = None,
) -> None:
    """Show everything about one execution: limits and where they come from, parameters, context, what happened when, result.

    With --wait or --follow the exit code says whether it succeeded.
    """
    face, waits = face_of(context), wait or follow or timeout is not None

    async def read(store: Store) -> _Story:
        if waits:
            await until_over(store, execution_id, timeout, face=face if follow else None)
        record = await store.history.get(execution_id)
        attempts, events = await store.history.attempts(record.id), await store.history.events(record.id)
        artifacts = await store.artifacts.of_execution(record.id)
        progress = (await store.reports.progress_of([record.id])).get(record.id)
        return _Story(record, attempts, events, artifacts, await definition_of(store, record), progress)

    check_format(schema)
    story = with_store(read)
    if schema is not None:
        face.document(render(story.definition.require(story.record), schema))
    elif face.is_json:
        face.document(_document(story))
    else:
        _print(face, story, None if full else MAX_LINES)
    if waits and story.record.status != ExecutionStatus.SUCCEEDED:
        raise typer.Exit(exits.FAILED)


def _document(story: _Story) -> dict[str, Any]:
    progress = story.progress and {**asdict(story.progress), "at": iso(story.progress.at)}
    return {
        **document(story.record),
        "progress": progress and {name: value for name, value in progress.items() if name != "cursor"},
        "ran_as": story.definition.ran_as and dict(zip(("version", "digest"), story.definition.ran_as, strict=True)),
        "attempts": [_plain(asdict(attempt)) for attempt in story.attempts],
        "events": [_plain(asdict(event)) for event in story.events],
        "artifacts": [
            {"handle": one.handle, "size": one.size, "expires_at": iso(one.expires_at)} for one in story.artifacts
        ],
    }


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {name: iso(value) if hasattr(value, "isoformat") else value for name, value in values.items()}


def _print(face: Face, story: _Story, most: int | None) -> None:
    record = story.record
    face.out.print(Text.assemble((one_line(record.tool), "bold"), f" {record.tool_version}  ", styled(record.status)))
    told = [("progress", f"{measured(story.progress)}  {compact(story.progress.at)}")] if story.progress else []
    face.out.print(facts([*_facts(record), ("definition", story.definition.said(record)), *told]))
    _section(face, "Parameters", [(name, as_text(value)) for name, value in record.parameters.items()])
    _section(face, "Context", list(_context(record)))
    face.say("\nTimeline (UTC)", style="bold")
    face.out.print(facts(timeline(record, story.attempts, story.events)))
    _section(face, "Artifacts", [(one.handle, f"{one.size:,} bytes") for one in story.artifacts])
    if record.error is not None:
        face.say("\nError", style="bold")
        face.say(record.error + (f" ({record.error_code})" if record.error_code else ""), style="red")
    if record.output is not None:
        face.say("\nOutput", style="bold")
        _print_cut(face, as_text(record.output), most)


def _facts(record: ExecutionRecord) -> Iterable[tuple[str, str]]:
    wait = queue_wait_ms(record)
    yield "id", record.id
    yield "category", record.category
    yield "queue", f"{record.queue}, {record.lane} lane"
    yield "asked by", " ".join(filter(None, (record.agent_id, record.session_id))) or "-"
    if record.idempotency_key is not None:
        yield "idempotency key", one_line(record.idempotency_key)
    if record.replay_of is not None:
        yield "replay of", record.replay_of
    yield "working dir", str(record.context.get("working_dir", "-"))
    if record.status != ExecutionStatus.REJECTED:
        yield "timeout", f"{limit(record.timeout)}, {_SOURCES.get(record.timeout_source, record.timeout_source)}"
        yield "limits sent", f"soft {limit(record.soft_time_limit)}, hard {limit(record.time_limit)}"
        yield "attempts", f"{record.attempt} of {record.max_attempts}"
    yield "queued", compact(record.queued_at)
    yield "started", compact(record.started_at) + (f"  after {took(wait)} in the queue" if wait is not None else "")
    yield "completed", compact(record.completed_at)
    yield "took", took(record.duration_ms)
    yield "worker", f"{record.hostname} {record.worker_id}" if record.worker_id else "-"
    for name, value in record.metadata.items():
        yield name, as_text(value)


def _section(face: Face, title: str, pairs: Sequence[tuple[str, str]]) -> None:
    if pairs:
        face.say(f"\n{title}", style="bold")
        face.out.print(facts(pairs))


def _context(record: ExecutionRecord) -> Iterator[tuple[str, str]]:
    """What came with the call besides its parameters, as far as it is not said above."""
    for name, value in record.context.items():
        if name not in _SAID and value not in (None, False, {}):
            yield name, as_text(value)


def _print_cut(face: Face, text: str, most: int | None) -> None:
    lines = text.splitlines()
    face.raw("\n".join(lines[:most]))
    if most is not None and len(lines) > most:
        face.note(f"... {len(lines) - most} more lines; --full shows them")
