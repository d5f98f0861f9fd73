"""The async lane: one tool loop on its own thread runs up to `concurrency` bodies that only await."""

import asyncio
import logging
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from forge_tools.executor import ToolExecutor
from forge_tools.records import Claim, Outcome
from workers.lanes.base import Body, Finished, Verdict, execute, outcome_of_task
from workers.lanes.guard import Guard
from workers.outcomes import cancelled, timed_out

logger = logging.getLogger(__name__)


class LoopLane:
    """Bodies on a loop of their own, so that a stuck tool never stops the engine."""

    def __init__(
        self, executor: ToolExecutor, finished: Finished, *, concurrency: int, kill_grace: float, max_output_bytes: int
    ) -> None:
        self._executor = executor
        self._finished = finished
        self._concurrency = concurrency
        self._kill_grace = kill_grace
        self._max_output_bytes = max_output_bytes
        self._bodies: dict[tuple[str, int], Body] = {}
        self._tasks: dict[tuple[str, int], asyncio.Task[Outcome]] = {}
        self._done: list[tuple[Body, Outcome]] = []
        self._done_lock = threading.Lock()
        self._thread = threading.Thread(target=self._serve, name="forge-tools-loop", daemon=True)
        self._is_stopped = False
        self._is_over = False

    async def start(self) -> None:
        self._engine = asyncio.get_running_loop()
        self._tools = asyncio.new_event_loop()
        self._thread.start()
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._executor.initialize(), self._tools))

    def free_slots(self) -> int:
        return self._concurrency - len(self._bodies)

    def run(self, claims: Sequence[Claim]) -> None:
        bodies = [Body(claim) for claim in claims]
        for body in bodies:
            self._bodies[body.key] = body
            patience = body.claim.timeout + self._kill_grace
            body.guard = Guard(patience, partial(self._give_up, body, timed_out), patience=self._kill_grace)
        self._tools.call_soon_threadsafe(self._launch, bodies)

    def cancel(self, execution_id: str, attempt: int) -> None:
        body = self._bodies.get((execution_id, attempt))
        if body is None or body.is_cancelled:
            return
        body.is_cancelled = True
        self._tools.call_soon_threadsafe(self._cancel, body)
        self._engine.call_later(self._kill_grace, self._give_up, body, cancelled)

    def running(self) -> list[Claim]:
        return [body.claim for body in self._bodies.values()]

    async def stop(self) -> list[Claim]:
        self._collect()
        self._is_stopped = True
        if self._thread.is_alive():
            winding_down = asyncio.run_coroutine_threadsafe(self._wind_down(), self._tools)
            await asyncio.wait([asyncio.wrap_future(winding_down)], timeout=self._kill_grace * 2)
            self._tools.call_soon_threadsafe(self._end)
            await asyncio.to_thread(self._thread.join, self._kill_grace)
        return self.running()

    # The engine's side: everything above, and what a body's end comes back to.

    def _collect(self) -> None:
        with self._done_lock:
            done, self._done = self._done, []
        for body, outcome in done:
            self._tell(body, outcome)

    def _give_up(self, body: Body, verdict: Verdict) -> None:
        self._collect()
        self._tell(body, verdict(body.claim, body.elapsed_ms))

    def _tell(self, body: Body, outcome: Outcome) -> None:
        if body.is_over or self._is_stopped:
            return
        body.is_over = True
        if body.guard is not None:
            body.guard.stop()
        del self._bodies[body.key]
        self._finished(outcome)

    # The tool loop's side.

    def _serve(self) -> None:
        asyncio.set_event_loop(self._tools)
        while not self._is_over:
            try:
                self._tools.run_forever()
            except (KeyboardInterrupt, SystemExit):  # raised in a task that a tool started and left alone
                logger.exception("A tool tried to end the process; its neighbours go on")
        self._tools.close()

    def _launch(self, bodies: Sequence[Body]) -> None:
        for body in bodies:
            task = self._tools.create_task(execute(self._executor, body.claim, self._max_output_bytes))
            self._tasks[body.key] = task
            task.add_done_callback(partial(self._settle, body))

    def _settle(self, body: Body, task: asyncio.Task[Outcome]) -> None:
        del self._tasks[body.key]
        outcome = outcome_of_task(task, body.claim, body.elapsed_ms)
        with self._done_lock:
            self._done.append((body, outcome))
            is_first = len(self._done) == 1
        if is_first:
            with suppress(RuntimeError):  # the engine's loop has ended: nobody waits for this any more
                self._engine.call_soon_threadsafe(self._collect)

    def _cancel(self, body: Body) -> None:
        task = self._tasks.get(body.key)
        if task is not None:
            task.cancel()

    async def _wind_down(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=self._kill_grace)
        await self._executor.shutdown()

    def _end(self) -> None:
        self._is_over = True
        self._tools.stop()
