"""`forge-tools show` and `logs`: everything about one execution, and what it printed, logged and emitted."""

import logging
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.text import Text
from typer import Option

import forge_tools
from forge_tools.artifacts.reader import PartReader
from forge_tools.cli.face import FAILED, App, Face
from forge_tools.cli.history import document, explained, styled
from forge_tools.cli.live import Lines, awaited, cancellable, measured, pictures_of
from forge_tools.cli.selection import IdArgument
from forge_tools.cli.services import with_store
from forge_tools.cli.text import as_text, compact, facts, from_here, limit, one_line, printable, took
from forge_tools.cli.tools import known_format
from forge_tools.config import Settings
from forge_tools.errors import ToolNotFoundError
from forge_tools.model.artifacts import Artifact
from forge_tools.model.calls import ToolResult
from forge_tools.model.content import CONTENT, Media, parts_of
from forge_tools.model.diagnosis import Diagnosis
from forge_tools.model.execution import ExecutionStatus
from forge_tools.model.history import Attempt, CallEvent, Event, ExecutionRecord, Position
from forge_tools.model.scope import Output, Progress
from forge_tools.model.tools import ToolSpec
from forge_tools.schema.providers import render
from forge_tools.storage import Store

MAX_LINES = 40
"""How many lines of output are shown without `--full`."""

LEVELS = ("debug", "info", "warning", "error", "critical")

_SOURCES = {"call": "set by the call", "tool": "the tool's default", "default": "the general default"}

_SAID = frozenset({"agent_id", "session_id", "working_dir", "timeout"})
"""Members of the context that are shown among the facts at the top."""

_LOG_COLOURS = {"stderr": "yellow", "warning": "yellow", "error": "red", "critical": "bold red", "debug": "dim"}

app = App()


@dataclass(frozen=True, slots=True)
class _Story:
    """`spec` is the definition that validated the call; `ran_as` is (version, digest) on its worker."""

    record: ExecutionRecord
    attempts: list[Attempt]
    events: list[Event]
    artifacts: list[Artifact]
    spec: ToolSpec | None
    ran_as: tuple[str, str] | None
    progress: Progress | None
    logs: list[Output]


@app.command()
def show(
    face: Face,
    execution_id: IdArgument,
    *,
    wait: Annotated[bool, Option("--wait", help="Wait until it has ended.")] = False,
    timeout: Annotated[float | None, Option(min=0, help="Seconds to wait at most; it keeps running.")] = None,
    follow: Annotated[
        bool,
        Option(
            "--follow", "-f", help="Show progress and output while it runs, on the error stream; then show it as usual."
        ),
    ] = False,
    full: Annotated[bool, Option("--full", help="Show the whole output, however long.")] = False,
    schema: Annotated[
        str | None,
        Option(
            "--schema",
            metavar="FORMAT",
            help="Print only the schema that the call was checked against.",
            callback=known_format,
        ),
    ] = None,
) -> None:
    """Show everything about one execution: limits and where they come from, parameters, context, what happened when, result.

    With --wait or --follow the exit code says whether it succeeded.
    """
    waits = wait or follow or timeout is not None
    if waits:
        cancellable(_until_over(face, execution_id, timeout, is_followed=follow))

    async def read(store: Store) -> _Story:
        story = await _read(store, execution_id)
        result = ToolResult(success=True, output=story.record.output, metadata=story.record.metadata)
        face.pictures = await pictures_of(face, result.bind(PartReader(store.artifacts.contents)))
        return story

    story = with_store(read)
    if schema is not None:
        if story.spec is None:
            said = "The catalogue does not have the definition that this call used"
            raise ToolNotFoundError(story.record.tool, said)
        face.document(render(story.spec, schema))
    elif face.is_json:
        face.document(_document(story))
    else:
        _print(face, story, None if full else MAX_LINES)
    if waits and story.record.status != ExecutionStatus.SUCCEEDED:
        raise typer.Exit(FAILED)


async def _read(store: Store, execution_id: str) -> _Story:
    record = await store.history.get(execution_id)
    return _Story(
        record=record,
        attempts=await store.history.attempts(record.id),
        events=await store.history.events(record.id),
        artifacts=await store.artifacts.of_execution(record.id),
        spec=await store.catalogue.definition(record.tool, record.tool_version, record.tool_digest),
        ran_as=await store.catalogue.hosted(record.worker_id, record.tool) if record.worker_id else None,
        progress=(await store.reports.progress_of([record.id])).get(record.id),
        # What is emitted, as by Bash, is usually in the result as well.
        logs=[one async for one in told_by(store, record.id) if one.stream != "output"],
    )


async def _until_over(face: Face, execution_id: str, timeout: float | None, *, is_followed: bool) -> None:
    async with forge_tools.ExecutorClient(Settings.load()) as client:
        handle = client.calls.attach((await client.history.get(execution_id)).id)
        await awaited(face, handle, timeout=timeout, is_detached=True, is_live=is_followed)


