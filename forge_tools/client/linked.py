"""Calls that are tied to others: by an idempotency key, or as the replay of an execution."""

import asyncio
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from forge_tools.client.background import Background
from forge_tools.client.call import Call
from forge_tools.client.fingerprints import differences, digest_key, fingerprint, is_comparable
from forge_tools.client.handle import Handle
from forge_tools.client.intake import LONGEST_SECONDS, Accepted, Intake, Rejected
from forge_tools.client.outbox import Outbox
from forge_tools.client.snapshot import Snapshot
from forge_tools.config import Settings
from forge_tools.errors import ErrorCode, ForgeError, InvalidCallError, SubmitOutcomeUnknownError
from forge_tools.records import (
    ExecutionContext,
    Holder,
    IdempotencyKey,
    KeyClaim,
    LinkedExecution,
    NewExecution,
    Replay,
    ToolResult,
)
from forge_tools.storage import Store, ToolChangedError
from forge_tools.validation import shown

MAX_KEY = 255
"""Characters of a key, and of a scope."""

SHARED = "shared"


class Submitted(NamedTuple):
    """The execution that a call stands for, and whether somebody asked for it before."""

    execution_id: str
    is_repeat: bool


class _HeldError(ForgeError):
    """The call is not stored, and nobody is to ring for it: its key has another execution."""


class LinkedCalls:
    """Stores calls together with what ties them to others. Those with a key are sent detached: who began them may go."""

    def __init__(self, settings: Settings, intake: Intake, outbox: Outbox, background: Background) -> None:
        self._settings = settings
        self._intake = intake
        self._outbox = outbox
        self._background = background
        self._storing: set[asyncio.Task[Holder | None]] = set()
        self._secret: bytes | None = None

    async def submit(
        self, store: Store, snapshot: Snapshot, call: Call, accepted: Accepted, replay: Replay | None = None
    ) -> Submitted | Rejected:
        """Store the call, unless its key has an execution: then that one is what it stands for, if it is the same call.

        Raises:
            ConfigurationError: there is no secret to make digests with.
            DatabaseUnavailableError: nothing was stored.
            SubmitOutcomeUnknownError: it may have been; the same call under the same key finds out.
        """
        try:
            claim = await self._claim(call, snapshot)
        except InvalidCallError as error:
            return self._intake.refuse(call, error.message, error.code, snapshot, errors=error.details)
        is_kept = claim is not None or call.detached
        holder = await self._stored(store, LinkedExecution(accepted.new, claim, replay), is_kept=is_kept)
        if holder is None or claim is None:
            return Submitted(accepted.new.id, is_repeat=False)
        if holder.fingerprint == claim.fingerprint:
            return Submitted(holder.execution_id, is_repeat=True)
        return self._refuse(call, claim, holder, snapshot)

    async def close(self) -> None:
        """Wait for what is on its way, within the bounds that storing has."""
        while self._storing:
            await asyncio.wait(self._storing)  # unlike `gather`, this cuts off nothing if it is cancelled

    async def _stored(self, store: Store, linked: LinkedExecution, *, is_kept: bool) -> Holder | None:
        """Storing goes on without its waiter. What is not kept is cancelled then: nobody would ever ask for it."""
        storing = asyncio.ensure_future(self._commit(store, linked))
        self._storing.add(storing)
        storing.add_done_callback(self._storing.discard)
        try:
            return await asyncio.shield(storing)
        except asyncio.CancelledError:
            self._background.begin(self._leave(store, linked, storing, is_kept=is_kept))
            raise

    async def _leave(
        self, store: Store, linked: LinkedExecution, storing: "asyncio.Future[Holder | None]", *, is_kept: bool
    ) -> None:
        with suppress(SubmitOutcomeUnknownError):
            await storing
        if not is_kept:
            await store.queue.cancel(linked.new.id, actor="client", reason="the submitting task was cancelled")

    async def _commit(self, store: Store, linked: LinkedExecution) -> Holder | None:
        """Store and ring as for any call; who has its key already, if anybody has."""
        holder: Holder | None = None

        async def insert(_: Sequence[NewExecution]) -> list[ForgeError | None]:
            nonlocal holder
            [answer] = await store.keys.submit_many([linked])
            if not isinstance(answer, Holder):
                return [answer]
            holder = answer
            return [_HeldError("This key has another execution.")]

        [error] = await self._outbox.commit(store, [linked.new], expecting=[linked.new.id], insert=insert)
        if error is not None and holder is None:
            raise error
        return holder

    async def _claim(self, call: Call, snapshot: Snapshot) -> KeyClaim | None:
        if call.idempotency_key is None:
            return None
        asked = _checked(call.idempotency_key)
        if self._secret is None:
            self._secret = await asyncio.to_thread(digest_key, self._settings)
        context = call.effective_context
        scope, spec = self._scope(asked, context), snapshot.find(call.name)
        arguments, name = call.arguments, call.name
        if spec is not None:
            arguments, name = snapshot.validator(spec).effective(arguments), spec.name
            plain = {parameter.name: parameter.default for parameter in spec.parameters if not parameter.required}
            # What is the default said aloud is the same call, also after an update that adds a parameter.
            arguments = {key: value for key, value in arguments.items() if key not in plain or plain[key] != value}
        where = {"working_dir": context.working_dir, "workspace": context.workspace, "dry_run": context.dry_run}
        text = fingerprint(self._secret, (scope, asked.key), name, arguments, where)
        return KeyClaim(scope, asked.key, text, self._settings.idempotency_ttl if asked.ttl is None else asked.ttl)

    def _scope(self, asked: IdempotencyKey, context: ExecutionContext) -> str:
        if asked.scope is not None:
            return f"named:{asked.scope}"
        kind = self._settings.idempotency_scope
        who = {"agent": context.agent_id, "session": context.session_id, SHARED: None}[kind]
        if not who:
            return SHARED
        if len(who) > MAX_KEY:
            raise InvalidCallError(
                f"{kind}_id is {len(who):,} characters; as the scope of an idempotency key it may have {MAX_KEY}. "
                "Give the key a scope: IdempotencyKey(key, scope=...)"
            )
        return f"{kind}:{who}"

    def _refuse(self, call: Call, claim: KeyClaim, holder: Holder, snapshot: Snapshot) -> Rejected:
        if is_comparable(claim.fingerprint, holder.fingerprint):
            differing = differences(claim.fingerprint, holder.fingerprint)
            why = f"was used for another call, which differs in: {', '.join(differing)}"
        else:
            differing = []
            why = "was used by a client with another digest key, so it cannot be told whether this is the same call"
        error = (
            f"Idempotency key {claim.key!r} ({claim.scope}) {why}. It stands for execution {holder.execution_id}: "
            "repeat that call as it was, or use another key."
        )
        facts: dict[str, Any] = {"idempotency_key": claim.key, "holder": holder.execution_id, "differing": differing}
        return self._intake.refuse(call, error, ErrorCode.IDEMPOTENCY_CONFLICT, snapshot, **facts)


