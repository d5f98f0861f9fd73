"""`forge-tools run`: one tool call, on a worker or in this process."""

import shlex
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

import forge_tools
from forge_tools.cli.face import FAILED, App, BackgroundOption, Face, LocalToolsOption, naming
from forge_tools.cli.live import View, awaited, cancellable, pictures_of
from forge_tools.cli.parameters import GivenParameters, completed_parameters, completed_tools, find_spec
from forge_tools.cli.services import require_stack
from forge_tools.cli.text import from_here, took
from forge_tools.config import Settings
from forge_tools.errors import ErrorCode
from forge_tools.model.calls import ExecutionContext, RetryPolicy, ToolResult
from forge_tools.model.execution import IdempotencyKey

if TYPE_CHECKING:
    from forge_tools.client import Handle

app = App()


@dataclass(frozen=True, slots=True)
class _Call:
    name: str
    parameters: GivenParameters
    context: ExecutionContext
    is_live: bool | None
    save: Path | None


@app.command()
def run(  # noqa: PLR0913 one option each
    face: Face,
    name: Annotated[str, Argument(help="The tool, by name or alias.", autocompletion=completed_tools)],
    words: Annotated[
        list[str] | None,
        Argument(
            metavar="KEY=VALUE",
            help="Parameters. key:=JSON for any value, key=@FILE for a file's text.",
            autocompletion=completed_parameters,
        ),
    ] = None,
    *,
    json: Annotated[str | None, Option("--json", metavar="JSON|@FILE", help="All parameters as one object.")] = None,
    timeout: Annotated[float | None, Option(metavar="SECONDS", help="Stop the tool after this time.")] = None,
    background: BackgroundOption = False,
    queue: Annotated[str | None, Option(help="The queue; `background` is for long work.")] = None,
    retry: Annotated[
        int, Option(min=0, max=99, metavar="N", help="Retry after a failure, N times at most, if that is safe.")
    ] = 0,
    retry_delay: Annotated[
        float, Option(min=0, metavar="SECONDS", help="Wait before the first retry; each further wait doubles.")
    ] = 1.0,
    idempotency_key: Annotated[
        str | None, Option(metavar="KEY", help="Run the same call with the same key only once; repeats get its result.")
    ] = None,
    idempotency_scope: Annotated[
        str | None, Option(metavar="NAME", help="The scope of the key, instead of one agent.")
    ] = None,
    idempotency_ttl: Annotated[
        float | None,
        Option(metavar="SECONDS", help="How long the key is remembered after the call ended, instead of a day."),
    ] = None,
    live: Annotated[
        bool | None,
        Option(help="Show progress and output while it runs, on the error stream; by default on a terminal."),
    ] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Only describe what it would do.")] = False,
    local: Annotated[bool, Option("--local", help="Run it in this process: no stack, no record.")] = False,
    tools: LocalToolsOption = None,
    working_dir: Annotated[
        str | None, Option(metavar="DIR", help="Working directory of the call, in the workspace.")
    ] = None,
    workspace: Annotated[str | None, Option(metavar="NAME", help="The workspace, if there are several.")] = None,
    agent: Annotated[str | None, Option(help="The agent that makes the call, for the history.")] = None,
    session: Annotated[str | None, Option(help="The session that the call belongs to.")] = None,
    save: Annotated[
        Path | None, Option("--save", metavar="DIR", help="Write images and files of the result into this folder.")
    ] = None,
) -> None:
    """Run a tool and print its result. Ctrl-C cancels the call, unless it has an idempotency key.

    Exit code 1 means that the tool failed; its error is on the error stream.
    """
    settings = Settings.load()
    says_more = (idempotency_scope, idempotency_ttl) != (None, None)
    key = IdempotencyKey(idempotency_key, idempotency_scope, idempotency_ttl) if idempotency_key is not None else None
    for is_wrong, said in (
        (local and (background or queue), "a call in this process has no queue; leave out --background and --queue."),
        (local and retry, "only workers retry; leave out --retry, or --local."),
        (key is None and says_more, "--idempotency-scope and --idempotency-ttl need an --idempotency-key."),
        (background and save, "a call that is not waited for has nothing to save; leave out --background, or --save."),
        (local and key, "a call in this process is not recorded; leave out --idempotency-key, or --local."),
    ):
        if is_wrong:
            raise typer.BadParameter(said)
    asked = ExecutionContext(
        working_dir=working_dir or ("." if workspace else settings.working_dir(is_local=local)),
        workspace=workspace,
        agent_id=agent,
        session_id=session,
        dry_run=dry_run,
        **({} if timeout is None else {"timeout": timeout}),  # if unset, the tool's own default applies
    )
    if not local:
        require_stack(face, settings, is_left=background)
    call = _Call(name, GivenParameters(words, json, settings.max_parameter_bytes), asked, live, save)
    if local:
        if face.is_json:
            face.claim_output()
        own = [word for reference in tools or () for word in ("--tools", reference)]
        report(face, [name, "--local", *own], _run_here(face, call, settings, tools or []))
        return
    options = {
        "queue": queue or ("background" if background else None),
        "retry": RetryPolicy(retry + 1, retry_delay, backoff=2.0) if retry else None,
        "idempotency_key": key,
    }
    report(face, [name], cancellable(_run_on_worker(face, call, settings, options, is_left=background)))


