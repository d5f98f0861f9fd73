"""Carries faults out: one method each, named as in the schedule."""

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from typing import Any

from kombu.exceptions import OperationalError

from forge_tools.broker.celery_app import celery_app
from forge_tools.broker.message import TASK, queue_name
from forge_tools.model import Lane, new_id
from tests.chaos.brokers import LANES, BrokerUnderFire, queues
from tests.chaos.crew import Crew, Worker
from tests.chaos.databases import OnStarter, UnderFire
from tests.chaos.schedule import LONG, Step
from tests.garbage import bad_messages
from tests.waiting import within

AHEAD = 600.0
"""Seconds by which the clock is set: as long as a call may wait until it expires."""

NOTICED_WITHIN = 3.0
"""Seconds within which a worker has surely looked at the clock, if the database is in reach."""

MOST_GARBAGE = 12
ALONE = 3
"""Of the ids of one message that are sent once more, each in a message of its own."""
"""Messages into one queue at a time."""


class Faults:
    """The hand that does it. `recent` gives ids of calls submitted so far, newest last."""

    def __init__(
        self,
        crew: Crew,
        broker: BrokerUnderFire,
        database: UnderFire,
        *,
        on_starter: OnStarter,
        recent: Callable[[], list[str]],
    ) -> None:
        self._crew = crew
        self._on_starter = on_starter
        self._broker = broker
        self._database = database
        self._recent = recent
        self._struck: set[str] = set()
        self._taking_turns = asyncio.Lock()
        self._witness: Worker | None = None
        self._app = celery_app(broker.url)
        self.done: Counter[str] = Counter()
        self.garbage = 0
        """How many messages it has written that are none."""

    async def carry_out(self, step: Step) -> None:
        """Do it, and undo it after its time; counted if there was somebody to meet it."""
        act: Callable[[Step], Awaitable[bool]] = getattr(self, step.fault.value)
        async with self._taking_turns if step.fault in LONG else nullcontext():
            if await act(step):
                self.done[step.fault.value] += 1

    def close(self) -> None:
        self._app.close()

    # Workers.

    async def kill_child(self, step: Step) -> bool:
        worker = self._pick(step, "process")
        children = worker.children() if worker else []
        if worker is None or not children:
            return False
        child = children[step.number % len(children)]
        self._crew.deaths.children[child] = worker.pid
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        return True

    async def kill_worker(self, step: Step) -> bool:
        return self._end(step, signal.SIGKILL, "killed")

    async def stop_worker(self, step: Step) -> bool:
        return self._end(step, signal.SIGTERM, "stopped")

    async def roll_worker(self, step: Step) -> bool:
        """Ask it to stop, and start its successor beside it at once."""
        worker = self._pick(step)
        if worker is None or worker not in self._crew.workers:
            return False
        self._crew.relieve(worker)
        return self._end_of(worker, signal.SIGTERM, "stopped")

    async def hurry_worker(self, step: Step) -> bool:
        """Ask it to stop at once."""
        return self._end(step, signal.SIGQUIT, "stopped")

    async def pause_worker(self, step: Step) -> bool:
        """Suspend it for less than a lease: nothing may come of that."""
        worker = self._pick(step)
        return worker is not None and await self._suspend([worker], step)

    async def freeze_worker(self, step: Step) -> bool:
        """Suspend it until it has been found dead, then let it wake up and write."""
        worker = self._pick(step)
        if worker is None:
            return False
        self._crew.deaths.workers[worker.pid] = "frozen past its lease"
        return await self._suspend([worker], step)

    async def suspend_all(self, step: Step) -> bool:
        """Suspend workers and broker for longer than a lease, as a laptop does: that condemns nobody."""
        with self._taking("broker") as is_free:
            broker = [self._broker.process.pid] if is_free else []
            with suspended(broker):
                return await self._suspend(self._whole(), step)

    # The broker.

    async def kill_broker(self, step: Step) -> bool:
        with self._taking("broker") as is_free:
            if is_free:
                self._broker.kill()
                await asyncio.sleep(step.seconds)
                await self._on_starter(self._broker.start)
        return is_free

    async def pause_broker(self, step: Step) -> bool:
        with self._taking("broker") as is_free:
            if is_free:
                with suspended([self._broker.process.pid]):
                    await asyncio.sleep(step.seconds)
        return is_free

    async def cut_broker(self, step: Step) -> bool:
        return await self._tell_broker(self._broker.cut)

    async def forget_messages(self, step: Step) -> bool:
        """Lose every message that waits."""
        return await self._tell_broker(self._broker.forget)

    async def reorder_messages(self, step: Step) -> bool:
        return await self._tell_broker(lambda: self._broker.reorder(step.number % 7 + 1))

    async def repeat_messages(self, step: Step) -> bool:
        """Wake again for calls that were sent for, together and alone, in either lane, for attempts past, present and to come."""
        recent = self._recent()
        if not recent:
            return False
        numbers = random.Random(step.number)
        ids = numbers.choices(recent[-40:], k=numbers.randint(1, 30))
        wakeups = [[one, numbers.choice((0, 0, 0, 1, 2, 3))] for one in ids]
        messages = [wakeups, *([one] for one in wakeups[:ALONE])]
        return all([await self._publish([message], lane) for lane in LANES for message in messages])

    async def forge_messages(self, step: Step) -> bool:
        """Wake for what nobody submitted, and write into every queue what is no message at all."""
        numbers = random.Random(step.number)
        published = [await self._publish([[[new_id(), 0]]], lane) for lane in LANES]
        messages = numbers.sample(bad_messages(numbers), MOST_GARBAGE)
        for queue in queues({worker.post.host for worker in self._crew.workers}):
            await self._tell_broker(lambda queue=queue: self._write(queue, messages))
        return all(published)

    def _write(self, queue: str, messages: Sequence[bytes]) -> None:
        self.garbage += self._broker.put(queue, messages)

    async def forge_limits(self, step: Step) -> bool:
        """Wake for real calls in messages that would have Celery end them at once."""
        wakeups = [[one, 0] for one in self._recent()[-10:]]
        return bool(wakeups) and all([await self._publish([[wakeup]], "process", time_limit=1) for wakeup in wakeups])

    # The database.

    async def kill_database(self, step: Step) -> bool:
        return await self._strike(self._database.kill(step.seconds))

    async def cut_database(self, step: Step) -> bool:
        return await self._strike(self._database.cut(), is_lasting=False)

    async def pause_database(self, step: Step) -> bool:
        return await self._strike(self._database.pause(step.seconds))

    async def take_database_away(self, step: Step) -> bool:
        """Keep it away for longer than a lease: that condemns nobody."""
        await self._database_is_whole()
        return await self._strike(self._database.go_away(step.seconds))

    async def swallow_database(self, step: Step) -> bool:
        """Leave connections open and lose all that is sent, for longer than a lease: that condemns nobody."""
        await self._database_is_whole()
        return await self._strike(self._database.swallow(step.seconds))

    async def set_clock(self, step: Step) -> bool:
        """Set the clock that all deadlines are moments of, and later set it right: nothing comes of either."""
        await self._database_is_whole()
        return await self._strike(self._set_clock_for(step.seconds), is_lasting=False)

    async def _set_clock_for(self, seconds: float) -> None:
        for ahead, lasts in ((AHEAD, seconds), (0.0, 0.0)):
            async with self._witnessed():
                await self._database.set_clock(ahead)
            await asyncio.sleep(lasts)

    @asynccontextmanager
    async def _witnessed(self) -> AsyncIterator[None]:
        """Spare a worker from before until after: deadlines follow a clock that somebody saw being set."""
        time_left = within(60, "nobody serves")
        while not (staying := self._staying()) and next(time_left):
            await asyncio.sleep(0.1)
        self._witness = max(staying, key=lambda worker: worker.post.lane == "process")  # no tool can end that one
        try:
            await asyncio.sleep(NOTICED_WITHIN)
            yield
            await asyncio.sleep(NOTICED_WITHIN)
        finally:
            self._witness = None

    def _staying(self) -> list[Worker]:
        """Those that serve, and were not asked to stop."""
        whole = [worker for worker in self._whole() if worker.pid not in self._crew.deaths.workers]
        return [worker for worker in whole if worker.is_ready]

    async def _database_is_whole(self) -> None:
        time_left = within(600, "the database stays struck")
        while "database" in self._struck and next(time_left):
            await asyncio.sleep(0.1)

    async def _strike(self, blow: Coroutine[Any, Any, None], *, is_lasting: bool = True) -> bool:
        with self._taking("database") as is_free, self._taking("writers" if is_lasting and is_free else ""):
            if is_free:
                self._meet_leavers()
                await blow
            else:
                blow.close()
        return is_free

    def _meet_leavers(self) -> None:
        """Who cannot write when it leaves cannot say how its bodies ended."""
        if self._is_out_of_reach():
            self._crew.deaths.meet(*(worker.pid for worker in self._crew.living()))

    def _is_out_of_reach(self) -> bool:
        """Whether the database keeps writers waiting; one who is suspended may hold the lock of a file."""
        has_sleepers = any(worker.is_suspended for worker in self._crew.living())
        return "writers" in self._struck or (has_sleepers and self._database.name == "sqlite")

    @contextmanager
    def _taking(self, service: str) -> Iterator[bool]:
        """Whether nothing is being done to that service yet; nothing else is until the end of this."""
        is_free = service not in self._struck
        self._struck |= {service}
        try:
            yield is_free
        finally:
            if is_free:
                self._struck -= {service}

    def _whole(self, lane: Lane | None = None) -> list[Worker]:
        living = self._crew.living(lane)
        return [worker for worker in living if not worker.is_suspended and worker is not self._witness]

    def _pick(self, step: Step, lane: Lane | None = None) -> Worker | None:
        workers = self._whole(lane)
        return workers[int(step.pick * len(workers))] if workers else None

    def _end(self, step: Step, number: signal.Signals, how: str) -> bool:
        worker = self._pick(step)
        return worker is not None and self._end_of(worker, number, how)

    def _end_of(self, worker: Worker, number: signal.Signals, how: str) -> bool:
        deaths = self._crew.deaths
        if number == signal.SIGTERM and worker.pid not in deaths.workers and not self._is_out_of_reach():
            deaths.stopped[worker.pid] = time.monotonic()
        else:
            deaths.meet(worker.pid)
        deaths.workers.setdefault(worker.pid, how)
        worker.signal(number)
        return True

    async def _suspend(self, workers: Sequence[Worker], step: Step) -> bool:
        """Suspend them, alone or with all that they started."""
        trees = [pid for worker in workers for pid in worker.tree() if step.number % 2]
        for worker in workers:
            worker.is_suspended = True
        self._crew.deaths.meet(*(worker.pid for worker in workers))
        self._meet_leavers()
        try:
            with suspended([*(worker.pid for worker in workers), *trees]):
                await asyncio.sleep(step.seconds)
        finally:
            for worker in workers:
                worker.is_suspended = False
        return True

    async def _tell_broker(self, order: Callable[[], None]) -> bool:
        def tell() -> bool:
            with suppress(*self._broker.away):
                order()
                return True
            return False

        return await asyncio.to_thread(tell)

    async def _publish(self, arguments: Any, lane: Lane, **headers: Any) -> bool:
        def publish() -> bool:
            with suppress(OperationalError, *self._broker.away):
                self._app.send_task(TASK, args=arguments, queue=queue_name("default", lane), retry=False, **headers)
                return True
            return False

        return await asyncio.to_thread(publish)


@contextmanager
def suspended(pids: Sequence[int]) -> Iterator[None]:
    """Stop processes, and let go on those that are still there."""
    _signal(pids, signal.SIGSTOP)
    try:
        yield
    finally:
        _signal(pids, signal.SIGCONT)


def _signal(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