async def told_by(store: Store, execution_id: str) -> AsyncGenerator[Output, None]:
    position, has_more = Position(execution_id), True
    while has_more:
        batch = await store.reports.poll(position)
        for one in batch.heard:
            if isinstance(one, Output):
                yield one
        position, has_more = batch.position, batch.has_more


def _document(story: _Story) -> dict[str, Any]:
    progress = story.progress and asdict(story.progress)
    return {
        **document(story.record),
        "progress": progress and {name: value for name, value in progress.items() if name != "cursor"},
        "ran_as": story.ran_as and dict(zip(("version", "digest"), story.ran_as, strict=True)),
        "attempts": [asdict(attempt) for attempt in story.attempts],
        "events": [asdict(event) for event in story.events],
        "logs": [as_logged(one) for one in story.logs],
        "artifacts": [
            {"handle": one.handle, "size": one.size, "expires_at": one.expires_at} for one in story.artifacts
        ],
    }


def _print(face: Face, story: _Story, most: int | None) -> None:
    record = story.record
    face.out.print(Text.assemble((one_line(record.tool), "bold"), f" {record.tool_version}  ", styled(record.status)))
    told = [("progress", f"{measured(story.progress)}  {compact(story.progress.at)}")] if story.progress else []
    face.out.print(facts([*_facts(record), ("definition", _definition(story)), *told]))
    _section(face, "Parameters", [(name, as_text(value)) for name, value in record.parameters.items()])
    rest = {name: value for name, value in record.context.items() if name not in _SAID}
    told = [(name, as_text(value)) for name, value in rest.items() if value not in (None, False, {})]
    _section(face, "Context", told)
    _section(face, "Timeline (UTC)", list(timeline(record, story.attempts, story.events)))
    parts = parts_of(None, record.metadata.get(CONTENT), None)
    _section(face, "Parts", [(str(part.name), part.description) for part in parts if isinstance(part, Media)])
    _section(face, "Artifacts", [(one.handle, f"{one.size:,} bytes") for one in story.artifacts])
    _print_logs(face, story, most)
    if record.error is not None:
        face.say("\nError", style="bold")
        face.say(record.error + (f" ({record.error_code})" if record.error_code else ""), style="red")
    found = Diagnosis.read(record.diagnosis)
    if found is not None:
        face.say("\nRaised", style="bold")
        face.say(from_here(str(found)))
    if record.output is not None:
        face.say("\nOutput", style="bold")
        lines = as_text(record.output).splitlines()
        face.raw("\n".join(lines[:most]))
        if most is not None and len(lines) > most:
            face.note(f"... {len(lines) - most} more lines; --full shows them")


