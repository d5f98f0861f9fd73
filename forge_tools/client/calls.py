"""The calls of a client: stored once each, awaited, cancelled, and run again."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from forge_tools.artifacts.reader import PartReader
from forge_tools.broker.celery_app import open_broker
from forge_tools.client.call import Awaited, Call
from forge_tools.client.catalogue import REFRESH_INTERVAL, SERVED_INTERVAL, Catalogue, unreachable
from forge_tools.client.connection import Connection
from forge_tools.client.handle import Handle, listen
from forge_tools.client.intake import KEY_SECONDS, Intake, Rejected
from forge_tools.client.links import Claims, conflict, explained, repeated
from forge_tools.client.submissions import CLOSING, Submissions
from forge_tools.config import Settings
from forge_tools.errors import ConfigurationError, ErrorCode, ForgeError, InvalidCallError
from forge_tools.model.calls import ExecutionContext, ToolResult
from forge_tools.model.content import CONTENT
from forge_tools.model.execution import ExecutionStatus, NewExecution, Outcome, Replay, new_id
from forge_tools.model.history import EventBatch, ExecutionRecord, Position
from forge_tools.model.places import HOST_PREFIX
from forge_tools.model.scope import Report
from forge_tools.schema import encode_json
from forge_tools.storage import Store, ToolChangedError
from forge_tools.storage.connection.faults import ForbiddenError
from forge_tools.storage.queue.batcher import Batcher

T = TypeVar("T")


class Calls:
    """Checks calls against the catalogue, stores them, waits for their results and cancels them."""

    def __init__(
        self, settings: Settings, connection: Connection, catalogue: Catalogue, submissions: Submissions
    ) -> None:
        self._settings = settings
        self._actor = f"client {connection.submitter}"
        self._connection = connection
        self._catalogue = catalogue
        self._submissions = submissions
        self._results = submissions.results
        self._intake = Intake(settings, connection.submitter, connection.reply_key)
        self._claims = Claims(settings)
        self.awaited = Awaited()
        self.parts = PartReader(self._contents)
        self._cancels_to_tell: Batcher[str, None] = Batcher(self._tell_of_cancels)

    async def execute(self, call: Call, *, on_report: Callable[[Report], None] | None = None) -> ToolResult:
        """Run a call and wait for its result, passing its reports to `on_report`. Failures are results.

        Cancelling this cancels the call, unless it is detached or has a key.
        """
        started, _ = time.time(), self._connection.store  # refuses other processes and loops
        is_plain = on_report is None and call.idempotency_key is None
        await self._submissions.room()
        try:
            answer = await self._store(call, self._run if is_plain else partial(self._follow, on_report))
            result = await self._refuse(answer) if isinstance(answer, Rejected) else answer
        except ForgeError as error:  # nothing was accepted
            return _failed(error)
        self.awaited.add(call, self._catalogue.snapshot.find(call.label), result, started)
        return result

    async def submit(self, call: Call) -> Handle:
        """Accept a call and return its handle at once.

        An unknown tool or invalid parameters give a handle that already has its result, recorded as `rejected`.

        Raises:
            DatabaseUnavailableError: nothing was accepted.
            SubmitOutcomeUnknownError: it may have been; the error has the id to attach to.
        """
        _ = self._connection.store  # refuses other processes and loops
        await self._submissions.room()
        return await self._submit(call)

    async def submit_many(self, calls: Sequence[Call]) -> list[Handle | ForgeError]:
        """Accept many calls at once; returns one handle, or the error that kept it out, per call and in order."""
        _ = self._connection.store
        return await asyncio.gather(*(_handle_or_error(self.submit(call)) for call in calls))

    async def replay(
        self,
        /,
        execution_id: str,
        parameters: Mapping[str, Any] | None = None,
        *,
        dry_run: bool | None = None,
        reason: str = "",
        actor: str | None = None,
        **changes: Any,
    ) -> Handle:
        """Run a past execution again, unchanged except for these parameters and `changes`, fields of `Call`.

        Both are linked to each other in SQL; `actor` is who did it. `dry_run` None leaves it as it was. A call that
        today's tool refuses gives a handle whose result says so.

        Raises:
            ExecutionNotFoundError: SQL holds no such execution, or no longer.
            InvalidCallError: it is not over yet, or a secret has to be given again.
        """
        record = await self.record(execution_id)
        call = repeated(record, self._catalogue.snapshot.find(record.tool), parameters or {}, dry_run, changes)
        link = Replay(record.id, actor or self._actor, reason, call.effective_context.dry_run)
        answer = await self._store(call, self._keep, link)
        if isinstance(answer, Rejected):
            answer = explained(answer, record, self._catalogue.snapshot.find(record.tool))
        return await self._handle(answer)

    def attach(self, execution_id: str) -> Handle:
        """Return a handle for an execution that somebody submitted, in any process."""
        return Handle(execution_id, self)

    async def wait(self, execution_id: str, *, is_known: bool = False) -> ToolResult:
        """Wait until an execution is over and return its result. `is_known`: SQL has accepted that id.

        Raises:
            ExecutionNotFoundError: SQL holds no such execution.
        """
        self._connection.require_owner()
        is_known = is_known or self._results.expects(execution_id)
        find = self._results.wait if is_known else self._look_up
        return await self._told(await find(execution_id))

    async def record(self, execution_id: str) -> ExecutionRecord:
        """Read one execution, by id or a unique prefix of it."""
        return await self._connection.store.history.get(execution_id)

    async def poll(self, position: Position) -> EventBatch:
        """Read an execution's state and what it has reported after a position; `Handle.events` does so repeatedly."""
        return await self._connection.store.reports.poll(position)

    async def cancel(self, execution_id: str, reason: str = "") -> Literal["cancelled", "requested", "over"]:
        """Cancel an execution. The request is stored in SQL; the worker is notified, and sees it within a heartbeat at the latest."""
        answer = await self._connection.store.transitions.cancel(execution_id, actor=self._actor, reason=reason)
        if answer != "requested":  # it is over, and no worker notifies of that
            self._results.ended([execution_id])
        if answer != "over":
            self._connection.begin(self._cancels_to_tell.add(execution_id))
        return answer

    async def cancel_many(
        self, /, reason: str = "", **filters: Any
    ) -> dict[str, Literal["cancelled", "requested", "over"]]:
        """Cancel all executions that the filters of `history.list` match and that are not over; returns the answer of each.

        Raises:
            ValueError: there is no filter, or one that can match nothing.
        """
        if not filters:
            raise ValueError(
                "Give a filter, such as session_id, tool or queue: without one, every call would be cancelled."
            )
        ids = await self._connection.store.history.unfinished(**filters)
        return dict(zip(ids, await asyncio.gather(*(self.cancel(id_, reason) for id_ in ids)), strict=True))

    async def bind_session(self, session_id: str, workspace: str | None) -> None:
        """Make a session's calls that name no workspace use this one; None ends that. Others see it in seconds.

        Raises:
            InvalidCallError: no worker ever had that workspace; the message names those there are.
        """
        if workspace is not None:
            await self._catalogue.refresh()
            self._catalogue.snapshot.queue_of(workspace)
        await self._connection.store.workspaces.bind_session(session_id, workspace)
        await self._catalogue.refresh()

    async def upload(self, path: str | Path, *, session_id: str | None = None) -> str:
        """Keep a file of this host as an artifact; returns the handle that parameters of type `file` take.

        Tools see only the artifacts of their call's session: `session_id` names it. The handle lasts for
        FORGE_ARTIFACT_TTL.

        Raises:
            InvalidCallError: the file is larger than FORGE_MAX_PART_SIZE, or was changed meanwhile; or the rights of this
                client's role are out of date.
            OSError: it cannot be read.
        """
        settings, artifacts = self._settings, self._connection.store.artifacts
        quota = settings.artifact_quota
        bounds = {"quota": quota, "limit": min(settings.max_part_size, quota)}
        try:
            kept = await artifacts.upload(Path(path), ttl=settings.artifact_ttl, session_id=session_id, **bounds)
        except ForbiddenError as error:
            said = f"This client's role in the database may not store {path}"
            raise InvalidCallError(
                f"{said}. Have the owner of the tables run deploy/postgres/roles.sql of this version, or a tool write the file"
            ) from error
        return kept.handle

    async def _submit(self, call: Call, replay: Replay | None = None) -> Handle:
        return await self._handle(await self._store(call, self._keep, replay))

    def _contents(self, uri: str) -> AsyncIterator[bytes]:
        return self._connection.store.artifacts.contents(uri)

    async def _handle(self, answer: Handle | Rejected) -> Handle:
        return Handle(answer.new.id, self, await self._refuse(answer)) if isinstance(answer, Rejected) else answer

    async def _refuse(self, rejected: Rejected) -> ToolResult:
        new, result, limit = rejected.new, rejected.result, self._settings.max_parameter_bytes
        details = result.error_details
        outcome = Outcome(
            id=new.id,
            attempt=0,
            token=new_id(),
            status=ExecutionStatus.REJECTED,
            error=result.error,
            error_code=result.error_code,
            error_details=None if details is None else encode_json(details, "error_details", limit),
            metadata=encode_json(result.metadata, "metadata", limit),
        )
        await self._connection.store.queue.record(new, outcome)
        return result.model_copy(update={"metadata": {**result.metadata, "execution_id": new.id}})

    async def _store(
        self,
        call: Call,
        keep: Callable[[Call, NewExecution], Awaitable[T]],
        replay: Replay | None = None,
        *,
        is_again: bool = False,
    ) -> T | Rejected:
        """Check a call and store it; retry once if its tool has changed since the check.

        Every call enters here, so that a caller who is cancelled meanwhile leaves nothing unwanted behind.
        """
        if not isinstance(call, Call):  # callers without a type checker
            raise InvalidCallError(f"Expected a Call, not {type(call).__name__}. The form is Call(name, parameters).")
        new = await self._prepare(call, replay)
        if isinstance(new, Rejected):
            return new
        try:
            return await keep(call, new)
        except asyncio.CancelledError:
            self._connection.begin(self._leave(call, new, replay))
            raise
        except ToolChangedError as changed:
            if is_again:
                snapshot = self._catalogue.snapshot
                return self._intake.refuse(call, changed.message, changed.code, snapshot, retryable=True)
            self._catalogue.learn(changed)
        return await self._store(call, keep, replay, is_again=True)

    async def _leave(self, call: Call, new: NewExecution, replay: Replay | None) -> None:
        """Handle a call that nobody awaits any more: cancel it, unless it is detached or has a key."""
        goes_on = call.detached or call.idempotency_key is not None
        # Storing it again waits for its flush and adds nothing.
        [answer] = await self._connection.store.queue.submit_many([new])
        if goes_on and isinstance(answer, ToolChangedError):
            await self._submit(call, replay)
        elif answer is None and not goes_on:
            await self.cancel(new.id, "the awaiting task was cancelled")

    async def _prepare(self, call: Call, replay: Replay | None) -> NewExecution | Rejected:
        """Check a call against a recent enough snapshot, and link it to its key and the execution it repeats."""
        asked, catalogue, now = call, self._catalogue, time.monotonic()
        if catalogue.snapshot.has_sessions:
            call = await self._in_workspace_of_session(call)
        new = self._intake.prepare(call, catalogue.snapshot)
        if isinstance(new, Rejected) or new.encrypted is not None:
            oldest = now - (new.most_age if isinstance(new, Rejected) else KEY_SECONDS)
            if catalogue.read_at < oldest:
                await catalogue.refresh_since(oldest)
                new = self._intake.prepare(call, catalogue.snapshot)
        if isinstance(new, NewExecution) and new.queue.startswith(HOST_PREFIX):
            new = await self._reach(call, new)
        is_linked = asked.idempotency_key is not None or replay is not None
        # As the caller gave it: binding its session to a workspace does not make it another call for its key.
        return await self._link(asked, new, replay) if is_linked and isinstance(new, NewExecution) else new

    async def _in_workspace_of_session(self, call: Call) -> Call:
        context = call.context
        if not isinstance(context, ExecutionContext) or context.workspace is not None or not context.session_id:
            return call
        name = await self._catalogue.workspace_of(context.session_id)
        return call if name is None else replace(call, context=context.model_copy(update={"workspace": name}))

    async def _reach(self, call: Call, new: NewExecution) -> NewExecution | Rejected:
        """Refuse a call of a shell that only a dead host could answer: an agent would wait until it expires.

        A host that may be restarting is awaited for a lease; a call that is for later, or names that host's queue
        itself, waits for any host.
        """
        catalogue, store, lease = self._catalogue, self._connection.store, self._settings.lease
        host, handle = new.queue.removeprefix(HOST_PREFIX), self._intake.handle_of(call, new)
        if handle is None or call.due_in or call.queue == new.queue:
            return new
        try:
            await catalogue.refresh_since(time.monotonic() - SERVED_INTERVAL)
            if (new.queue, new.lane) in catalogue.snapshot.workers:
                return new
            seconds = await store.workers.silence_of(host, new.lane)
            shell = await store.shells.find(handle) if seconds is not None and seconds >= lease else None
        except ForgeError:  # storing the call gives a better error
            return new
        if seconds is not None and seconds < lease:
            patience = new.expires_in if call.expires_in is not None else min(new.expires_in, lease)
            return replace(new, expires_in=patience)
        sentence = unreachable(
            host, seconds, shell if shell is not None and shell.session_id == new.session_id else None
        )
        facts = {"host": host, "silent_seconds": seconds, "retryable": seconds is not None}
        return self._intake.refuse(call, sentence, ErrorCode.SHELL_HOST_UNAVAILABLE, catalogue.snapshot, **facts)

    async def _link(self, call: Call, new: NewExecution, replay: Replay | None) -> NewExecution | Rejected:
        snapshot = self._catalogue.snapshot
        try:
            claim = await self._claims.of(call, snapshot)
        except InvalidCallError as error:
            return self._intake.refuse(call, error.message, error.code, snapshot, errors=error.details)
        return replace(new, claim=claim, replay=replay)

    async def _run(self, call: Call, new: NewExecution) -> ToolResult:
        if self._submissions.is_closing:  # nothing was accepted
            return _failed(ConfigurationError(CLOSING))
        try:
            return await self._told(await self._submissions.run(new))
        except ToolChangedError:  # not a result yet: the call is checked again
            await asyncio.sleep(0)  # a caller that was cancelled meanwhile stops here
            raise
        except ForgeError as error:
            is_stored = isinstance(error, ConfigurationError)  # the client was closed; else it is not stored
            return _failed(error, new.id if is_stored else None)

    async def _keep(self, call: Call, new: NewExecution) -> Handle | Rejected:
        """Store a call. If its key has an execution, it is not stored but stands for that one, if both are the same."""
        answer = await self._submissions.put_and_tell(new)
        if isinstance(answer, ForgeError):
            raise answer.with_traceback(None)  # other calls of the same burst may raise the same error
        if answer is None or (claim := new.claim) is None:
            return Handle(new.id, self, is_known=True)
        if answer.fingerprint == claim.fingerprint:
            return Handle(answer.execution_id, self, is_known=True, is_repeat=True)
        error, differing = conflict(claim, answer)
        facts: dict[str, Any] = {"idempotency_key": claim.key, "holder": answer.execution_id, "differing": differing}
        return self._intake.refuse(call, error, ErrorCode.IDEMPOTENCY_CONFLICT, self._catalogue.snapshot, **facts)

    async def _follow(
        self, on_report: Callable[[Report], None] | None, call: Call, new: NewExecution
    ) -> ToolResult | Rejected:
        """Store a call and wait for the result of the execution it stands for, passing on its reports."""
        execution_id = None
        try:
            handle = await self._keep(call, new)
            if isinstance(handle, Rejected):
                return handle
            execution_id = handle.id
            if on_report is not None:
                await listen(handle, on_report)
            result = await handle.result()
        except ToolChangedError:  # as in `_run`
            raise
        except ForgeError as error:
            return _failed(error, execution_id)
        if not handle.is_repeat:
            return result
        return result.model_copy(update={"metadata": {**result.metadata, "is_repeat": True}})

    async def _tell_of_cancels(self, ids: Sequence[str]) -> list[None]:
        await tell_of_cancels(self._connection.store, self._settings.broker, ids)
        return [None] * len(ids)

    async def _look_up(self, execution_id: str) -> ToolResult:
        """Find the result of an execution of which no notification is expected; wait out a database outage."""
        while True:
            try:
                for result in await self._connection.store.queue.results([execution_id]):
                    return result
                known = (await self.record(execution_id)).id  # callers may give only the beginning of an id
            except ForgeError as error:
                self._results.require_open(execution_id)  # its error is more useful
                if not error.retryable:
                    raise
                await asyncio.sleep(REFRESH_INTERVAL)
            else:
                return await self._results.wait(known)

    async def _told(self, result: ToolResult) -> ToolResult:
        if result.error_code == ErrorCode.BLOCKED:
            with suppress(ForgeError):  # its tool leaves the async lane; the next call goes there at once
                await self._catalogue.refresh()
        return result.bind(self.parts) if CONTENT in result.metadata else result


async def tell_of_cancels(store: Store, broker_url: str, ids: Sequence[str]) -> None:
    """Notify, by id only, whoever cancels concern: the workers that run the executions, or the clients waiting for them.

    Without a broker, a worker learns of it with its next heartbeat, a client when it polls.
    """
    broker = open_broker(broker_url)
    try:
        for listener, id_ in await store.transitions.listeners(ids):
            broker.notify(listener, id_.encode())
    finally:
        await broker.close()


async def _handle_or_error(submitting: Awaitable[Handle]) -> Handle | ForgeError:
    """Return the outcome of one call of many: its error affects no other."""
    try:
        return await submitting
    except ForgeError as error:
        return error


def _failed(error: ForgeError, execution_id: str | None = None) -> ToolResult:
    known = execution_id or getattr(error, "execution_id", None)
    return ToolResult.fail(error.message, error_code=error.code, **({"execution_id": known} if known else {}))
