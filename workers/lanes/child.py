"""The process lane, child's half: a process of Celery's pool that runs calls for the engine, one at a time."""

import asyncio
import itertools
import logging
import multiprocessing
import os
import socket
import stat
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import thread as executor_threads
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from forge_tools.config import Settings
from forge_tools.errors import ErrorCode, ForgeError
from forge_tools.model.calls import ExecutionContext
from forge_tools.model.execution import Claim, ExecutionStatus, Outcome
from forge_tools.model.scope import CallScope, Told
from forge_tools.sandbox.configured import User
from forge_tools.sandbox.paths.confinement import Descriptor, kernel_confines
from forge_tools.sandbox.processes.endings import has_unmarked_descendants, reap_adopted
from forge_tools.sandbox.processes.environment import Marking
from forge_tools.sandbox.processes.trees import adopt_orphans, descendants
from forge_tools.sandbox.reports import ReportBuffer
from forge_tools.sandbox.walls.cgroups import Cgroup, Limits
from forge_tools.sandbox.walls.privileges import drop_capabilities, gain_nothing, open_up
from forge_tools.sandbox.walls.profile import Profile
from forge_tools.tool.executor import ToolExecutor
from forge_tools.tool.failures import frame_of
from workers.capture import ChildOutput, Pipes, siblings_ends
from workers.lanes.base import execute, outcome_of_task, scope_of
from workers.lanes.frames import ChildEnd, Frame, fields_of
from workers.lanes.process_state import ProcessState, Surroundings, fell_short, limit_this_process, shortage
from workers.outcomes import unwalled
from workers.remote_store import WorkerArtifacts

LINGER_SECONDS = 2.0
SEND_SECONDS = 0.05
"""The pause between two frames of reports; the engine writes less often."""
SECRETS = (
    *(f"FORGE_{name.upper()}" for name in Settings.model_fields if name.endswith(("_url", "_password_file"))),
    "FORGE_MCP_TOKEN",
    "FORGE_DIGEST_KEY",
    "FORGE_AUDIT_KEY",
    "FORGE_ENCRYPTION_KEYS",
    "FORGE_SECRETS_DIR",
    "DATABASE_URL",
    "PGPASSWORD",
)

PROGRAM = multiprocessing.current_process()
"""Children are programs of their own for `multiprocessing`: billiard puts its own processes there, which may start none."""

VERDICTS = ("retry_in", "give_back")
"""Fields of an outcome that the engine decides."""

logger = logging.getLogger(__name__)


