"""The synchronous face: the same client on a helper thread, for scripts, threads and forked processes."""

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from forge_tools.client.call import Call
from forge_tools.client.executor import ExecutorClient
from forge_tools.client.handle import Handle
from forge_tools.config import Settings
from forge_tools.errors import ConfigurationError, ForgeError
from forge_tools.records import (
    ArtifactPage,
    AttemptRecord,
    CallEvent,
    EventRecord,
    ExecutionContext,
    ExecutionRecord,
    ExecutionStatus,
    Report,
    Schema,
    ToolCategory,
    ToolExecution,
    ToolResult,
    ToolSpec,
    ToolVersion,
)

T = TypeVar("T")

THREAD_END = 5.0

_left_behind: list[object] = []
"""Clients of a parent process, kept for ever in its forked children: collecting them would close connections that the
parent uses, and SQLite forbids it.
"""


class SyncExecutorClient:
    """`ExecutorClient` without `await`. Share one among threads; in a forked child it connects anew by itself."""

    def __init__(self, settings: Settings | None = None, **overrides: Any) -> None:
        self._settings = settings or Settings.load(**overrides)
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._client: ExecutorClient | None = None

    def __enter__(self) -> Self:
        self._connected()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Send pending rings, end every wait and let go of connections; the next use connects anew."""
        self._leave_parent_behind()
        with self._lock:
            client, loop, thread = self._client, self._loop, self._thread
            self._client = self._loop = self._thread = None
        if client is None or loop is None or thread is None:
            return
        try:
            asyncio.run_coroutine_threadsafe(client.close(), loop).result()
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(THREAD_END)

    def execute(self, tool_name: str, context: ExecutionContext, /, **parameters: Any) -> ToolResult:
        return self._run(lambda client: client.execute(tool_name, context, **parameters))

    def call(
        self,
        name: str,
        arguments: Mapping[str, Any],
        context: ExecutionContext | None = None,
        *,
        on_report: Callable[[Report], None] | None = None,
        **options: Any,
    ) -> ToolResult:
        """Run a tool as `ExecutorClient.call` does. `on_report` is called on this thread, and may use the client."""
        if on_report is None:
            return self._run(lambda client: client.call(name, arguments, context, **options))
        heard = SimpleQueue[Report | None]()

        def listen(result: Future[ToolResult]) -> None:
            result.add_done_callback(lambda _: heard.put(None))
            while (report := heard.get()) is not None:
                with suppress(Exception):
                    on_report(report)

        return self._run(
            lambda client: client.call(name, arguments, context, on_report=heard.put, **options), meanwhile=listen
        )

    def submit(
        self,
        name: str,
        context: ExecutionContext | None = None,
        parameters: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> "SyncHandle":
        return SyncHandle(self._run(lambda client: client.submit(name, context, parameters, **options)), self)

    def submit_many(self, calls: Sequence[Call]) -> "list[SyncHandle | ForgeError]":
        handles = self._run(lambda client: client.submit_many(calls))
        return [SyncHandle(one, self) if isinstance(one, Handle) else one for one in handles]

    def replay(self, execution_id: str, parameters: Mapping[str, Any] | None = None, **options: Any) -> "SyncHandle":
        return SyncHandle(self._run(lambda client: client.replay(execution_id, parameters, **options)), self)

    def attach(self, execution_id: str) -> "SyncHandle":
        return SyncHandle(self._connected()[0].attach(execution_id), self)

    def get(self, execution_id: str) -> ExecutionRecord:
        return self._run(lambda client: client.get(execution_id))

    def artifact(self, handle: str) -> Iterator[bytes]:
        """Read the bytes of an artifact part by part, as the asynchronous client does."""
        count = 0

        async def rest(client: ExecutorClient) -> AsyncGenerator[bytes, None]:
            before = count
            async for chunk in client.artifact(handle):
                if before:
                    before -= 1
                else:
                    yield chunk

        for chunk in _stepped(self, rest):
            count += 1
            yield chunk

    def artifact_page(self, handle: str, **wish: int | None) -> ArtifactPage:
        return self._run(lambda client: client.artifact_page(handle, **wish))

    def history(self, **filters: Any) -> list[ExecutionRecord]:
        return self._run(lambda client: client.history(**filters))

    def attempts(self, **filters: Any) -> list[AttemptRecord]:
        return self._run(lambda client: client.attempts(**filters))

    def events(self, **filters: Any) -> list[EventRecord]:
        return self._run(lambda client: client.events(**filters))

    def refresh(self) -> None:
        self._run(lambda client: client.refresh())

    def bind_session(self, session_id: str, workspace: str | None) -> None:
        self._run(lambda client: client.bind_session(session_id, workspace))

    def enable(self, tool: str) -> None:
        self._run(lambda client: client.enable(tool))

    def disable(self, tool: str) -> None:
        self._run(lambda client: client.disable(tool))

    def versions(self, tool: str) -> list[ToolVersion]:
        return self._run(lambda client: client.versions(tool))

    def pin(self, tool: str, definition: str) -> ToolVersion:
        return self._run(lambda client: client.pin(tool, definition))

    def unpin(self, tool: str) -> ToolVersion:
        return self._run(lambda client: client.unpin(tool))

    def specs(self) -> list[ToolSpec]:
        return self._connected()[0].specs()

    def get_all_schemas(self, format: str = "openai") -> list[Schema]:
        return self._connected()[0].get_all_schemas(format)

    def get_schemas_by_category(self, category: ToolCategory, format: str = "openai") -> list[Schema]:
        return self._connected()[0].get_schemas_by_category(category, format)

    def get_executions(self) -> list[ToolExecution]:
        return self._connected()[0].get_executions()

    def clear_executions(self) -> None:
        self._connected()[0].clear_executions()

    def _run(
        self,
        work: Callable[[ExecutorClient], Coroutine[Any, Any, T]],
        *,
        meanwhile: Callable[[Future[T]], None] | None = None,
    ) -> T:
        self._leave_parent_behind()
        with self._lock:  # so that what is scheduled comes before a close, which then ends it
            client, loop = self._connected()
            future = asyncio.run_coroutine_threadsafe(work(client), loop)
        try:
            if meanwhile is not None:
                meanwhile(future)
            return future.result()
        except CancelledError as error:
            raise ConfigurationError(
                "The client was closed by another thread while this call was under way; history says what became of it."
            ) from error
        except BaseException:
            future.cancel()
            raise

    def _connected(self) -> tuple[ExecutorClient, asyncio.AbstractEventLoop]:
        self._leave_parent_behind()
        with self._lock:
            if self._client is None or self._loop is None:
                self._client, self._loop, self._thread = self._open()
            return self._client, self._loop

    def _open(self) -> tuple[ExecutorClient, asyncio.AbstractEventLoop, threading.Thread]:
        client, loop = ExecutorClient(self._settings), asyncio.new_event_loop()
        thread = threading.Thread(target=_serve, args=(loop,), name="forge-client", daemon=True)
        thread.start()
        try:
            asyncio.run_coroutine_threadsafe(client.open(), loop).result()
        except BaseException:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(THREAD_END)
            raise
        return client, loop, thread

    def _leave_parent_behind(self) -> None:
        """After a fork: the helper thread, and whoever held the lock, are in the parent."""
        if self._pid != os.getpid():
            _left_behind.append((self._client, self._loop))
            self._pid, self._lock = os.getpid(), threading.RLock()
            self._client = self._loop = self._thread = None


class SyncHandle:
    """`Handle` without `await`; outlives a close or fork of its client, which then connects anew."""

    def __init__(self, handle: Handle, client: SyncExecutorClient) -> None:
        self.id = handle.id
        self.is_repeat = handle.is_repeat
        self._handle = handle
        self._client = client

    def result(self, timeout: float | None = None) -> ToolResult:
        return self._client._run(lambda client: self._handle.on(client).result(timeout))  # noqa: SLF001 the two halves of one bridge

    def record(self) -> ExecutionRecord:
        return self._client.get(self.id)

    def status(self) -> ExecutionStatus:
        return self.record().status

    def events(self, after: str | None = None) -> Iterator[CallEvent]:
        """Follow it, as `Handle.events` does; leaving the loop early leaves nothing behind."""
        for event in _stepped(self._client, lambda client: self._handle.on(client).events(after)):  # noqa: B023 that of the last event
            after = event.cursor
            yield event

    def cancel(self, reason: str = "") -> Literal["cancelled", "requested", "over"]:
        return self._client._run(lambda client: client.cancel(self.id, reason))  # noqa: SLF001 as above


def _stepped(face: SyncExecutorClient, begin: Callable[[ExecutorClient], AsyncGenerator[T, None]]) -> Iterator[T]:
    """Go through what a client generates. After a close or a fork in between, `begin` begins behind what was had."""
    steps: AsyncGenerator[T, None] | None = None
    its_loop: asyncio.AbstractEventLoop | None = None

    async def step(client: ExecutorClient) -> T | None:
        nonlocal steps, its_loop
        if steps is None or its_loop is not asyncio.get_running_loop():
            steps, its_loop = begin(client), asyncio.get_running_loop()
        return await anext(steps, None)

    try:
        while (one := face._run(step)) is not None:  # noqa: SLF001 the two halves of one bridge
            yield one
    except GeneratorExit:
        if steps is not None and its_loop is not None:
            left = steps
            with suppress(RuntimeError):  # that loop has ended, and the steps with it
                its_loop.call_soon_threadsafe(lambda: asyncio.ensure_future(left.aclose()))
        raise


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    """Run the loop until it is stopped; then cancel what is left, so that no thread waits for it in vain."""
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.get_loop().run_forever()
