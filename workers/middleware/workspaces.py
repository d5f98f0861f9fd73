"""Calls that belong on another host: found when they are claimed here, and sent there instead of run."""

import asyncio
import json
import logging
from collections.abc import Sequence

from forge_tools.config import Settings
from forge_tools.errors import ConfigurationError, ErrorCode, ForgeError
from forge_tools.model.execution import Claim, Scope, Wakeup
from forge_tools.model.places import Stranded, WorkspaceRecord
from forge_tools.sandbox.configured import announced
from forge_tools.storage import Store
from forge_tools.storage.workspaces import rivals
from workers.middleware.base import Activity, Ends, Middleware, SendOn
from workers.outcomes import handed_back, not_run

logger = logging.getLogger(__name__)


class Workspaces(Middleware):
    """A worker's named workspaces; it never runs a call that names another one.

    Such a call goes, its attempt not counted, to a host that has its workspace, or fails if no live host does. A worker
    sends away only calls whose workspace it lacks, so a host that has it ends the journey, and the database counts all
    other steps.
    """

    def __init__(self, store: Store, scope: Scope, activity: Activity, send_on: SendOn, settings: Settings) -> None:
        self._store = store
        self._scope = scope
        self._workspaces = list(announced(settings))
        self._activity = activity
        self._send_on = send_on
        self._lease = settings.lease
        self._patience = 2 * settings.heartbeat
        self._sending: set[asyncio.Task[None]] = set()

    async def announce(self) -> None:
        """Announce this host's workspaces.

        Raises:
            ConfigurationError: another host has one of them; this worker instance then counts as stopped.
        """
        if any(not theirs.is_live and not theirs.has_stopped for theirs in await self._clashes()):
            await asyncio.sleep(self._patience)  # a live host that could not reach the database does so by then
        try:
            await self._announce()
        except ConfigurationError:
            await self._store.workers.stop(self._scope.instance)
            raise

    async def renew(self) -> None:
        """Announce again after a silence in which others assumed this worker dead; what they took is no longer here."""
        taken = {theirs.name: theirs.hostname for theirs in await self._clashes() if theirs.is_live}
        self._workspaces = [one for one in self._workspaces if one.name not in taken]
        for name, host in taken.items():
            logger.error(
                "Another host took over a workspace while this worker was silent; its calls are sent there from now on",
                extra={"workspace": name, "host": host},
            )
        try:
            await self._announce()
        except ConfigurationError:  # taken in between
            await self.renew()

    def claimed(self, claims: list[Claim], ends: Ends) -> list[Claim]:
        """Send away calls that belong on other hosts; return the rest, which do not wait for that.

        Calls being sent hold their slots: claims are faster, and if this worker died, everything it owns would be lost.
        """
        named = [(claim, name) for claim in claims if (name := workspace_of(claim.context)) is not None]
        if not named:
            return claims
        here = {one.name for one in self._workspaces}
        away = {claim.token: (claim, name) for claim, name in named if name not in here}
        self._activity.sending += len(away)
        for claim, name in away.values():
            sending = asyncio.create_task(self._send_home(claim, name, ends))
            self._sending.add(sending)
            sending.add_done_callback(self._sending.discard)
        return [claim for claim in claims if claim.token not in away]

    async def _send_home(self, claim: Claim, name: str, ends: Ends) -> None:
        """Move a claimed call to where its workspace is, or end it here if no live host has it."""
        is_settled = False
        try:
            result = await self._store.workspaces.send_home(claim, name, self._scope, within=self._lease)
            if isinstance(result, Stranded):
                ends.add(not_run(claim, result.why, ErrorCode.WORKSPACE_NOT_HERE, retryable=True))
            else:
                ends.forget(claim)
                if result is not None:
                    facts = {"workspace": name, "host": result.hostname, **claim.facts()}
                    logger.info("A call belongs on another host; it is forwarded", extra=facts)
                    # The row has the number from before this claim again, which is not counted.
                    self._send_on([Wakeup(claim.id, claim.attempt - 1)], result.queue)
            is_settled = True
        except ForgeError as error:
            logger.warning("A call cannot be forwarded to its host", extra={"error": str(error), **claim.facts()})
        finally:
            if not is_settled:  # nothing is known to have changed; the call is still this worker's
                ends.add(handed_back(claim))
            self._activity.sending -= 1
        self._activity.announce()

    async def _announce(self) -> None:
        worker_id, hostname = self._scope.instance, self._scope.hostname
        announced = self._store.workspaces.announce(worker_id, hostname, self._workspaces, within=self._lease)
        for sentence in await announced:
            logger.warning(sentence)

    async def _clashes(self) -> Sequence[WorkspaceRecord]:
        """Return what other hosts have or had of the workspaces that can only be here."""
        return rivals(self._workspaces, await self._store.workspaces.list(within=self._lease), self._scope.hostname)


def workspace_of(context: str) -> str | None:
    """Return the workspace that a context's JSON text names; most name none, and every call is checked."""
    if context.count('"workspace"') == ('"workspace":null' in context):  # so it occurs nowhere, or only as null
        return None
    try:
        name = json.loads(context).get("workspace")
    except (ValueError, AttributeError, RecursionError):  # a malformed row is judged elsewhere
        return None
    return name if isinstance(name, str) else None
