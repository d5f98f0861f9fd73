"""`forge-tools run`: one tool call, on a worker or in this process."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from forge_tools.cli import exits
from forge_tools.cli.face import Face, OutputOption, face_of
from forge_tools.cli.interrupts import cancellable, stoppable
from forge_tools.cli.lazy import command_app
from forge_tools.cli.live import view_of
from forge_tools.cli.local import find_spec, local_executor, local_tools
from forge_tools.cli.moments import took
from forge_tools.cli.parameters import parse_parameters
from forge_tools.cli.progress import awaited
from forge_tools.client import ExecutorClient, Handle
from forge_tools.config import Settings
from forge_tools.records import ExecutionContext, IdempotencyKey, RetryPolicy, ToolResult, ToolSpec
from forge_tools.storage import open_store

app = command_app()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """The call as the command line has it, before values have types."""

    name: str
    words: tuple[str, ...]
    whole: str | None
    context: ExecutionContext
    queue: str | None
    retry: RetryPolicy | None
    key: IdempotencyKey | None
    is_background: bool
    is_live: bool | None
    references: tuple[str, ...]


@app.command()
def run(  # noqa: PLR0913 one option each
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The tool, or an alias of it.")],
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Parameters. key:=JSON for any value, key=@FILE for a file's text."),
    ] = None,
    *,
    json: Annotated[
        str | None, typer.Option("--json", metavar="JSON|@FILE", help="All parameters as one object.")
    ] = None,
    timeout: Annotated[float | None, typer.Option(metavar="SECONDS", help="Stop the tool after that time.")] = None,
    background: Annotated[bool, typer.Option("--background", help="Print the id and return.")] = False,
    queue: Annotated[str | None, typer.Option(help="Where to wait; `background` is for long work.")] = None,
    retry: Annotated[
        int,
        typer.Option(
            min=0, max=99, metavar="N", help="After a failure try again, N times at most, if that is harmless."
        ),
    ] = 0,
    retry_delay: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="Wait before the first of them; each next wait doubles.")
    ] = 1.0,
    idempotency_key: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="The same call under the same key is run once; repeats get its result."),
    ] = None,
    idempotency_scope: Annotated[
        str | None, typer.Option(metavar="NAME", help="Where the key holds, instead of for one agent.")
    ] = None,
    idempotency_ttl: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="How long the key holds after the end, instead of a day.")
    ] = None,
    live: Annotated[
        bool | None,
        typer.Option(help="Show progress and output while it runs, on the error stream; by default on a terminal."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what it would do.")] = False,
    local: Annotated[bool, typer.Option("--local", help="In this process: no stack, no record.")] = False,
    tools: Annotated[
        list[str] | None, typer.Option("--tools", metavar="MODULE:ATTRIBUTE", help="With --local: load these too.")
    ] = None,
    working_dir: Annotated[str | None, typer.Option(metavar="DIR", help="Folder of the call in the workspace.")] = None,
    workspace: Annotated[
        str | None, typer.Option(metavar="NAME", help="The workspace, where several are known.")
    ] = None,
    agent: Annotated[str | None, typer.Option(help="Who asks, for the history.")] = None,
    session: Annotated[str | None, typer.Option(help="On behalf of which session.")] = None,
    output: OutputOption = None,
) -> None:
    """Run a tool and print its result. Ctrl-C cancels the call, unless it has an idempotency key.

    Exit code 1 says that the tool failed; its error is on the error stream.
    """
    settings = Settings.load()
    if local and (background or queue):
        raise typer.BadParameter("a call in this process has no queue; leave out --background and --queue.")
    if local and retry:
        raise typer.BadParameter("only workers retry; leave out --retry, or --local.")
    if idempotency_key is None and (idempotency_scope is not None or idempotency_ttl is not None):
        raise typer.BadParameter(
            "--idempotency-scope and --idempotency-ttl say more of an --idempotency-key; give one."
        )
    if local and idempotency_key is not None:
        raise typer.BadParameter("a call in this process is not recorded; leave out --idempotency-key, or --local.")
    limits = {} if timeout is None else {"timeout": timeout}
    request = _Request(
        name=name,
        words=tuple(words or ()),
        whole=json,
        context=ExecutionContext(
            working_dir=working_dir or ("." if workspace else _workspace(settings, is_local=local)),
            workspace=workspace,
            agent_id=agent,
            session_id=session,
            dry_run=dry_run,
            **limits,  # set only where asked for: an unset timeout lets the tool's own default decide
        ),
        queue=queue or ("background" if background else None),
        retry=RetryPolicy(retry + 1, retry_delay, backoff=2.0) if retry else None,
        key=None if idempotency_key is None else IdempotencyKey(idempotency_key, idempotency_scope, idempotency_ttl),
        is_background=background,
        is_live=live,
        references=tuple(tools or ()),
    )
    face = face_of(context)
    if local:
        report(face, _run_here(face, request, settings))
        return
    result = cancellable(_run_on_worker(face, request, settings))
    if result is not None:
        report(face, result)


def report(face: Face, result: ToolResult) -> None:
    """Print a result: the output as it is, the error on the error stream, the facts beside them.

    Raises:
        typer.Exit: with 1 where the call failed.
    """
    if face.is_json:
        face.document({"id": result.metadata.get("execution_id"), **result.to_dict()})
    elif result.success:
        face.raw(result.to_text())
        if face.err.is_terminal:
            face.note(f"{took(result.duration_ms)}  {result.metadata.get('execution_id', 'in this process')}")
    else:
        _print_failure(face, result)
    if not result.success:
        raise typer.Exit(exits.FAILED)


def _print_failure(face: Face, result: ToolResult) -> None:
    if result.output is not None:  # what it had put out before it failed
        face.raw(ToolResult.ok(result.output).to_text())
    errors = result.metadata.get("errors") or [result.error]
    for error in errors:
        face.note(f"Error: {error}", style="red")
    if "available" in result.metadata:
        face.note(f"There are: {result.metadata['available']}")
    if "not_retried" in result.metadata:
        face.note(f"Not retried: {result.metadata['not_retried']}", style="yellow")
    code = f"{result.error_code}  " if result.error_code else ""
    face.note(f"{code}{took(result.duration_ms)}  {result.metadata.get('execution_id', 'in this process')}")


def _workspace(settings: Settings, *, is_local: bool) -> str:
    """On one machine the folder we are in; elsewhere a worker's own, since ours says nothing there."""
    return str(settings.workspace.absolute()) if is_local or settings.is_embedded else "."


