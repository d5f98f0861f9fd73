"""What a client does with executions of the past, its own and others': read them, and run them again."""

from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import Any

from forge_tools.client.call import Call
from forge_tools.client.directory import Directory
from forge_tools.client.handle import Handle
from forge_tools.client.intake import Accepted, Rejected
from forge_tools.client.replaying import explained, repeated
from forge_tools.records import (
    ArtifactPage,
    AttemptRecord,
    Event,
    EventRecord,
    ExecutionRecord,
    PageWish,
    Position,
    Progress,
    Replay,
    Sight,
)


class Past(Directory):
    """History as a client sees it."""

    async def get(self, execution_id: str) -> ExecutionRecord:
        """Read one execution, by id or a unique prefix of it."""
        return await self._open_store.history.get(execution_id)

    async def events_of(self, execution_id: str) -> list[Event]:
        """Read what was done to an execution, oldest first."""
        return await self._open_store.history.events(execution_id)

    async def look(self, position: Position) -> Sight:
        """See what an execution has told behind a position, and where it is; `Handle.events` does so again and again."""
        return await self._open_store.reports.look(position)

    async def progress_of(self, execution_ids: Collection[str]) -> Mapping[str, Progress]:
        """Read the newest progress of those executions that have told any."""
        return await self._open_store.reports.progress_of(execution_ids)

    def artifact(self, handle: str) -> AsyncIterator[bytes]:
        """Read the bytes of an artifact part by part, whichever session kept it."""
        return self._open_store.artifacts.contents(handle)

    async def artifact_page(self, handle: str, **wish: int | None) -> ArtifactPage:
        """Read a page of an artifact, whichever session kept it; keywords are the fields of `PageWish`.

        `next` of the page has the keywords that go on.

        Raises:
            ArtifactNotFoundError: there is none of that name, or it has expired.
            InvalidCallError: there is no such page.
        """
        artifacts = self._open_store.artifacts
        return await artifacts.page(await artifacts.named(handle), PageWish(**wish))

    async def history(self, **filters: Any) -> list[ExecutionRecord]:
        """Read executions, newest first; the filters are those of `History.list`."""
        return await self._open_store.history.list(**filters)

    async def attempts(self, **filters: Any) -> list[AttemptRecord]:
        """Read attempts of all executions, newest first; the filters are those of `History.list_attempts`."""
        return await self._open_store.history.list_attempts(**filters)

    async def events(self, **filters: Any) -> list[EventRecord]:
        """Read what was done to executions, newest first; the filters are those of `History.list_events`."""
        return await self._open_store.history.list_events(**filters)

    async def replay(
        self,
        execution_id: str,
        parameters: Mapping[str, Any] | None = None,
        *,
        dry_run: bool | None = None,
        reason: str = "",
        actor: str | None = None,
        **changes: Any,
    ) -> Handle:
        """Run an execution of the past again, as it was but for these parameters and `changes`, fields of `Call`.

        Both are linked to each other in SQL; `actor` is who did it. `dry_run` None leaves it as it was. A call that today's
        tool refuses gives a handle whose result says so.

        Raises:
            ExecutionNotFoundError: SQL holds no such execution, or no longer.
            InvalidCallError: it is not over yet, or a secret has to be given again.
        """
        record = await self.get(execution_id)
        call = repeated(record, self._snapshot.find(record.tool), parameters or {}, dry_run, changes)
        link = Replay(record.id, actor or self._actor, reason, call.effective_context.dry_run)
        answer = await self._accepted(call, partial(self._submit_linked, call, replay=link))
        if isinstance(answer, Rejected):
            return await self._record_rejection(explained(answer, record, self._snapshot.find(record.tool)))
        return answer

    @property
    @abstractmethod
    def _actor(self) -> str: ...

    @abstractmethod
    async def _accepted(self, call: Call, store: Callable[[Accepted], Awaitable[Handle]]) -> Handle | Rejected: ...

    @abstractmethod
    async def _submit_linked(self, call: Call, accepted: Accepted, replay: Replay | None = None) -> Handle: ...

    @abstractmethod
    async def _record_rejection(self, rejected: Rejected) -> Handle: ...
