"""`forge-tools show`: everything about one execution."""

import asyncio
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer
from rich.text import Text

from forge_tools.cli import exits
from forge_tools.cli.database import with_store
from forge_tools.cli.executions import document, queue_wait_ms, styled
from forge_tools.cli.face import Face, OutputOption, face_of, one_line
from forge_tools.cli.lazy import command_app
from forge_tools.cli.moments import compact, iso, limit, took
from forge_tools.cli.tables import Column, facts, table
from forge_tools.errors import ResultTimeoutError
from forge_tools.records import Artifact, Attempt, Event, ExecutionRecord, ExecutionStatus
from forge_tools.storage import Store

POLL_SECONDS = 0.2
MAX_LINES = 40
"""Lines of output that are shown unless `--full` is given."""

_SOURCES = {"call": "asked by the call", "tool": "the tool's default", "default": "the general default"}

app = command_app()


@dataclass(frozen=True, slots=True)
class _Story:
    record: ExecutionRecord
    attempts: list[Attempt]
    events: list[Event]
    artifacts: list[Artifact]


@app.command()
def show(
    context: typer.Context,
    execution_id: Annotated[str, typer.Argument(metavar="ID", help="Its id, or a unique beginning of it.")],
    *,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it is over.")] = False,
    timeout: Annotated[float | None, typer.Option(min=0, help="Seconds to wait at most; it goes on.")] = None,
    full: Annotated[bool, typer.Option("--full", help="The whole output, however long.")] = False,
    output: OutputOption = None,
) -> None:
    """Show everything about one execution: limits and where they come from, attempts, events, result.

    With --wait the exit code says whether it succeeded.
    """

    async def read(store: Store) -> _Story:
        if wait or timeout is not None:
            await _until_over(store, execution_id, timeout)
        record = await store.history.get(execution_id)
        attempts, events = await store.history.attempts(record.id), await store.history.events(record.id)
        return _Story(record, attempts, events, await store.artifacts.of_execution(record.id))

    face = face_of(context)
    story = with_store(read)
    if face.is_json:
        face.document(_document(story))
    else:
        _print(face, story, None if full else MAX_LINES)
    if (wait or timeout is not None) and story.record.status != ExecutionStatus.SUCCEEDED:
        raise typer.Exit(exits.FAILED)


async def _until_over(store: Store, execution_id: str, timeout: float | None) -> None:
    found = (await store.history.get(execution_id)).id
    try:
        async with asyncio.timeout(timeout):
            while True:
                if await store.queue.results([found]):
                    return
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError as error:
        raise ResultTimeoutError(f"Execution {found} is not over after {timeout:g}s. It goes on.") from error


def _document(story: _Story) -> dict[str, Any]:
    return {
        **document(story.record),
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
    face.out.print(facts(_facts(record)))
    _section(face, "Parameters", [(name, _text(value)) for name, value in record.parameters.items()])
    if story.attempts:
        face.say("\nAttempts", style="bold")
        face.out.print(_attempts(story.attempts))
    if story.events:
        face.say("\nEvents", style="bold")
        face.out.print(facts((compact(event.at), _event(event)) for event in story.events))
    _section(face, "Artifacts", [(one.handle, f"{one.size:,} bytes") for one in story.artifacts])
    if record.error is not None:
        face.say("\nError", style="bold")
        face.say(record.error + (f" ({record.error_code})" if record.error_code else ""), style="red")
    if record.output is not None:
        face.say("\nOutput", style="bold")
        _print_cut(face, _text(record.output), most)


def _facts(record: ExecutionRecord) -> Iterable[tuple[str, str]]:
    wait = queue_wait_ms(record)
    yield "id", record.id
    yield "category", record.category
    yield "queue", f"{record.queue}, {record.lane} lane"
    yield "asked by", " ".join(filter(None, (record.agent_id, record.session_id))) or "-"
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
        yield name, _text(value)


def _section(face: Face, title: str, pairs: Sequence[tuple[str, str]]) -> None:
    if pairs:
        face.say(f"\n{title}", style="bold")
        face.out.print(facts(pairs))


def _attempts(attempts: Sequence[Attempt]) -> Any:
    columns = [
        Column("#", is_number=True),
        Column("status"),
        Column("started (UTC)"),
        Column("took", is_number=True),
        Column("host, process"),
        Column("error", is_flexible=True),
    ]
    return table(
        columns,
        (
            [
                str(attempt.attempt),
                styled(attempt.status),
                compact(attempt.started_at),
                took(attempt.duration_ms),
                f"{attempt.hostname or '-'} {attempt.pid or ''}",
                attempt.error or "",
            ]
            for attempt in attempts
        ),
    )


def _event(event: Event) -> str:
    detail = ", ".join(f"{name}: {_text(value)}" for name, value in event.detail.items() if value not in ("", None))
    return f"{event.kind} by {event.actor}" + (f" ({detail})" if detail else "")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _print_cut(face: Face, text: str, most: int | None) -> None:
    lines = text.splitlines()
    face.raw("\n".join(lines[:most]))
    if most is not None and len(lines) > most:
        face.note(f"... {len(lines) - most} more lines; --full shows them")