def _print_logs(face: Face, story: _Story, most: int | None) -> None:
    lines = Lines()
    told = [one for output in story.logs for one in lines.add(output)] + lines.rest()
    if not told:
        return
    face.say("\nLogs", style="bold")
    if most is not None and len(told) > most // 2:
        face.note(f"{len(told) - most // 2} more lines: forge-tools logs {story.record.id}")
        told = told[-(most // 2) :]
    for output, line in told:
        face.out.print(log_line(output, line), soft_wrap=True)


def as_logged(output: Output) -> dict[str, Any]:
    level = None if output.level is None else output.source
    told = {name: getattr(output, name) for name in ("attempt", "at", "stream", "left_out", "text")}
    return {**told, "level": level}


def log_line(output: Output, line: str) -> Text:
    at = f"{output.at:%H:%M:%S}.{output.at.microsecond // 1000:03d}" if output.at is not None else "-"
    attempt = f"#{output.attempt} " if output.attempt > 1 else ""
    source = (f"{output.source:<8} ", _LOG_COLOURS.get(output.source, ""))
    return Text.assemble((f"{at} {attempt}", "dim"), source, printable(line))


def _section(face: Face, title: str, pairs: Sequence[tuple[str, str | Text]]) -> None:
    if pairs:
        face.say(f"\n{title}", style="bold")
        face.out.print(facts(pairs))


def _facts(record: ExecutionRecord) -> Iterable[tuple[str, str]]:
    wait = record.queue_wait_ms
    yield "id", record.id
    yield "category", record.category
    yield "queue", f"{record.queue}, {record.lane} lane"
    yield "asked by", " ".join(filter(None, (record.agent_id, record.session_id))) or "-"
    if record.idempotency_key is not None:
        yield "idempotency key", record.idempotency_key
    if record.replay_of is not None:
        yield "replay of", record.replay_of
    yield "working dir", str(record.context.get("working_dir", "-"))
    if record.status != ExecutionStatus.REJECTED:
        yield "timeout", f"{limit(record.timeout)}, {_SOURCES.get(record.timeout_source, record.timeout_source)}"
        yield "time limits", f"soft {limit(record.soft_time_limit)}, hard {limit(record.time_limit)}"
        yield "attempts", f"{record.attempt} of {record.max_attempts}"
    yield "queued", compact(record.queued_at)
    yield "started", compact(record.started_at) + (f"  after {took(wait)} in the queue" if wait is not None else "")
    yield "completed", compact(record.completed_at)
    yield "took", took(record.duration_ms)
    yield "worker", f"{record.hostname} {record.worker_id}" if record.worker_id else "-"
    for name, value in record.metadata.items():
        if name != CONTENT:
            yield name, as_text(value)


def _definition(story: _Story) -> str:
    accepted = (story.record.tool_version, story.record.tool_digest)
    if story.spec is None:
        return "not in the catalogue"
    said = [f"{version} ({digest})" for version, digest in (accepted, story.ran_as or accepted)]
    return said[0] if said[0] == said[1] else f"{said[0]}, run as {said[1]} by its worker"


def timeline(
    record: ExecutionRecord, attempts: Sequence[Attempt], events: Iterable[Event]
) -> Iterator[tuple[str, Text]]:
    """Yield one line for each moment; at the same time, events come before ends of attempts."""
    moments: list[tuple[datetime, Text]] = [(record.queued_at, Text("queued"))]
    moments += [(event.at, Text(_event_said(event))) for event in events]
    moments += [moment for attempt in attempts for moment in _of_attempt(attempt)]
    if record.started_at is not None and record.completed_at is None:
        moments.append((record.started_at, Text(f"attempt {record.attempt} started on {record.hostname}")))
    for at, said in sorted(moments, key=lambda one: one[0]):  # stable: the order above holds within a moment
        yield compact(at), said


def _event_said(event: Event) -> str:
    detail = ", ".join(f"{name}: {as_text(value)}" for name, value in event.detail.items() if value not in ("", None))
    return one_line(f"{event.kind} by {event.actor}" + (f" ({detail})" if detail else ""))


def _of_attempt(attempt: Attempt) -> Iterator[tuple[datetime, Text]]:
    what = f"attempt {attempt.attempt} " if attempt.started_at is not None else ""
    if attempt.started_at is not None:
        where = f"{attempt.hostname or '-'}, process {attempt.pid or '-'}"
        yield attempt.started_at, Text(one_line(f"{what}started on {where}"))
    ended = Text.assemble(what, styled(attempt.status))
    if attempt.duration_ms is not None:
        ended.append(f" after {took(attempt.duration_ms)}")
    if attempt.error_code:
        ended.append(f", {one_line(attempt.error_code)}")
    if attempt.error:
        ended.append(f": {one_line(explained(attempt))}")
    yield attempt.completed_at, ended


def _level(name: str | None) -> str | None:
    if name is not None and name.lower() not in LEVELS:
        raise typer.BadParameter(f"{name} is not a level; there are {', '.join(LEVELS)}.")
    return name


@app.command()
def logs(
    face: Face,
    execution_id: IdArgument,
    *,
    follow: Annotated[bool, Option("--follow", "-f", help="Continue until it has ended.")] = False,
    level: Annotated[
        str | None,
        Option(metavar="LEVEL", callback=_level, help="Only log records of this level or above, such as warning."),
    ] = None,
) -> None:
    """Print what a call has printed (stdout, stderr), logged and emitted so far, of all its attempts and in order.

    JSON has one object per part, which may have several lines.
    """
    least = None if level is None else logging.getLevelNamesMapping()[level.upper()]

    async def read(outputs: AsyncGenerator[CallEvent, None]) -> int:
        count, lines = 0, Lines()
        async with aclosing(outputs):
            async for output in outputs:
                # What was printed or emitted has no level.
                if isinstance(output, Output) and (least is None or (output.level or -1) >= least):
                    count += 1
                    _print_lines(face, output, lines)
        for told, line in lines.rest():
            face.out.print(log_line(told, line), soft_wrap=True)
        return count

    async def so_far(store: Store) -> int:
        return await read(told_by(store, (await store.history.get(execution_id)).id))

    async def to_the_end() -> int:
        async with forge_tools.ExecutorClient(Settings.load()) as client:
            return await read(client.calls.attach((await client.history.get(execution_id)).id).events())

    if not (cancellable(to_the_end()) if follow else with_store(so_far)) and not face.is_json:
        face.note("It has logged nothing at this level." if level else "It has printed, logged and emitted nothing.")


def _print_lines(face: Face, output: Output, lines: Lines) -> None:
    if face.is_json:
        face.line(as_logged(output))
        return
    for told, line in lines.add(output):
        face.out.print(log_line(told, line), soft_wrap=True)
