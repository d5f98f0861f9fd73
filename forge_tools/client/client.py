"""`ExecutorClient`, the executor interface on workers, assembled from its parts; and `History`, which reads past executions."""

import builtins
from collections.abc import AsyncIterator, Callable, Collection, Generator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from forge_tools.client.call import FORM, Call
from forge_tools.client.calls import Calls
from forge_tools.client.catalogue import Catalogue
from forge_tools.client.connection import Connection
from forge_tools.client.handle import Handle
from forge_tools.client.submissions import Submissions
from forge_tools.config import Settings
from forge_tools.model.artifacts import ArtifactPage, PageWish
from forge_tools.model.calls import CallOptions, ExecutionContext, ToolExecution, ToolResult
from forge_tools.model.execution import new_id
from forge_tools.model.history import AttemptRecord, Event, EventRecord, ExecutionRecord
from forge_tools.model.scope import Progress, Report
from forge_tools.model.tools import Schema, ToolCategory, ToolSpec

if TYPE_CHECKING:
    from forge_tools.storage.artifacts import StoredArtifacts


class ExecutorClient:
    """Runs tools on workers. One client per event loop and process; many concurrent calls per client.

    async with ExecutorClient.connect() as client:
        result = await client.execute("Grep", ExecutionContext(working_dir="."), pattern="TODO")

    Methods that an in-process executor also has are here; the rest is in its parts: `calls` submits, attaches, cancels
    and repeats, `history` reads what is recorded, `catalogue` knows, enables and pins tools.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        settings = Settings.load(settings)
        self._close_within = settings.database_timeout
        self._connection = Connection(settings)
        self.history = History(self._connection)
        self.catalogue = Catalogue(self._connection, settings.lease)
        self._submissions = Submissions(settings.broker, self._connection, self.catalogue)
        self.calls = Calls(settings, self._connection, self.catalogue, self._submissions)

    @classmethod
    def connect(cls, settings: Settings | None = None, **overrides: Any) -> Self:
        """Make a client from the environment, to be entered with `async with` or awaited; keywords override settings."""
        return cls(Settings.load(settings, **overrides))

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Connect to the database and read the catalogue; the broker is connected at the first call.

        Raises:
            ConfigurationError: it was connected before, even if it was closed since.
            DatabaseUnavailableError: naming the database and the way out.
            SchemaVersionError: it is not migrated, or newer than this code.
        """
        await self._connection.open()
        try:
            await self.catalogue.refresh()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Send pending messages, end every wait and close connections; accepted calls continue."""
        connection = self._connection
        if connection.is_open:  # first: waiters are told that their calls go on, so these must be stored
            async with connection.store.cut_off_after(self._close_within):
                await self._submissions.settle()
        await self._submissions.close()
        await connection.close()

    def __await__(self) -> Generator[Any, None, Self]:
        """Open it: `client = await ExecutorClient.connect()`, for notebooks; then `close` ends it."""
        return self.__aenter__().__await__()

    async def execute(self, tool_name: str, context: ExecutionContext, /, **parameters: Any) -> ToolResult:
        """Run a tool on a worker and wait for its result. Failures are results; cancelling this cancels the call."""
        call = Call(tool_name, parameters, context)
        return call.refused("execute(name, context, **parameters)") or await self.calls.execute(call)

    async def call(
        self,
        /,
        name: str,
        parameters: Mapping[str, Any] | None = None,
        context: ExecutionContext | None = None,
        options: CallOptions | None = None,
        *,
        on_report: Callable[[Report], None] | None = None,
        **fields: Any,
    ) -> ToolResult:
        """Run a tool with its parameters as one object; `on_report` gets its reports; keywords are fields of `Call`."""
        call = Call.of(name, parameters, context, options, **fields)
        return call.refused(f"call({FORM})") or await self.calls.execute(call, on_report=on_report)

    async def upload(self, path: str | Path, *, session_id: str | None = None) -> str:
        """Keep a file of this host; returns the handle that parameters of type `file` take, in calls of that session."""
        return await self.calls.upload(path, session_id=session_id)

    async def submit(
        self,
        /,
        name: str,
        parameters: Mapping[str, Any] | None = None,
        context: ExecutionContext | None = None,
        options: CallOptions | None = None,
        **fields: Any,
    ) -> Handle:
        """Accept a call and return its handle at once, as `Calls.submit` does; takes the same arguments as `call`.

        `when`, a time, or `delay`, in seconds, makes it wait until then.
        """
        call = Call.of(name, parameters, context, options, **fields)
        refused = call.refused(f"submit({FORM})")
        return await self.calls.submit(call) if refused is None else Handle(new_id(), self.calls, refused)

    def specs(self) -> list[ToolSpec]:
        """Return the enabled tools as data, by name, from the catalogue snapshot; no I/O."""
        return self.catalogue.specs()

    def get_all_schemas(self, format: str = "openai") -> list[Schema]:
        """Return schemas of all enabled tools, from the catalogue snapshot; no I/O."""
        return self.catalogue.schemas(format)

    def get_schemas_by_category(self, category: ToolCategory, format: str = "openai") -> list[Schema]:
        """Return schemas of one category, from the catalogue snapshot; no I/O."""
        return self.catalogue.schemas(format, category)

    def get_executions(self) -> list[ToolExecution]:
        """Return the newest calls this client has awaited, in order, as far as 16 MB go; the audit is `history`."""
        return self.calls.awaited.list()

    def clear_executions(self) -> None:
        """Clear this client's own list; SQL keeps its rows."""
        self.calls.awaited.clear()


class History:
    """The audit in SQL as a client sees it; to run one of its executions again, see `Calls.replay`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def get(self, execution_id: str) -> ExecutionRecord:
        """Read one execution, by id or a unique prefix of it."""
        return await self._connection.store.history.get(execution_id)

    async def events_of(self, execution_id: str) -> builtins.list[Event]:
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

    async def attempts(self, /, **filters: Any) -> builtins.list[AttemptRecord]:
        """Read attempts of all executions, newest first; keywords as for `list`.

        `status`, `error_code`, `error_text`, `min_ms` and `max_ms` apply to the attempt.
        """
        return await self._connection.store.history.list_attempts(**filters)

    async def events(self, /, **filters: Any) -> builtins.list[EventRecord]:
        """Read what was done to executions, newest first; keywords as for `list`, and `kind`.

        `since` and `until` bound when it was done.
        """
        return await self._connection.store.history.list_events(**filters)

    async def list(self, /, **filters: Any) -> builtins.list[ExecutionRecord]:
        """Read executions, newest first; keywords are the fields of `Selection`, `limit` (50), `before` and `patience`.

        `before` is the `cursor` of the last one of the page before. A search that `patience` (seconds) ends has an
        `older`, which is the next `before`.
        """
        return await self._connection.store.history.list(**filters)
