"""The synchronous API: the same client on a helper thread, for scripts, threads and forked processes."""

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from functools import partial, wraps
from inspect import isawaitable
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from forge_tools.artifacts.reader import PartReader
from forge_tools.client.calls import Calls
from forge_tools.client.catalogue import Catalogue
from forge_tools.client.client import ExecutorClient, History
from forge_tools.client.handle import Handle
from forge_tools.config import Settings
from forge_tools.errors import ConfigurationError, ForgeError
from forge_tools.model.calls import ToolResult
from forge_tools.model.content import CONTENT
from forge_tools.model.history import CallEvent
from forge_tools.model.scope import Report

P = ParamSpec("P")
T = TypeVar("T")
Side = TypeVar("Side")
"""The asynchronous class behind a synchronous one."""

THREAD_END = 5.0
"""Seconds to wait for the end of a helper thread; it is a daemon, so the program can end without it."""

_left_behind: list[object] = []
"""Clients of a parent process, kept for ever in its forked children: collecting them would close connections that the
parent uses, and SQLite forbids it.
"""


class Bridge:
    """A client on a helper thread, connected on first use, and again after a close and in a forked child."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._client: ExecutorClient | None = None

    def run(
        self,
        work: Callable[[ExecutorClient], Coroutine[Any, Any, T]],
        *,
        meanwhile: Callable[[Future[T]], None] | None = None,
    ) -> T:
        """Run `work` on the helper thread, and `meanwhile` on this one; an interrupt of this thread cancels it."""
        self._leave_parent_behind()
        with self._lock:  # so that what is scheduled comes before a close, which then ends it
            client, loop = self.connect()
            future = asyncio.run_coroutine_threadsafe(work(client), loop)
        try:
            if meanwhile is not None:
                meanwhile(future)
            return future.result()
        except CancelledError as error:
            raise ConfigurationError(
                "The client was closed by another thread during this call; history shows what became of it."
            ) from error
        except BaseException:
            future.cancel()
            raise

    def step_through(self, begin: Callable[[ExecutorClient], AsyncGenerator[T, None]]) -> Iterator[T]:
        """Iterate over what a client generates. After a close or fork meanwhile, `begin` continues where it stopped."""
        steps: AsyncGenerator[T, None] | None = None
        its_loop: asyncio.AbstractEventLoop | None = None

        async def step(client: ExecutorClient) -> T | None:
            nonlocal steps, its_loop
            if steps is None or its_loop is not asyncio.get_running_loop():
                steps, its_loop = begin(client), asyncio.get_running_loop()
            return await anext(steps, None)

        try:
            while (one := self.run(step)) is not None:
                yield one
        except GeneratorExit:
            if steps is not None and its_loop is not None:
                left = steps
                with suppress(RuntimeError):  # that loop has ended, and the steps with it
                    its_loop.call_soon_threadsafe(lambda: asyncio.ensure_future(left.aclose()))
            raise

    def connect(self) -> tuple[ExecutorClient, asyncio.AbstractEventLoop]:
        """Return the client and its loop, connecting if there is none."""
        self._leave_parent_behind()
        with self._lock:
            if self._client is None or self._loop is None:
                client, loop = ExecutorClient(self._settings), asyncio.new_event_loop()
                thread = threading.Thread(target=_serve, args=(loop,), name="forge-client", daemon=True)
                thread.start()
                try:
                    asyncio.run_coroutine_threadsafe(client.open(), loop).result()
                except BaseException:
                    loop.call_soon_threadsafe(loop.stop)
                    thread.join(THREAD_END)
                    raise
                self._client, self._loop, self._thread = client, loop, thread
            return self._client, self._loop

    def close(self) -> None:
        """Close the client, and end the helper thread."""
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

    def _leave_parent_behind(self) -> None:
        """After a fork, start afresh: the helper thread, and any holder of the lock, are in the parent."""
        if self._pid != os.getpid():
            _left_behind.append((self._client, self._loop))
            self._pid, self._lock = os.getpid(), threading.RLock()
            self._client = self._loop = self._thread = None


class Face(Generic[Side]):
    """A class without `await`: its methods and their signatures are those of `Side`, as `_blocking` makes them."""

    def __init__(self, bridge: Bridge, side: Callable[[ExecutorClient], Side]) -> None:
        self._bridge = bridge
        self._side = side

    def _ask(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call the method of the other side on its thread, and receive its reports on this one."""
        on_report: Callable[[Report], None] | None = kwargs.get("on_report")
        heard = SimpleQueue[Report | None]()
        if on_report is not None:
            kwargs["on_report"] = heard.put

        async def ask(client: ExecutorClient) -> Any:
            answer = method(self._side(client), *args, **kwargs)
            return await answer if isawaitable(answer) else answer

        def listen(on_report: Callable[[Report], None], result: Future[Any]) -> None:
            result.add_done_callback(lambda _: heard.put(None))
            while (report := heard.get()) is not None:
                with suppress(Exception):
                    on_report(report)

        return self._bridge.run(ask, meanwhile=None if on_report is None else partial(listen, on_report))


