"""Waits for the end of an execution by its row alone, and shows what there is to see meanwhile."""

import asyncio

from forge_tools.cli.face import Face
from forge_tools.cli.live import view_of, watch
from forge_tools.client.handle import follow
from forge_tools.errors import ResultTimeoutError
from forge_tools.records import Position, Sight, ToolResult
from forge_tools.storage import Store

POLL_SECONDS = 0.2


async def until_over(store: Store, execution_id: str, timeout: float | None, *, face: Face | None = None) -> None:
    """Wait until it is over, at most `timeout` seconds; with a face, following it.

    Raises:
        ExecutionNotFoundError: there is none of that id.
        ResultTimeoutError: it is not over yet.
    """
    found = (await store.history.get(execution_id)).id
    rows = _Rows(store)
    try:
        async with asyncio.timeout(timeout):
            if face is None:
                await rows.wait(found)
                return
            with view_of(face, keeps_output=True) as view:
                await watch(view, follow(rows, found, None), lambda: store.history.get(found))
    except TimeoutError as error:
        raise ResultTimeoutError(f"Execution {found} is not over after {timeout:g}s. It goes on.") from error


class _Rows:
    """What following needs, of a database without a client."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def wait(self, execution_id: str) -> ToolResult:
        while True:
            for stored in await self._store.queue.results([execution_id]):
                return stored.result
            await asyncio.sleep(POLL_SECONDS)

    async def look(self, position: Position) -> Sight:
        return await self._store.reports.look(position)
