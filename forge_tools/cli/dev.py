"""`forge-tools dev`: the stack of this machine with tools that are reloaded when saved, and its calls as they come."""

import asyncio
import os
import select
import sys
import termios
import threading
import tty
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

from typer import Argument

import forge_tools
from forge_tools.cli.face import App, Face, can_ask
from forge_tools.cli.live import measured, noted
from forge_tools.cli.services import with_store
from forge_tools.cli.text import as_text, from_here, one_line, took
from forge_tools.cli.up import AnnouncedStack
from forge_tools.config import Settings
from forge_tools.embedded.forks import FORK_SERVER, SupervisedWorker, WorkerForks
from forge_tools.embedded.generations import Generations, changes
from forge_tools.embedded.stack import ASYNC_CONCURRENCY, StackStatus, WorkerPlan
from forge_tools.errors import ForgeError
from forge_tools.model.calls import ToolResult
from forge_tools.model.diagnosis import Diagnosis
from forge_tools.model.execution import ExecutionStatus
from forge_tools.model.history import CallEvent, Ended, ExecutionRecord, Note, StateChange
from forge_tools.model.scope import Output, Progress
from forge_tools.model.tools import ToolSpec
from forge_tools.project import find_project, is_path
from forge_tools.sandbox.walls.privileges import harden
from forge_tools.storage import Store
from forge_tools.tool import load_tools

CONCURRENCY = 2
"""How many process lane calls run at once: each new generation forks that many processes."""

POLL_SECONDS = 0.2
MOST_FOLLOWED = 100
"""The most new calls shown at one time; the others appear only in the history."""

KEYS = "f shows the last failure, r runs the last call again, Ctrl-C stops everything."
ENDED_WIDTH = 100

app = App()


@app.command()
def dev(
    face: Face,
    tools: Annotated[
        list[str] | None, Argument(metavar="FILE.py|PACKAGE", help="Your tools, beside those of pyproject.toml.")
    ] = None,
) -> None:
    """Run the stack, load your tools again whenever you save them, and show calls as they come.

    New code takes over once it serves; running calls go on with the old code. Code that cannot be imported is reported
    with its file and line, and changes nothing.
    """
    harden()
    settings = Settings.load()
    stack = _DevStack(face, settings, tuple(tools or ()))
    stack.run(stack.announce)


