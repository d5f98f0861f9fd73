"""Stops a running call as soon as somebody asks for it: a notification names it, its row decides, the heartbeat misses none."""

from collections.abc import Iterable, Sequence
from typing import Any

from forge_tools.broker import Broker
from forge_tools.model import Wakeup
from forge_tools.storage import Store
from forge_tools.storage.heartbeat import CANCELS, Answers, Question
from workers.lanes.base import BodyLane
from workers.services.heartbeat import Asker
from workers.services.service import Service


class Cancels(Service, Asker):
    """Listens on the channel of this worker instance. Anybody may write there: what does not run here is nothing to ask for.

    What is asked for while a statement is under way waits for the next one.
    """

    name = "cancels"
    failure = "Cancels cannot be read; the next heartbeat does"

    def __init__(self, store: Store, worker_id: str, broker: Broker, lane: BodyLane) -> None:
        super().__init__()
        self._store = store
        self._worker_id = worker_id
        self._lane = lane
        broker.listen(worker_id, self._notified)

    def ask(self) -> Sequence[Question[Any]]:
        return (CANCELS,)

    def hear(self, answers: Answers) -> None:
        self._cancel(answers[CANCELS])

    async def step(self) -> None:
        self._cancel(await self._store.transitions.cancels(self._worker_id))

    def _notified(self, notification: bytes) -> None:
        if any(claim.id.encode() in notification for claim in self._lane.running()):
            self.woken.set()

    def _cancel(self, asked: Iterable[Wakeup]) -> None:
        for wakeup in asked:
            self._lane.cancel(wakeup.id, wakeup.attempt)
