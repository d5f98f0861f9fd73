"""The audit book: seal, verify, tell the head."""

import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import func, select

from forge_tools.records.audit import AuditReport, Head
from forge_tools.storage.audit import chain, sealing
from forge_tools.storage.audit.keys import Signer, Trust
from forge_tools.storage.audit.verifying import Verification
from forge_tools.storage.engine import Database
from forge_tools.storage.heartbeat import EVER, Reach
from forge_tools.storage.models import audit_batches, audit_executions

BATCH = 500

LOOK_BACK_SECONDS = 10.0
"""So often a sweep looks once more at the last half minute, where an end may have come to light after a later one."""


@dataclass(frozen=True, slots=True)
class Sealed:
    """A batch that was just added."""

    head: Head
    executions: int
    events: int
    ended_until: datetime | None
    seconds: float
    """What it took."""


class AuditBook:
    """What was sealed, and what of it is still as it was."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def reach(self) -> Reach:
        """How far the last batch says that the chain has come: a heartbeat tells whether anything is behind that."""
        return await sealing.reach(self._database)

    async def seal(
        self, signer: Signer | None, *, sealer: str, most: int = BATCH, behind: datetime | None = None
    ) -> Sealed | None:
        """Seal the oldest that is over and in no batch, in one batch; None if there is nothing.

        In a row of calls `behind` is the `ended_until` of the call before; `ALL` begins with what was ever left out.

        Raises:
            OvertakenError: another process has sealed at the same moment.
        """
        began = time.monotonic()
        new = await sealing.seal(self._database, signer, sealer, most, behind=behind)
        if new is None:
            return None
        return Sealed(new.head, new.executions, new.events, new.ended_until, time.monotonic() - began)

    async def sweep(
        self, signer: Signer | None, *, sealer: str, most: int = BATCH, behind: datetime | None = None
    ) -> AsyncIterator[Sealed]:
        """Seal what is over, batch by batch, up to the first that is not full. `behind` is for the first, as in `seal`.

        Raises:
            OvertakenError: another process has sealed at the same moment.
        """
        looked_back_at = time.monotonic()
        while (sealed := await self.seal(signer, sealer=sealer, most=most, behind=behind)) is not None:
            yield sealed
            if max(sealed.executions, sealed.events) < most:
                return
            behind = sealed.ended_until or behind
            if behind != ALL and time.monotonic() - looked_back_at >= LOOK_BACK_SECONDS:
                behind, looked_back_at = None, time.monotonic()

    async def holds(self, head: Head) -> bool:
        """Whether that batch is in the chain still."""
        query = select(audit_batches.c.hash).where(audit_batches.c.sequence == head.sequence)
        async with self._database.reading() as connection:
            return bool(await connection.scalar(query) == head.hash)

    async def head(self) -> Head | None:
        """The newest batch; None before the first."""
        async with self._database.reading() as connection:
            found = await chain.newest(connection)
        return found.head if found else None

    async def count(self) -> int:
        """How many executions are sealed and not pruned: what a verification will compare."""
        query = select(func.count()).where(audit_executions.c.pruned_by.is_(None))
        async with self._database.reading() as connection:
            return await connection.scalar(query) or 0

    async def verify(
        self,
        trust: Trust | None = None,
        *,
        head: tuple[int, str] | None = None,
        signed_from: int = 1,
        told: Callable[[int], object] = lambda _: None,
    ) -> AuditReport:
        """Compare all that is stored with the chain. `told` hears how many executions were compared so far.

        `trust` are the keys that may have signed it; batches below `signed_from` need not be. `head` is one that was
        kept elsewhere and has to be in the chain.
        """
        return await Verification(
            self._database, trust or Trust(), kept_head=head, signed_from=signed_from, told=told
        ).run()


ALL = EVER
"""`behind` for what ended at any time."""