async def result_of(submitting: Awaitable[Handle]) -> ToolResult:
    """Wait for the handle, then for its result; whatever goes wrong is a failed result."""
    execution_id = None
    try:
        handle = await submitting
        execution_id = handle.id
        result = await handle.result()
    except ToolChangedError:  # not a result yet: the call is checked anew
        raise
    except ForgeError as error:
        return failed(error, execution_id)
    if not handle.is_repeat:
        return result
    return result.model_copy(update={"metadata": {**result.metadata, "is_repeat": True}})


def failed(error: ForgeError, execution_id: str | None = None) -> ToolResult:
    """What went wrong as a result, with the id of the execution where one is known."""
    known = execution_id or getattr(error, "execution_id", None)
    return ToolResult.fail(error.message, error_code=error.code, **({"execution_id": known} if known else {}))


def _checked(asked: object) -> IdempotencyKey:
    key = IdempotencyKey(asked) if isinstance(asked, str) else asked
    if not isinstance(key, IdempotencyKey):
        raise InvalidCallError(f"idempotency_key is {shown(repr(asked))}; it must be a text or an IdempotencyKey")
    _check_name("idempotency_key", key.key)
    if key.scope is not None:
        _check_name("The scope of the idempotency key", key.scope)
    if key.ttl is not None and not (type(key.ttl) in {int, float} and 0 < key.ttl <= LONGEST_SECONDS):
        raise InvalidCallError(
            f"The ttl of the idempotency key is {shown(repr(key.ttl))}; it must be a number of seconds above 0, at most ten years"
        )
    return key


def _check_name(what: str, name: object) -> None:
    if not isinstance(name, str):
        raise InvalidCallError(f"{what} is {shown(repr(name))}; it must be a text")
    if len(name) > MAX_KEY:
        raise InvalidCallError(f"{what} is {len(name):,} characters; the limit is {MAX_KEY}")
    if not name.strip() or not name.isprintable():
        raise InvalidCallError(f"{what} is {shown(repr(name))}; it must be a text of printable characters")
