"""The client side of a run: submits or awaits every planned call when its time comes, and stays until its result is there."""

import asyncio
import itertools
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from forge_tools.client import ExecutorClient
from forge_tools.client.handle import Handle
from forge_tools.errors import ErrorCode, ForgeError, SubmitOutcomeUnknownError
from forge_tools.model import ExecutionContext, ToolResult
from tests.chaos.calls import Planned
from tests.chaos.checker import Resolved, Submitted

AWAITED = 3
"""Each third call is awaited, as agents do, if nobody wants it cancelled: it goes another way than one that is submitted."""

ASK_AGAIN = 0.2
"""Seconds until a wait that failed, because the database was away, is repeated."""


class Submitter:
    """Remembers what it was told: by mark, in `submitted` and `resolved`."""

    def __init__(self, client: ExecutorClient, folder: Path) -> None:
        self._client = client
        self._folder = folder
        self.submitted: dict[str, Submitted] = {}
        self.resolved: dict[str, Resolved] = {}
        self._numbers = itertools.count()

    async def run(self, calls: Iterable[Planned]) -> None:
        await asyncio.gather(*map(self._call, calls))

    def ids(self) -> list[str]:
        """Of the calls that may be stored, the last submitted last."""
        return [one.id for one in self.submitted.values() if one.id is not None]

    async def _call(self, call: Planned) -> None:
        await asyncio.sleep(call.at)
        began = time.monotonic()
        context = ExecutionContext(working_dir=str(self._folder), timeout=call.kind.timeout)
        asked = {"mark": call.mark, "seconds": call.seconds}
        if next(self._numbers) % AWAITED == 0 and call.cancel_after is None:
            self._note_end(call, await self._client.execute(call.tool, context, **asked))
            return
        try:
            handle = await self._client.submit(call.tool, asked, context)
        except SubmitOutcomeUnknownError as error:
            self._note(Submitted(call, "unknown", error.execution_id), began)
        except ForgeError:
            self._note(Submitted(call, "refused"), began)
        else:
            self._note(Submitted(call, "accepted", handle.id), began)
            await asyncio.gather(self._follow(handle, call.mark), self._cancel_in_time(handle, call))

    def _note_end(self, call: Planned, result: ToolResult) -> None:
        id_ = result.metadata.get("execution_id")
        is_unknown = result.error_code == ErrorCode.OUTCOME_UNKNOWN
        state = "unknown" if is_unknown else "refused" if id_ is None else "accepted"
        self.submitted[call.mark] = Submitted(call, state, id_)
        if state == "accepted":
            self.resolved[call.mark] = Resolved(id_, result.success, result.output, result.error_code)

    def _note(self, submitted: Submitted, began: float) -> None:
        self.submitted[submitted.mark] = replace(submitted, seconds=time.monotonic() - began)

    async def _follow(self, handle: Handle, mark: str) -> None:
        while mark not in self.resolved:  # no deadline: the run cancels it when it is over
            try:
                result = await handle.result()
            except ForgeError:
                await asyncio.sleep(ASK_AGAIN)
            else:
                self.resolved[mark] = Resolved(handle.id, result.success, result.output, result.error_code)

    async def _cancel_in_time(self, handle: Handle, call: Planned) -> None:
        if call.cancel_after is None:
            return
        await asyncio.sleep(call.cancel_after)
        self.submitted[call.mark] = replace(self.submitted[call.mark], is_cancelled=True)
        with suppress(ForgeError):
            await handle.cancel("chaos")