class Child:
    """Runs one call at a time for the engine in the parent."""

    def __init__(
        self, executor: ToolExecutor, max_output_bytes: int, *, memory_limit: int = 0, user: User | None = None
    ) -> None:
        self._executor = executor
        if executor.reach is not None and isinstance(artifacts := executor.reach.artifacts, WorkerArtifacts):
            own = WorkerArtifacts(artifacts.max_bytes, self.ask)
            executor.reach = replace(executor.reach, artifacts=own)
        self._max_output_bytes = max_output_bytes
        self._memory_limit = memory_limit
        self._user = user
        self._body: asyncio.Task[Outcome] | None = None
        self._claim = ("", 0)
        self._is_cancelled = False
        self._asked: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._numbers = itertools.count()
        self._walls: dict[str, Any] | None = None
        self._is_walled = False
        self._fault: str | None = None

    def serve(self, parent: int, end: socket.socket, output: ChildOutput, group: Cgroup) -> NoReturn:
        """Run calls until the engine is gone; call it when the pool has arranged its signals, which are to stay so.

        `end` is our end of the pair that we share with the engine; `group` bounds this process and what it starts.
        """
        try:
            group.enter(os.getpid())
            Limits.given()._replace(home="").give()  # what bodies start stays in this group, whose limits are a call's
            self._begin(parent, end, output)
            talk = self._loop.create_task(self._talk())
            talk.add_done_callback(lambda _: self._loop.stop())
            while not talk.done():  # a body may stop the loop, too
                self._run_loop()
            talk.result()
        except BaseException as error:  # noqa: BLE001  whatever it is, SystemExit too, there is nobody else to tell it
            logger.critical("This process cannot serve", extra={"error": str(error)})
        finally:
            os._exit(0)

    def _run_loop(self) -> None:
        try:
            self._loop.run_forever()
        except (KeyboardInterrupt, SystemExit):  # raised by what a body left on the loop: no reason to end a later one
            logger.exception("A tool tried to end its process, which serves on")

    def _begin(self, parent: int, end: socket.socket, output: ChildOutput) -> None:
        """Become a separate process group, and forget what a tool must not know.

        A child whose parent died during the fork would live for ever, so it ends here instead.
        """
        if self._user is not None:
            for number in output.numbers:
                os.fchown(number, self._user.uid, self._user.gid)  # or programs could not open /dev/stdout
            self._user.become()
            os.environ.update(self._user.variables)
        open_up()
        gain_nothing()
        drop_capabilities()
        os.setpgid(0, 0)
        if os.getppid() != parent:
            os._exit(1)
        for sibling in siblings_ends():
            let_go(sibling)
        _let_go_of_the_parents({end.fileno(), *output.numbers})
        self._line = ChildEnd(end)
        os.register_at_fork(after_in_child=self._let_go_in_copies)  # otherwise our death would go unnoticed
        for name in SECRETS:
            os.environ.pop(name, None)
        self._marking = Marking()
        multiprocessing.process._current_process = PROGRAM  # type: ignore[attr-defined]  # noqa: SLF001  there is no public way
        adopt_orphans()
        limit_this_process(self._memory_limit)
        self._surroundings = Surroundings()
        self._reports = ReportSender(self._line.send)
        self._pipes, self._left = Pipes(self._reports.flush, output), frozenset[int]()
        self._loop = asyncio.new_event_loop()  # not before the fork: children would share its wake-up pipe
        asyncio.set_event_loop(self._loop)

    async def ask(self, request: dict[str, Any], _: ExecutionContext) -> dict[str, Any]:
        """Make the engine answer a request of the running body, whose call it knows. Callable from any loop."""
        if asyncio.get_running_loop() is self._loop:
            return await self._ask(request)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._ask(request), self._loop))

    async def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        number = next(self._numbers)
        self._asked[number] = self._loop.create_future()
        file, request = request.get("file"), {name: value for name, value in request.items() if name != "file"}
        self._say("asked", file, number=number, artifact=request, has_file=file is not None)
        try:
            return await self._asked[number]
        finally:
            del self._asked[number]

    async def _talk(self) -> None:
        over = asyncio.Event()
        await self._executor.initialize()
        self._line.hear_on(self._loop, partial(self._or_end, self._hear), over)
        self._own_tasks = asyncio.all_tasks(self._loop)
        self._own_threads = set(threading.enumerate())
        self._first_state = ProcessState()
        self._line.send({"kind": "answering"})
        while not over.is_set():
            with suppress(asyncio.CancelledError):  # a body may cancel every task there is
                await over.wait()

    def _hear(self, frame: Frame) -> None:
        if "run" in frame:
            claim = Claim(**frame["run"], token="", reply_to=None)
            self._claim, self._is_cancelled = (claim.id, claim.attempt), False
            self._marking.put(claim.id, claim.attempt)
            scope = scope_of(claim, self._reports.begin(claim.id, claim.attempt), self._pipes.catch_up)
            self._pipes.begin(scope, claim.secrets)
            self._first_state.accept_streams()
            self._walls = frame.get("walls", self._walls)  # a call cancelled before its first step applies none
            self._body = self._loop.create_task(self._run(claim, scope, frame.get("tier")))
            self._body.add_done_callback(partial(self._or_end, self._report, claim, self._loop.time()))
            self._say("started")  # it has not yet, but can
        elif "cancel" in frame:
            if self._body is not None:
                self._is_cancelled = True
                self._body.cancel()
        elif "answer" in frame:
            asked = self._asked.get(frame["answer"])
            if asked is not None and not asked.done():
                asked.set_result(frame["artifact"])
        elif "answer?" in frame:
            self._line.send({"kind": "answering"})

    async def _run(self, claim: Claim, scope: CallScope, tier: str | None) -> Outcome:
        if self._walls is not None and not self._is_walled:
            try:
                self._wall_in(Profile(*self._walls["profile"]), self._walls["scratch"], Path(self._walls["cache"]))
            except (OSError, ForgeError) as error:
                outcome = unwalled(claim, error)
                self._fault = outcome.error
                return outcome
        limits = {"max_output_bytes": self._max_output_bytes, "memory_limit": self._memory_limit}
        return await execute(self._executor, claim, scope=scope, walls=tier, **limits)

    def _wall_in(self, profile: Profile, scratch: str, cache: Path) -> None:
        """Apply walls to this thread, and check that there are no others: later ones inherit them.

        Raises:
            OSError: the kernel refuses.
            ForgeError: a thread that is not ours may be anywhere.
        """
        profile.apply(scratch)
        kernel_confines.cache_clear()  # walls may refuse what it asks about
        self._pipes.start_anew()
        self._first_state.accept_streams()
        _await_no_threads_but({os.getpid(), *(one.native_id or 0 for one in self._pipes.threads)})
        self._surroundings.set_variables(HOME=scratch, XDG_CACHE_HOME=f"{scratch}/.cache", TMPDIR=scratch)
        tempfile.tempdir, self._is_walled = None, True
        if self._executor.reach is not None:
            self._executor.reach = replace(self._executor.reach, cache=cache)

    def _or_end(self, step: Callable[..., None], *arguments: Any) -> None:
        """Take a step, or end this process if it fails: the engine would believe that the body still runs."""
        try:
            step(*arguments)
        except BaseException as error:  # noqa: BLE001  a body may have changed anything here
            logger.critical("This process cannot begin a call or report its end", extra={"error": repr(error)})
            os._exit(1)

    def _report(self, claim: Claim, started: float, body: "asyncio.Task[Outcome]") -> None:
        self._body = None
        self._marking.clear()
        self._surroundings.restore()
        if _has_children():
            reap_adopted()
        after_ms = (self._loop.time() - started) * 1000
        outcome = outcome_of_task(body, claim, after_ms, is_asked=self._is_cancelled)
        unfit = self._unfit(outcome)  # before its output gets other pipes
        self._pipes.end(are_left=self._has_left_others())
        facts: dict[str, Any] = {"is_tainted": self._is_tainted(outcome, body), "unfit": unfit}
        self._reports.end()
        self._say("ended", **fields_of(outcome, "id", "attempt", "token", *VERDICTS), **facts)

    def _unfit(self, outcome: Outcome) -> str | None:
        if fell_short(outcome) or self._fault is not None:
            return self._fault or outcome.error
        return self._first_state.changes() or shortage()

    def _is_tainted(self, outcome: Outcome, body: "asyncio.Task[Outcome]") -> bool:
        """Return whether what was to stop goes on in a way that only the end of this process stops, or may hold memory.

        A body that ended well may have left threads, tasks and processes on purpose.
        """
        if outcome.error_code == ErrorCode.OUT_OF_MEMORY:
            return True
        if not body.cancelled() and outcome.status is not ExecutionStatus.TIMED_OUT:
            return False
        tasks = asyncio.all_tasks(self._loop) - self._own_tasks - {body}
        threads = set(threading.enumerate()) - self._own_threads - {self._reports.thread, *self._pipes.threads}
        return bool(tasks) or any(map(_is_busy, threads)) or has_unmarked_descendants(os.getpid())

    def _has_left_others(self) -> bool:
        before, self._left = self._left, frozenset[int]()
        if _has_children():
            self._left = frozenset(process.pid for process in descendants(os.getpid()))
        return bool(self._left - before)

    def _say(self, kind: str, file: Descriptor | None = None, **fields: Any) -> None:
        id_, attempt = self._claim
        self._line.send({"kind": kind, "id": id_, "attempt": attempt, **fields}, file)

    def _let_go_in_copies(self) -> None:
        self._line.forget_sender()
        self._pipes.let_go()
        let_go(self._line.fileno())


