"""ExecutorClient: the executor interface, run on workers; every accepted call is a row before it is anything else."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from forge_tools.bell import Listener
from forge_tools.client.awaited import Awaited
from forge_tools.client.background import Background
from forge_tools.client.call import Call
from forge_tools.client.directory import REFRESH_INTERVAL
from forge_tools.client.handle import Handle, handle_or_error
from forge_tools.client.hearing import heard
from forge_tools.client.hosts import silence_of
from forge_tools.client.intake import Accepted, Intake, Rejected
from forge_tools.client.linked import LinkedCalls, failed, result_of
from forge_tools.client.outbox import SERVED_INTERVAL, Outbox
from forge_tools.client.owner import NOT_CONNECTED, Owner
from forge_tools.client.past import Past
from forge_tools.client.snapshot import Snapshot
from forge_tools.client.telling import tell_of_cancel
from forge_tools.client.waiting import ResultWaiter
from forge_tools.client.workspaces import in_workspace_of_session
from forge_tools.config import Settings
from forge_tools.errors import ConfigurationError, ErrorCode, ForgeError
from forge_tools.records import (
    CallOptions,
    ExecutionContext,
    NewExecution,
    Replay,
    Report,
    StoredResult,
    ToolExecution,
    ToolResult,
    host_of,
    new_id,
)
from forge_tools.storage import Store, ToolChangedError, open_store

T = TypeVar("T")


class ExecutorClient(Past):
    """Runs tools on workers. One client per event loop and process; many concurrent calls per client.

    async with ExecutorClient.connect() as client:
        result = await client.execute("Grep", ExecutionContext(working_dir="."), pattern="TODO")
    """

    def __init__(self, settings: Settings | None = None) -> None:
        super().__init__()
        self._settings = settings or Settings.load()
        self._id = new_id()
        self._store: Store | None = None
        self._intake = Intake(self._settings, self._id)
        self._waiter = ResultWaiter(self._read_results)
        self._listener = Listener(self._settings.broker, self._id, self._waiter.ended, self._waiter.missed)
        self._outbox = Outbox(self._settings.broker, self._waiter, self._listener, self.refresh)
        self._awaited = Awaited()
        self._background = Background()
        self._linked = LinkedCalls(self._settings, self._intake, self._outbox, self._background)
        self._owner = Owner()

    @classmethod
    def connect(cls, settings: Settings | None = None, **overrides: Any) -> Self:
        """Make a client from the environment, to be entered with `async with`; keywords override settings."""
        return cls(settings or Settings.load(**overrides))

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Connect to the database and read the catalogue; the broker is met at the first call.

        Raises:
            DatabaseUnavailableError: naming the database and the way out.
            SchemaVersionError: it is not migrated, or newer than this code.
        """
        self._owner.begin()
        settings = self._settings
        wait, limit, folder = settings.connect_timeout, settings.database_timeout, settings.artifact_dir
        self._store = await open_store(settings.database, connect_timeout=wait, deadline=limit, artifact_dir=folder)
        try:
            await self.refresh()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Send pending rings, end every wait and let go of connections; accepted calls go on."""
        if self._store is not None:  # first: who waits is told that his call goes on, so it has to be stored
            async with self._store.cut_off_after(self._settings.database_timeout):
                await self._outbox.settle()
                await self._background.until_done()
        await self._waiter.close()
        await self._listener.close()
        await self._linked.close()
        await self._outbox.close()
        await self._background.until_done()
        if self._store is not None:
            store, self._store = self._store, None
            await store.close()

    async def refresh(self) -> None:
        """Read the catalogue again, and who serves what."""
        began, store, lease = time.monotonic(), self._open_store, self._settings.lease
        snapshot, workers = await Snapshot.read(store, lease), await store.workers.live_queues(lease)
        if began >= self._refreshed_at:  # else another one began later, and has ended before: it knows more
            self._snapshot, self._outbox.dispatcher.workers, self._refreshed_at = snapshot, workers, began

    async def execute(self, tool_name: str, context: ExecutionContext, /, **parameters: Any) -> ToolResult:
        """Run a tool on a worker and wait for its result. Failures are results; cancelling this cancels the call."""
        return await self.run(Call(tool_name, parameters, context))

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any],
        context: ExecutionContext | None = None,
        options: CallOptions | None = None,
        *,
        on_report: Callable[[Report], None] | None = None,
        **fields: Any,
    ) -> ToolResult:
        """Run a tool with its arguments as one object, telling `on_report` what it reports; keywords are fields of `Call`."""
        call = Call(name, arguments, context, **fields)
        call = call if options is None else call.with_options(options)
        return await (self.run(call) if on_report is None else self._run_heard(call, on_report))

    async def run(self, call: Call) -> ToolResult:
        """Submit and wait: what `execute` and `call` do."""
        started, store = time.time(), self._open_store
        await self._outbox.room()
        try:
            answer = await self._accepted(call, partial(self._result_of, store, call))
        except ForgeError as error:  # nothing was accepted
            return ToolResult.fail(error.message, error_code=error.code)
        result = await result_of(self._record_rejection(answer)) if isinstance(answer, Rejected) else answer
        self._awaited.add(call, self._snapshot.find(call.label), result, started)
        return result

    async def submit(
        self,
        name: str,
        context: ExecutionContext | None = None,
        parameters: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Handle:
        """Accept a call and return its handle at once; keywords are the fields of `Call`.

        An unknown tool or invalid parameters give a handle whose result is already there, recorded as `rejected`.

        Raises:
            DatabaseUnavailableError: nothing was accepted.
            SubmitOutcomeUnknownError: it may have been; the error has the id to attach to.
        """
        return await self._submit_one(Call(name, parameters or {}, context, **options))

    async def submit_many(self, calls: Sequence[Call]) -> list[Handle | ForgeError]:
        """Accept many calls in one go: one handle, or the error that kept it out, per call and in order."""
        self._owner.require()
        if any(call.idempotency_key is not None for call in calls):
            return await asyncio.gather(*(handle_or_error(self._submit_one(call)) for call in calls))
        prepared = [await self._prepare(call) for call in calls]
        errors = iter(await self._commit(calls, prepared))
        outcomes = [one if isinstance(one, Rejected) else next(errors) for one in prepared]
        return await asyncio.gather(
            *(
                self._answer(call, one.new, outcome)
                for call, one, outcome in zip(calls, prepared, outcomes, strict=True)
            )
        )

    async def bind_session(self, session_id: str, workspace: str | None) -> None:
        """Have calls of that session which name no workspace work in this one; None ends that. Others learn it in seconds."""
        await self._open_store.workspaces.bind_session(session_id, workspace)
        await self.refresh()

    def attach(self, execution_id: str) -> Handle:
        """A handle for an execution that somebody submitted, in whatever process."""
        return Handle(execution_id, self)

    async def cancel(self, execution_id: str, reason: str = "") -> Literal["cancelled", "requested", "over"]:
        """Cancel an execution. The request is stored in SQL; the worker is notified, and sees it within a heartbeat at the latest."""
        store = self._open_store
        answer = await store.queue.cancel(execution_id, actor=self._actor, reason=reason)
        if answer != "requested":  # it is over, and no worker will ring for that
            self._waiter.ended([execution_id])
        if answer != "over":
            self._in_background(tell_of_cancel(store, self._settings.broker, execution_id))
        return answer

    async def wait_for(self, execution_id: str) -> ToolResult:
        """Wait until an execution is over and return its result.

        Raises:
            ExecutionNotFoundError: SQL holds no such execution.
        """
        self._owner.require()
        find = self._waiter.wait if self._waiter.expects(execution_id) else self._look_up
        return await self._told(await find(execution_id))

    def get_executions(self) -> list[ToolExecution]:
        """Calls this client has awaited, in order; the audit is `history`."""
        return self._awaited.list()

    def clear_executions(self) -> None:
        """Forget this client's own list; SQL keeps its rows."""
        self._awaited.clear()

    @property
    def _actor(self) -> str:
        return f"client {self._id}"

    @property
    def _open_store(self) -> Store:
        self._owner.require()
        if self._store is None:
            raise ConfigurationError(NOT_CONNECTED)
        return self._store

    async def _run_heard(self, call: Call, on_report: Callable[[Report], None]) -> ToolResult:
        started, goes_on = time.time(), call.detached or call.idempotency_key is not None

        def abandon(execution_id: str) -> None:
            if not goes_on:
                self._in_background(self.cancel(execution_id, "the awaiting task was cancelled"))

        result = await result_of(heard(self._submit_one(call), on_report, abandon))
        self._awaited.add(call, self._snapshot.find(call.label), result, started)
        return result

    async def _submit_one(self, call: Call) -> Handle:
        self._owner.require()
        await self._outbox.room()
        answer = await self._accepted(call, partial(self._stored, call))
        return await self._record_rejection(answer) if isinstance(answer, Rejected) else answer

    async def _accepted(self, call: Call, store: Callable[[Accepted], Awaitable[T]]) -> T | Rejected:
        """Check a call and have it stored. If its tool is no longer what it was checked by, that is done once more."""
        prepared = await self._prepare(call)
        if isinstance(prepared, Rejected):
            return prepared
        try:
            return await store(prepared)
        except ToolChangedError as changed:
            self._snapshot = self._snapshot.after(changed)
        prepared = await self._prepare(call)
        if isinstance(prepared, Rejected):
            return prepared
        try:
            return await store(prepared)
        except ToolChangedError as again:
            return self._intake.refuse(call, again.message, again.code, self._snapshot, retryable=True)

    async def _prepare(self, call: Call) -> Accepted | Rejected:
        now = time.monotonic()
        if self._snapshot.places.has_sessions:
            call = await in_workspace_of_session(call, self._snapshot, self._open_store)
        prepared = self._intake.prepare(call, self._snapshot)
        if self._refreshed_at < now - prepared.most_age:
            await self._refresh_since(now - prepared.most_age)
            prepared = self._intake.prepare(call, self._snapshot)
        if isinstance(prepared, Accepted) and prepared.handle is not None:
            return await self._reach(call, prepared, prepared.handle)
        return prepared

    async def _stored(self, call: Call, accepted: Accepted) -> Handle:
        if call.idempotency_key is not None:
            return await self._submit_linked(call, accepted)
        new = accepted.new
        stored = self._outbox.put_and_tell(self._open_store, new)
        try:
            error = await stored
        except asyncio.CancelledError:
            self._in_background(self._leave(call, new))
            raise
        if error is not None:
            raise error.with_traceback(None)  # others of the same burst may be told the same error
        return Handle(new.id, self)

    async def _submit_linked(self, call: Call, accepted: Accepted, replay: Replay | None = None) -> Handle:
        answer = await self._linked.submit(self._open_store, self._snapshot, call, accepted, replay)
        if isinstance(answer, Rejected):
            return await self._record_rejection(answer)
        return Handle(answer.execution_id, self, is_repeat=answer.is_repeat)

    async def _commit(self, calls: Sequence[Call], prepared: Sequence[Accepted | Rejected]) -> list[ForgeError | None]:
        """Store what was accepted of calls; an error or None for each of those."""
        accepted = [one.new for one in prepared if isinstance(one, Accepted)]
        try:
            return await self._outbox.commit(self._open_store, accepted, expecting=[new.id for new in accepted])
        except asyncio.CancelledError:
            for call, one in zip(calls, prepared, strict=True):
                if isinstance(one, Accepted):
                    self._in_background(self._leave(call, one.new))
            raise

    async def _answer(
        self, call: Call, new: NewExecution, outcome: Rejected | ForgeError | None
    ) -> Handle | ForgeError:
        """What one of many calls is answered."""
        if isinstance(outcome, Rejected):
            return await handle_or_error(self._record_rejection(outcome))
        if isinstance(outcome, ToolChangedError):
            return await handle_or_error(self._submit_one(call))
        return Handle(new.id, self) if outcome is None else outcome

    async def _leave(self, call: Call, new: NewExecution) -> None:
        """Nobody waits for a call any more: it is cancelled, or runs all the same if it is detached.

        Its flush goes on without its waiter; storing it again waits for that, adds nothing, and tells what became of it.
        """
        [error] = await self._open_store.queue.submit_many([new])
        if not call.detached and error is None:
            await self.cancel(new.id, "the awaiting task was cancelled")
        elif call.detached and isinstance(error, ToolChangedError):
            await self._submit_one(call)

    async def _reach(self, call: Call, accepted: Accepted, handle: str) -> Accepted | Rejected:
        """Refuse what only a dead host could answer: an agent would wait until it expires. One that may be restarting is
        waited for, for a lease; and any by a call that is for later, or asks for that host's queue itself.
        """
        new, host, lease = accepted.new, host_of(handle), self._settings.lease
        if host is None or call.delay or call.queue == new.queue:
            return accepted
        try:
            await self._refresh_since(time.monotonic() - SERVED_INTERVAL)
            if (new.queue, new.lane) in self._outbox.dispatcher.workers:
                return accepted
            silence = await silence_of(host, handle, new, self._open_store, lease)
        except ForgeError:  # storing the call says it better
            return accepted
        if silence is not None:
            return self._intake.refuse_host(call, silence, self._snapshot)
        patience = new.expires_in if call.expires_in is not None else min(new.expires_in, lease)
        return accepted._replace(new=replace(new, expires_in=patience))

    async def _record_rejection(self, rejected: Rejected) -> Handle:
        await self._open_store.queue.record(rejected.new, rejected.outcome)
        metadata = {**rejected.result.metadata, "execution_id": rejected.new.id}
        return Handle(rejected.new.id, self, rejected.result.model_copy(update={"metadata": metadata}))

    async def _look_up(self, execution_id: str) -> StoredResult:
        """Find the result of an execution that will not ring here, or has rung already; wait for a database that is away."""
        while True:
            try:
                for stored in await self._open_store.queue.results([execution_id]):
                    return stored
                known = (await self.get(execution_id)).id
            except ForgeError as error:
                self._waiter.require_open(execution_id)  # it says it better
                if not error.retryable:
                    raise
                await asyncio.sleep(REFRESH_INTERVAL)
            else:
                return await self._waiter.wait(known)

    async def _result_of(self, store: Store, call: Call, accepted: Accepted) -> ToolResult:
        new = accepted.new
        if call.idempotency_key is not None:
            return await result_of(self._submit_linked(call, accepted))
        try:
            future = self._outbox.put(store, new)
        except ConfigurationError as closing:  # nothing was accepted
            return ToolResult.fail(closing.message, error_code=closing.code)
        try:
            stored = await future
            return await self._told(stored)
        except ToolChangedError:
            raise
        except asyncio.CancelledError:
            self._in_background(self._leave(call, new))
            raise
        except ForgeError as error:
            is_stored = isinstance(error, ConfigurationError)  # the client was closed; else it was not to be stored
            return failed(error, new.id if is_stored else None)
        finally:
            self._waiter.end(new.id, future)

    async def _told(self, stored: StoredResult) -> ToolResult:
        if stored.result.error_code == ErrorCode.BLOCKED:
            with suppress(ForgeError):  # its tool leaves the async lane; the next call goes there at once
                await self.refresh()
        return stored.result

    async def _read_results(self, ids: Sequence[str]) -> Any:
        return await self._open_store.queue.results(ids)

    def _in_background(self, work: Coroutine[Any, Any, Any]) -> None:
        if self._store is None:
            work.close()
        else:
            self._background.begin(work)