class _DevStack(AnnouncedStack):
    """Two workers instead of three, and again two whenever their code changes."""

    def __init__(self, face: Face, settings: Settings, references: tuple[str, ...]) -> None:
        super().__init__(face, settings, references, None, own=())
        both = ("default", "background")
        self.plans = (
            WorkerPlan(name="async", lane="async", queues=both, concurrency=ASYNC_CONCURRENCY, tools=references),
            WorkerPlan(name="process", lane="process", queues=both, concurrency=CONCURRENCY, tools=references),
        )
        self.program = ("-B", *FORK_SERVER)  # a file saved twice in a second would be taken for what was compiled first
        self._references = references
        self._drain = settings.drain
        self._generations: Generations | None = None
        self._stopping = threading.Event()
        self._announced = threading.Event()
        self._changes: Iterator[list[Path]] = iter(())
        self._calls: _Calls | None = None
        self._has_served = False
        self._has_saved = False
        self._speaking = threading.Lock()

    def start_workers(self, forks: WorkerForks) -> None:
        # Running calls get as long as in production when code changes; changes in pyproject.toml apply at once.
        self._changes = changes(self._roots(), self._stopping)
        make = partial(self.make_workers, forks, drain=self._drain)
        self._generations = Generations(self._workers, make, self)
        self._generations.renew()

    def announce(self, status: StackStatus) -> None:
        super().announce(status)
        self._face.is_heard = False  # it serves on, also if nobody reads
        self._announced.set()

    def tend(self) -> None:
        super().tend()
        if self._generations is not None:
            self._generations.tend()

    def await_workers(self) -> None:
        """Watch the sources until the end, from a thread."""
        settings = self.settings
        calls = self._calls = _Calls(self._face, settings)
        threading.Thread(target=calls.follow, name="forge-calls", daemon=True).start()
        if can_ask():
            threading.Thread(target=self._take_keys, args=(calls,), name="forge-keys", daemon=True).start()
        try:
            for files in self._changes:
                self.saved(files)
        except ForgeError as error:
            self._tell({"event": "unwatched", "error": error.message}, error.message, "red")

    def saved(self, files: list[Path]) -> None:
        self._has_saved = True
        self._tell({"event": "saved", "files": [str(file) for file in files]}, f"{_names(files)} saved ...")
        if self._generations is not None:
            self._generations.renew()

    def _roots(self) -> set[Path]:
        project = find_project()
        roots = {Path.cwd(), self.settings.project if project is None else project.folder}
        return roots | {Path(one.partition(":")[0]).resolve().parent for one in self._references if is_path(one)}

    def stop(self) -> None:
        self._stopping.set()
        self._announced.set()
        if self._calls is not None:
            self._calls.stop()
        if self._generations is not None:
            self._generations.close()
        hurry = threading.Timer(self.settings.drain, self.hurry)  # the workers know of a longer time
        hurry.daemon = True
        hurry.start()
        super().stop()
        hurry.cancel()

    def suggest_own(self) -> None:
        given = {tool.spec.name for tool in load_tools()}

        async def hosted(store: Store) -> list[ToolSpec]:
            own = [spec for spec in (await store.directories.read()).enabled if spec.name not in given]
            return [spec for spec in own if await store.catalogue.hosts_of(spec.name, spec.digest)]

        with suppress(ForgeError):  # it is only a suggestion
            own = with_store(hosted, self.settings)
            with self._speaking:
                if not self._has_saved:  # who saves needs none, and expects the new code's line next
                    self.suggest(own)

    # Events of the workers.

    def renewed(self, seconds: float) -> None:
        first, self._has_served = not self._has_served, True
        self.declare_ready()
        ready = f"Ready. {KEYS}" if can_ask() else "Ready."
        said = ready if first else f"New code serves after {took(seconds * 1000)}."
        self._tell({"event": "serving", "seconds": round(seconds, 3)}, said, "green")
        if first and not self._face.is_json:
            self.suggest_own()

    def suggest(self, own: Sequence[ToolSpec]) -> None:
        """Suggest nothing before the workers have imported the tools of the user: this process never does."""
        if own:
            super().suggest(own)

    def refused(self, said: str) -> None:
        goes_on = " The old code goes on." if self._has_served else " Mend it and save."
        self._tell({"event": "refused", "error": said}, said + goes_on, "red")

    def died(self, worker: SupervisedWorker, code: int) -> None:
        said = f"The {worker.name} worker ended with {code}; another is started. Its log is in {worker.log.parent}."
        self._tell({"event": "ended", "worker": worker.name, "code": code}, said, "yellow")
        super().died(worker, code)

    def _tell(self, document: dict[str, Any], said: str, style: str = "dim") -> None:
        if threading.current_thread() is not threading.main_thread():  # which announces
            self._announced.wait()  # workers may be quicker
        with self._speaking:
            if self._face.is_json:
                self._face.line(document)
            else:
                self._face.say(said, style=style)

    def _take_keys(self, calls: "_Calls") -> None:
        keys, terminal = {b"f": calls.show_failure, b"r": calls.run_again}, sys.stdin.fileno()
        while not self._stopping.wait(POLL_SECONDS):
            if not _is_ours(terminal):
                continue
            with _single_keys(terminal):
                while _is_ours(terminal) and not self._stopping.is_set():
                    if select.select([terminal], [], [], POLL_SECONDS)[0] and _is_ours(terminal):
                        if not (key := os.read(terminal, 1)):
                            return  # the terminal is gone
                        keys.get(key, lambda: None)()


