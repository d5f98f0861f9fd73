"""Calls that belong on another host: found as they are claimed here, and sent there instead of being run."""

import asyncio
import json
import logging
from collections.abc import Sequence

from forge_tools.errors import ConfigurationError, ErrorCode
from forge_tools.records import Claim, NamedWorkspace, Scope, Stranded, ToolResult, WorkspaceRecord
from forge_tools.storage import Store
from forge_tools.storage.workspaces import rivals
from workers.outcomes import not_run
from workers.recorder import Recorder

logger = logging.getLogger(__name__)


class Affinity:
    """What this worker has by name is its `workspaces`; a call that names another one is never run here.

    It goes, its attempt uncounted, to a host that has its workspace, or fails where no live one does. A worker sends on
    only what it has not, so a host that has it ends the journey, and the database counts the steps of every other one.
    """

    def __init__(
        self, scope: Scope, workspaces: Sequence[NamedWorkspace], recorder: Recorder, *, lease: float, heartbeat: float
    ) -> None:
        self._scope = scope
        self._workspaces = list(workspaces)
        self._recorder = recorder
        self._lease = lease
        self._patience = 2 * heartbeat

    async def announce(self, store: Store) -> None:
        """Tell the others what is here.

        Raises:
            ConfigurationError: another host has one of them; this boot counts as stopped then.
        """
        if any(not theirs.is_live and not theirs.has_stopped for theirs in await self._clashes(store)):
            await asyncio.sleep(self._patience)  # whoever lives and could not reach the database does so by then
        try:
            await self._announce(store)
        except ConfigurationError:
            await store.workers.stop(self._scope.boot)
            raise

    async def renew(self, store: Store) -> None:
        """Announce again after a silence in which others took this worker for dead; what they took since is not here."""
        taken = {theirs.name: theirs.hostname for theirs in await self._clashes(store) if theirs.is_live}
        self._workspaces = [one for one in self._workspaces if one.name not in taken]
        for name, host in taken.items():
            logger.error(
                "Another host took over a workspace while this worker was silent; its calls go there from now on",
                extra={"workspace": name, "host": host},
            )
        try:
            await self._announce(store)
        except ConfigurationError:  # taken in between
            await self.renew(store)

    async def _announce(self, store: Store) -> None:
        boot, hostname = self._scope.boot, self._scope.hostname
        for sentence in await store.workspaces.announce(boot, hostname, self._workspaces, within=self._lease):
            logger.warning(sentence)

    async def _clashes(self, store: Store) -> Sequence[WorkspaceRecord]:
        """What other hosts have or had of what can only be here."""
        return rivals(self._workspaces, await store.workspaces.list(within=self._lease), self._scope.hostname)

    def strays(self, claims: Sequence[Claim]) -> list[tuple[Claim, str]]:
        """Those of `claims` that this worker must not run, each with the workspace that it names."""
        named = [(claim, name) for claim in claims if (name := workspace_of(claim.context)) is not None]
        if not named:
            return named
        here = {one.name for one in self._workspaces}
        return [(claim, name) for claim, name in named if name not in here]

    async def send_home(self, store: Store, claim: Claim, name: str) -> str | None:
        """Move a claimed call to where its workspace is, and return the queue to send its id to; None if it ended here instead.

        Raises:
            ForgeError: nothing is known to have changed; the call is still this worker's.
        """
        result = await store.workspaces.send_home(claim, name, self._scope, within=self._lease)
        if isinstance(result, Stranded):
            failed = ToolResult.fail(result.why, error_code=ErrorCode.WORKSPACE_NOT_HERE, retryable=True)
            self._recorder.add(not_run(claim, failed))
            return None
        self._recorder.forget(claim)
        if result is None:
            return None
        logger.info(
            "A call belongs on another host; it goes there",
            extra={"execution_id": claim.id, "workspace": name, "host": result.hostname},
        )
        return result.queue


def workspace_of(context: str) -> str | None:
    """The workspace that the JSON text of a context names; most name none, and this is asked of every call."""
    if context.count('"workspace"') == ('"workspace":null' in context):  # so it is nowhere, or null where it is
        return None
    try:
        name = json.loads(context).get("workspace")
    except (ValueError, AttributeError, RecursionError):  # the row is another one's to judge
        return None
    return name if isinstance(name, str) else None