@overload
def _blocking(
    method: Callable[Concatenate[Side, P], Coroutine[Any, Any, Handle]],
) -> "Callable[Concatenate[Face[Side], P], SyncHandle]": ...
@overload
def _blocking(
    method: Callable[Concatenate[Side, P], Coroutine[Any, Any, list[Handle | ForgeError]]],
) -> "Callable[Concatenate[Face[Side], P], list[SyncHandle | ForgeError]]": ...
@overload
def _blocking(
    method: Callable[Concatenate[Side, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Face[Side], P], T]: ...
@overload
def _blocking(method: Callable[Concatenate[Side, P], Handle]) -> "Callable[Concatenate[Face[Side], P], SyncHandle]": ...
@overload
def _blocking(method: Callable[Concatenate[Side, P], T]) -> Callable[Concatenate[Face[Side], P], T]: ...
def _blocking(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return the same method without `await`, which returns synchronous handles."""

    @wraps(method)
    def block(self: Face[Any], *args: Any, **kwargs: Any) -> Any:
        answer = self._ask(method, *args, **kwargs)
        if isinstance(answer, ToolResult) and CONTENT in answer.metadata:
            return answer.bind(_Parts(self._bridge, lambda client: client.calls.parts))
        if isinstance(answer, list):
            return [SyncHandle(one, self._bridge) if isinstance(one, Handle) else one for one in answer]
        return SyncHandle(answer, self._bridge) if isinstance(answer, Handle) else answer

    return block


class _Parts(Face[PartReader]):
    """Reads parts for those who cannot await."""

    bytes = _blocking(PartReader.bytes)
    save = _blocking(PartReader.save)


class SyncHandle(Face[Handle]):
    """`Handle` without `await`; outlives a close or fork of its client, which then reconnects."""

    def __init__(self, handle: Handle, bridge: Bridge) -> None:
        super().__init__(bridge, lambda client: handle.on(client.calls))
        self.id = handle.id
        self.is_repeat = handle.is_repeat

    result = _blocking(Handle.result)
    record = _blocking(Handle.record)
    status = _blocking(Handle.status)
    diagnosis = _blocking(Handle.diagnosis)
    cancel = _blocking(Handle.cancel)

    def events(self, after: str | None = None) -> Iterator[CallEvent]:
        """Follow it, as `Handle.events` does; leaving the loop early leaves nothing behind."""

        def begin(client: ExecutorClient) -> AsyncGenerator[CallEvent, None]:
            return self._side(client).events(after)  # after the last one, if it begins again

        for event in self._bridge.step_through(begin):
            after = event.cursor
            yield event


class SyncCalls(Face[Calls]):
    """`Calls` without `await`."""

    execute = _blocking(Calls.execute)
    submit = _blocking(Calls.submit)
    submit_many = _blocking(Calls.submit_many)
    replay = _blocking(Calls.replay)
    upload = _blocking(Calls.upload)
    attach = _blocking(Calls.attach)
    wait = _blocking(Calls.wait)
    record = _blocking(Calls.record)
    poll = _blocking(Calls.poll)
    cancel = _blocking(Calls.cancel)
    cancel_many = _blocking(Calls.cancel_many)
    bind_session = _blocking(Calls.bind_session)


class SyncHistory(Face[History]):
    """`History` without `await`."""

    get = _blocking(History.get)
    list = _blocking(History.list)
    attempts = _blocking(History.attempts)
    events = _blocking(History.events)
    events_of = _blocking(History.events_of)
    progress_of = _blocking(History.progress_of)
    artifact_page = _blocking(History.artifact_page)

    def artifact(self, handle: str) -> Iterator[bytes]:
        """Read the bytes of an artifact part by part, as the asynchronous client does."""
        count = 0

        async def rest(client: ExecutorClient) -> AsyncGenerator[bytes, None]:
            before = count  # after a reconnect it reads from the beginning, and skips what was yielded
            async for chunk in client.history.artifact(handle):
                if before:
                    before -= 1
                else:
                    yield chunk

        for chunk in self._bridge.step_through(rest):
            count += 1
            yield chunk


class SyncCatalogue(Face[Catalogue]):
    """`Catalogue` without `await`."""

    specs = _blocking(Catalogue.specs)
    servers = _blocking(Catalogue.servers)
    schemas = _blocking(Catalogue.schemas)
    refresh = _blocking(Catalogue.refresh)
    enable = _blocking(Catalogue.enable)
    disable = _blocking(Catalogue.disable)
    versions = _blocking(Catalogue.versions)
    pin = _blocking(Catalogue.pin)
    unpin = _blocking(Catalogue.unpin)


class SyncExecutorClient(Face[ExecutorClient]):
    """`ExecutorClient` without `await`. Threads may share one; in a forked child it reconnects by itself."""

    def __init__(self, settings: Settings | None = None, **overrides: Any) -> None:
        bridge = Bridge(Settings.load(settings, **overrides))
        super().__init__(bridge, lambda client: client)
        self.calls = SyncCalls(bridge, lambda client: client.calls)
        self.history = SyncHistory(bridge, lambda client: client.history)
        self.catalogue = SyncCatalogue(bridge, lambda client: client.catalogue)

    def __enter__(self) -> Self:
        self._bridge.connect()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Send pending messages, end every wait and close connections; the next use reconnects."""
        self._bridge.close()

    execute = _blocking(ExecutorClient.execute)
    call = _blocking(ExecutorClient.call)
    submit = _blocking(ExecutorClient.submit)
    upload = _blocking(ExecutorClient.upload)
    specs = _blocking(ExecutorClient.specs)
    get_all_schemas = _blocking(ExecutorClient.get_all_schemas)
    get_schemas_by_category = _blocking(ExecutorClient.get_schemas_by_category)
    get_executions = _blocking(ExecutorClient.get_executions)
    clear_executions = _blocking(ExecutorClient.clear_executions)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    """Run the loop until it is stopped; then cancel what is left, so that no thread waits for it in vain."""
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.get_loop().run_forever()