class _Calls:
    """Shows new calls as they are made, report and end. It runs on its own event loop."""

    def __init__(self, face: Face, settings: Settings) -> None:
        self._face = face
        self._settings = settings
        self._loop = asyncio.new_event_loop()
        self._task: asyncio.Task[None] | None = None
        self._client: forge_tools.ExecutorClient | None = None
        self._seen: deque[str] = deque(maxlen=10 * MOST_FOLLOWED)
        self._last: str | None = None
        self._failed: str | None = None

    def follow(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner, suppress(asyncio.CancelledError):
            runner.run(self._follow())

    def stop(self) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(lambda: self._task and self._task.cancel())

    def show_failure(self) -> None:
        if self._failed is None:
            self._face.note("Nothing has failed yet.")
            return
        with suppress(SystemExit):  # the way commands end
            import_module("forge_tools.cli.main").main(["show", self._failed])

    def run_again(self) -> None:
        last, client = self._last, self._client
        if last is None or client is None:
            self._face.note("Nothing was called yet.")
            return

        async def replay() -> None:
            try:
                await client.calls.replay(last, reason="run again by a key of forge-tools dev")
            except ForgeError as error:
                self._face.note(error.message, style="yellow")

        asyncio.run_coroutine_threadsafe(replay(), self._loop)

    async def _follow(self) -> None:
        self._task = asyncio.current_task()
        since = datetime.now(UTC)
        async with forge_tools.ExecutorClient(self._settings) as client, asyncio.TaskGroup() as following:
            self._client = client
            while True:
                try:
                    page = await client.history.list(since=since, limit=MOST_FOLLOWED)
                except ForgeError as error:
                    self._face.note(error.message, style="yellow")
                    page = []
                for record in [one for one in reversed(page) if one.id not in self._seen]:
                    self._seen.append(record.id)
                    since = max(since, record.queued_at)
                    following.create_task(self._show(client, record))
                await asyncio.sleep(POLL_SECONDS)

    async def _show(self, client: forge_tools.ExecutorClient, record: ExecutionRecord) -> None:
        self._last = record.id
        handle = client.calls.attach(record.id)
        with suppress(ForgeError):  # it was pruned in the meantime; there is nothing to show
            async with aclosing(handle.events()) as events:
                async for event in events:
                    if isinstance(event, Ended):
                        self._tell_end(await handle.record(), event.result)
                    else:
                        self._tell(record, event)

    def _tell(self, record: ExecutionRecord, event: CallEvent) -> None:
        said, name = said_of(event), type(event).__name__.lower()
        if self._face.is_json:
            self._face.line({"event": name, "id": record.id, "tool": record.tool, "said": said})
            return
        for line in said.splitlines():
            self._face.say(f"  {one_line(record.tool)} | {line}", style="dim")

    def _tell_end(self, record: ExecutionRecord, result: ToolResult) -> None:
        if not result.success:
            self._failed = record.id
        if self._face.is_json:
            self._face.line({"event": "ended", "id": record.id, "tool": record.tool, **result.to_dict()})
            return
        raised = Diagnosis.read(record.diagnosis)
        error = result.error if raised is None else from_here(raised.summary)
        what = one_line(as_text(result.output) if result.success else f"{result.error_code or ''} {error}")
        what = what if len(what) <= ENDED_WIDTH else f"{what[: ENDED_WIDTH - 1]}…"
        mark = "✓" if result.success else "✗"
        said = f"{mark} {one_line(record.tool)}  {took(record.duration_ms)}  {what}  {record.id}"
        self._face.say(said, style="" if result.success else "red")


def said_of(event: CallEvent) -> str:
    match event:
        case Output():
            return event.text
        case Progress():
            return measured(event)
        case Note():
            return noted(event)
        case StateChange(status=ExecutionStatus.QUEUED, reason=None):
            return ""
        case StateChange():
            again = f", attempt {event.attempt}" if event.attempt > 1 else ""
            return f"{event.status.value}{again}" + (f": {one_line(event.reason)}" if event.reason else "")
        case _:
            return str(event)


def _names(files: list[Path]) -> str:
    names = sorted({file.name for file in files})
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _is_ours(terminal: int) -> bool:
    """Return whether we may use it: the kernel stops a job in the background that reads keys or sets how they are read."""
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:  # it controls no job of ours
        return True


@contextmanager
def _single_keys(terminal: int) -> Iterator[None]:
    """Read keys one by one without echo; Ctrl-C stays a signal."""
    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)
    try:
        yield
    finally:
        with suppress(termios.error):  # it is gone
            if _is_ours(terminal):
                termios.tcsetattr(terminal, termios.TCSADRAIN, before)