def _run_here(face: Face, request: _Request, settings: Settings) -> ToolResult:
    tools = local_tools(request.references)
    spec = find_spec([tool.spec for tool in tools], request.name)
    parameters = parameters_of(request.words, request.whole, spec)
    timeout = spec.timeout_for(request.context, settings.max_timeout)[0] if spec else request.context.timeout
    executor = local_executor(tools, settings)
    if not (face.err.is_terminal if request.is_live is None else request.is_live):
        return stoppable(executor.call(request.name, parameters, request.context), timeout)
    with view_of(face, keeps_output=face.is_json or not face.out.is_terminal) as view:
        return stoppable(executor.call(request.name, parameters, request.context, on_report=view.hear), timeout)


async def _run_on_worker(face: Face, request: _Request, settings: Settings) -> ToolResult | None:
    async with ExecutorClient(settings) as client:
        parameters = parameters_of(request.words, request.whole, find_spec(await _catalogue(settings), request.name))
        handle = await client.submit(
            request.name,
            request.context,
            parameters,
            queue=request.queue,
            retry=request.retry,
            idempotency_key=request.key,
        )
        if handle.is_repeat:
            face.note(f"This call was made before, as {handle.id}; it is not run again.")
        if request.is_background:
            return await left_alone(face, handle)
        return await awaited(face, handle, is_detached=request.key is not None, is_live=request.is_live)


async def left_alone(face: Face, handle: Handle) -> ToolResult | None:
    """Print the id of a call that is under way; the result of one that is over."""
    record = await handle.record()
    if record.is_over:  # rejected at once, or a repeat
        return await handle.result()
    if face.is_json:
        face.document({"id": record.id, "status": record.status, "queue": record.queue})
    else:
        face.say(record.id)
        if face.err.is_terminal:
            face.note(f"Wait for it with: forge-tools show {record.id} --wait")
    return None


async def _catalogue(settings: Settings) -> list[ToolSpec]:
    async with await open_store(settings.database, connect_timeout=settings.connect_timeout) as store:
        return await store.catalogue.specs()


def parameters_of(words: Sequence[str], whole: str | None, spec: ToolSpec | None) -> dict[str, Any]:
    """The parameters on the command line; what is wrong there is a usage error."""
    try:
        return parse_parameters(words, whole, spec)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="KEY=VALUE") from None
