"""What a client reads of executions, its own and others': rows, attempts, events, progress and artifacts."""

from collections.abc import AsyncIterator, Collection, Mapping
from typing import TYPE_CHECKING, Any

from forge_tools.client.connection import Connection
from forge_tools.model import (
    ArtifactPage,
    AttemptRecord,
    Event,
    EventRecord,
    ExecutionRecord,
    PageWish,
    Progress,
)

if TYPE_CHECKING:
    from forge_tools.storage.artifacts import StoredArtifacts


class History:
    """The audit in SQL as a client sees it; to run one of its executions again, see `Calls.replay`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def get(self, execution_id: str) -> ExecutionRecord:
        """Read one execution, by id or a unique prefix of it."""
        return await self._connection.store.history.get(execution_id)

    async def events_of(self, execution_id: str) -> list[Event]:
        """Read what was done to an execution, oldest first."""
        return await self._connection.store.history.events(execution_id)

    async def progress_of(self, execution_ids: Collection[str]) -> Mapping[str, Progress]:
        """Read the newest progress of those executions that have reported any."""
        return await self._connection.store.reports.progress_of(execution_ids)

    @property
    def artifacts(self) -> "StoredArtifacts":
        """The stored artifacts, for readers who may see only those of one session."""
        return self._connection.store.artifacts

    def artifact(self, handle: str) -> AsyncIterator[bytes]:
        """Read the bytes of an artifact part by part, whichever session kept it."""
        return self._connection.store.artifacts.contents(handle)

    async def artifact_page(self, /, handle: str, **wish: int | None) -> ArtifactPage:
        """Read a page of an artifact, whichever session kept it; keywords are the fields of `PageWish`.

        The page's `next` has the keywords for the next one.

        Raises:
            ArtifactNotFoundError: there is none of that name, or it has expired.
            InvalidCallError: there is no such page.
        """
        artifacts = self._connection.store.artifacts
        return await artifacts.page(await artifacts.named(handle), PageWish(**wish))

    async def attempts(self, /, **filters: Any) -> list[AttemptRecord]:
        """Read attempts of all executions, newest first; the filters are those of `History.list_attempts`."""
        return await self._connection.store.history.list_attempts(**filters)

    async def events(self, /, **filters: Any) -> list[EventRecord]:
        """Read what was done to executions, newest first; the filters are those of `History.list_events`."""
        return await self._connection.store.history.list_events(**filters)

    async def list(self, /, **filters: Any) -> list[ExecutionRecord]:
        """Read executions, newest first; the filters are those of `History.list`."""
        return await self._connection.store.history.list(**filters)