class ReportSender:
    """Sends a body's reports on a separate thread, since a body may block the loop; the first report starts it."""

    def __init__(self, send: Callable[[Frame], None]) -> None:
        self._send = send
        self._claim = ("", 0)
        self._buffer: ReportBuffer | None = None
        self._news = threading.Event()
        self._sending = threading.Lock()
        self.thread: threading.Thread | None = None
        os.register_at_fork(after_in_child=self._be_silent)

    def begin(self, execution_id: str, attempt: int) -> ReportBuffer:
        """Create the buffer of the body that is about to start."""
        self._claim = execution_id, attempt
        self._buffer = ReportBuffer(self._hear, interval=SEND_SECONDS)
        return self._buffer

    def flush(self) -> None:
        """Send at once what there is: the process may not last."""
        with self._sending:
            if self._buffer is not None:
                self._tell(self._buffer.take(is_urgent=True))

    def end(self) -> None:
        """Send what is left: the body is over, and its outcome comes next."""
        with self._sending:
            buffer, self._buffer = self._buffer, None
            self._tell(buffer.close() if buffer is not None else [])

    def _hear(self) -> None:
        if self.thread is None:
            with self._sending:
                if self.thread is None:
                    thread = threading.Thread(target=self._send_for_ever, name="forge-reports", daemon=True)
                    with suppress(RuntimeError):  # there is no room for one; reports are sent at the end
                        thread.start()
                        self.thread = thread
        self._news.set()

    def _send_for_ever(self) -> None:
        while True:
            self._news.wait()
            self._news.clear()
            with self._sending:
                buffer = self._buffer
                if buffer is not None:
                    self._tell(buffer.take())
                    if buffer.is_waiting:
                        self._news.set()
            time.sleep(SEND_SECONDS)

    def _tell(self, told: Sequence[Told]) -> None:
        if told:
            id_, attempt = self._claim
            values = [list(fields_of(one).values()) for one in told]
            self._send({"kind": "reported", "id": id_, "attempt": attempt, "told": values})

    def _be_silent(self) -> None:
        """In a copy of this process that a tool forked: it has no such thread, and a lock may be held for ever."""
        self._sending = threading.Lock()
        if self._buffer is not None:
            self._buffer.silence()