async def saved(face: Face, result: ToolResult, folder: Path | None) -> ToolResult:
    """Write the parts of a result into a folder, if given, and report the paths; keep what this terminal can show."""
    face.pictures = await pictures_of(face, result)
    if folder is None:
        return result
    for part in (*result.images, *result.files):
        with naming(folder):
            path = await part.save(folder)
        face.note(f"{part.line} saved as {path}")
    return result


def report(face: Face, tool: Sequence[str], result: ToolResult | None) -> None:
    """Print a result, if there is one: the output unchanged, an error and the facts on the error stream.

    `forge-tools tools` shows the tool if it gets the words `tool`.
    """
    if result is None:
        return
    facts = f"{took(result.duration_ms)}  {result.metadata.get('execution_id', 'in this process')}"
    if face.is_json:
        why = result.diagnosis and result.diagnosis.as_dict()
        face.document({"id": result.metadata.get("execution_id"), **result.to_dict(), "diagnosis": why})
    elif result.success:
        face.raw(result.to_text())
        if face.err.is_terminal:
            face.note(facts)
    else:
        _print_failure(face, tool, result)
        face.note(f"{result.error_code}  {facts}" if result.error_code else facts)
    if not result.success:
        raise typer.Exit(FAILED)


def _print_failure(face: Face, tool: Sequence[str], result: ToolResult) -> None:
    if result.output is not None:  # its output before it failed
        face.raw(ToolResult.ok(result.output).to_text())
    errors = result.metadata.get("errors") or [result.error]
    for error in errors:
        face.note(f"Error: {error}", style="red")
    if hint := str(result.metadata.get("hint") or ""):
        face.note(hint[:1].upper() + hint[1:], style="yellow")
    if result.error_code == ErrorCode.EXECUTION_ERROR and result.diagnosis is not None:
        face.note(from_here(result.diagnosis.summary))
    if "available" in result.metadata:
        face.note(f"There are: {result.metadata['available']}. forge-tools tools lists all of them.")
    if result.error_code == ErrorCode.VALIDATION_ERROR and "did you mean" not in str(errors):
        face.note(f"What it takes: {shlex.join(['forge-tools', 'tools', *tool])}")
    if "not_retried" in result.metadata:
        face.note(f"Not retried: {result.metadata['not_retried']}", style="yellow")


def _run_here(face: Face, call: _Call, settings: Settings, references: list[str]) -> ToolResult:
    here = import_module("forge_tools.cli.local")  # late: it loads tools, which calls on workers do not need
    tools = here.local_tools(settings, references)
    spec = find_spec([tool.spec for tool in tools], call.name)
    executor = here.local_executor(tools, settings)

    is_live = face.err.is_terminal if call.is_live is None else call.is_live
    view = View(face, keeps_output=face.is_json or not face.out.is_terminal) if is_live else None

    async def body() -> ToolResult:
        parameters, hear = call.parameters.typed(spec), view.hear if view else None
        result = await executor.call(call.name, parameters, call.context, on_report=hear)
        return await saved(face, result, call.save)

    asked = spec.timeout_for(call.context)[0] if spec else call.context.timeout
    timeout = min(settings.max_timeout, max(0.0, asked))  # NaN becomes 0 here; the executor refuses it
    with view or nullcontext():
        result: ToolResult = here.stoppable(body(), timeout)
        return result


async def _run_on_worker(
    face: Face, call: _Call, settings: Settings, options: dict[str, Any], *, is_left: bool
) -> ToolResult | None:
    async with forge_tools.ExecutorClient(settings) as client:
        parameters = call.parameters.typed(find_spec(client.specs(), call.name))
        handle = await client.submit(call.name, parameters, call.context, **options)
        if handle.is_repeat:
            face.note(f"This call was made before, as {handle.id}; it is not run again.")
        if is_left:
            return await left_alone(face, handle)
        is_detached = options["idempotency_key"] is not None  # others may wait for the same call
        result = await awaited(face, handle, is_detached=is_detached, is_live=call.is_live)
        return await saved(face, result, call.save)


async def left_alone(face: Face, handle: "Handle") -> ToolResult | None:
    """Print the id of a call in progress; return the result of one that is over."""
    record = await handle.record()
    if record.is_over:  # rejected at once, or a repeat
        return await handle.result()
    face.tell({"id": record.id, "status": record.status, "queue": record.queue}, record.id)
    if face.err.is_terminal and not face.is_json:
        face.note(f"Wait for it with: forge-tools show {record.id} --wait")
    return None
