"""The worker from a lane's view: it records reports and answers requests as the test says."""

from typing import Any

from forge_tools.model import ExecutionContext
from forge_tools.model.execution import Claim, Outcome
from forge_tools.sandbox.reports import ReportBuffer
from forge_tools.storage import Store
from tests.waiting import reached
from workers.artifacts import ArtifactDesk


class LaneHost:
    """A lane is started with it: `await bench.lane.start(bench)`."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []
        self.demoted: list[tuple[str, str]] = []
        self.given_up: list[str] = []
        self.artifacts: tuple[ArtifactDesk, Store] | None = None
        """Who answers what is asked of artifacts, and from where."""

    until = staticmethod(reached)

    def finished(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)

    def begin_reports(self, claim: Claim) -> ReportBuffer:
        return ReportBuffer(lambda: None)

    def slot_opened(self) -> None:
        """Nobody waits for one."""

    async def answer(self, request: dict[str, Any], context: ExecutionContext) -> dict[str, Any]:
        assert self.artifacts is not None
        desk, store = self.artifacts
        return await desk.answer(store.artifacts, request, context)

    def demote(self, tool: str, why: str) -> None:
        self.demoted.append((tool, why))

    def replace_process(self, why: str) -> None:
        self.given_up.append(why)