def _await_no_threads_but(ours: Collection[int]) -> None:
    """Wait, since a thread that has returned exists a moment longer.

    Raises:
        ForgeError: others remain.
    """
    deadline = time.monotonic() + LINGER_SECONDS
    while others := {int(task.name) for task in Path("/proc/self/task").iterdir()}.difference(ours):
        if time.monotonic() > deadline:
            raise ForgeError(f"initialize() of a tool has started threads; {len(others)} of them still run")
        time.sleep(LINGER_SECONDS / 1000)


def _is_busy(thread: threading.Thread) -> bool:
    """Return whether a thread works; an idle one of an executor waits in its outermost function."""
    frame = frame_of(thread)
    if frame is None:
        return False
    return (frame.f_code.co_filename, frame.f_code.co_name) != (executor_threads.__file__, "_worker")


def _has_children() -> bool:
    """Return whether there is any to reap: asking costs a tenth of reading their list, and most bodies start none."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _let_go_of_the_parents(spare: Collection[int]) -> None:
    """Close what the fork inherited: sockets to database, broker and other children, and files such as SQLite's.

    Pipes of other children are closed, too: both of their ends are here. A stray write to a number that a tool takes
    for its own must not reach any of them.
    """
    opened: dict[int, os.stat_result] = {}
    for fd in [int(entry.name) for entry in Path("/dev/fd").iterdir()]:
        with suppress(OSError):  # the descriptor of the listing itself is closed by now
            opened[fd] = os.fstat(fd)
    ends = Counter(found.st_ino for found in opened.values() if stat.S_ISFIFO(found.st_mode))
    for fd, found in opened.items():
        is_the_parents = stat.S_ISSOCK(found.st_mode) or stat.S_ISREG(found.st_mode) or ends[found.st_ino] > 1
        if fd > 2 and fd not in spare and is_the_parents:
            let_go(fd)


def let_go(fd: int) -> None:
    """Replace a descriptor rather than close it: an object of the parent's may still use the number."""
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.dup2(nothing, fd, inheritable=False)
    os.close(nothing)
