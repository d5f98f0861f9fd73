"""The hot statements on PostgreSQL: one autocommit statement per flush, taking arrays, with pinned plans."""

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any

from forge_tools.deadlines import answered_within
from forge_tools.errors import ForgeError, StorageError
from forge_tools.model.calls import ToolResult
from forge_tools.model.execution import Claim, Holder, NewExecution, Outcome, Scope, Wakeup
from forge_tools.storage.connection.drivers import Address, Owner
from forge_tools.storage.connection.faults import UnreachableError, translated, unreachable
from forge_tools.storage.connection.pool import HotConnections
from forge_tools.storage.heartbeat import OVERLAP, Answers, Heartbeat, answers_of, heartbeat_values, scope_values
from forge_tools.storage.rows import (
    ASKED,
    OUTCOME,
    Answer,
    Ask,
    Record,
    asked_by_name,
    claim_of,
    clean,
    execution_values,
    late_detail,
    links,
    outcome_by_name,
    outcome_values,
    refusal,
    stored_result,
)
from forge_tools.storage.statements import postgres_statement

MOST_TRIES = 5
"""How often a key may be found neither free nor held, because others free and take it at the same time."""

KEY_TAKEN = StorageError(
    "This idempotency key is taken but its holder cannot be found: others took and freed it at the same time, or another user of "
    "the database has it. Try again, or use another scope."
)


class PostgresHotPath:
    """Each call is one round trip and one transaction."""

    write_lock = None
    """The server has its own locks."""

    def __init__(self, address: Address, owner: Owner, *, connect_timeout: float, deadline: float | None) -> None:
        self.guard = owner.guard
        self._deadline = deadline
        self._connections = HotConnections(address, connect_timeout)
        self._cut_off: set[Scope] = set()
        self._address = address

    async def submit(self, rows: Sequence[NewExecution]) -> list[ForgeError | None]:
        if len(rows) == 1:
            [new] = rows
            more = {"encrypted": new.encrypted, "issued_at": new.issued_at, "reply_key": new.reply_key}
            if await self._run("submit_one", **asked_by_name(new), **more):
                return [None]
        return _refusals(rows, await self._run("submit", **_asked(rows)))

    async def submit_linked(self, rows: Sequence[NewExecution]) -> list[Answer]:
        """Run one statement, and others only if somebody holds one of the keys."""
        answers: list[Answer] = [KEY_TAKEN] * len(rows)
        left = list(range(len(rows)))
        for _ in range(MOST_TRIES):
            part = [rows[index] for index in left]
            for index, answer in zip(left, await self._submit_linked(part), strict=True):
                answers[index] = answer
            left = [index for index in left if answers[index] is KEY_TAKEN]
            if not left:
                break
        return answers

    async def record(self, rows: Sequence[Record]) -> list[ForgeError | None]:
        new = [one for one, _ in rows]
        outcomes = _by_name(OUTCOME, [outcome_values(outcome) for _, outcome in rows])
        return _refusals(new, await self._run("record", **_asked(new), **outcomes))

    async def claim(self, rows: Sequence[Ask], scope: Scope) -> list[Claim | None]:
        is_again = scope in self._cut_off  # the last claim may have been committed without a reply
        asked = scope_values(scope)
        try:
            if len(rows) == 1 and not is_again:
                won = [(1, *row) for row in await self._run("claim_one", **asked, **rows[0]._asdict())]
            else:
                won = await self._run("claim_again" if is_again else "claim", **asked, **_by_name(Ask._fields, rows))
        except UnreachableError:
            self._cut_off.add(scope)
            raise
        self._cut_off.discard(scope)
        claims: list[Claim | None] = [None] * len(rows)
        for ord_, *values, encrypted, reply_key, started_at in won:
            hidden = {"encrypted": encrypted, "reply_key": reply_key}
            claims[ord_ - 1] = claim_of(rows[ord_ - 1], values, **hidden, started_at=started_at)
        return claims

    async def finish(self, rows: Sequence[Outcome]) -> list[bool]:
        if len(rows) == 1 and not rows[0].is_requeue:
            [one] = rows
            if await self._run("finish_one", id=one.id, **outcome_by_name(one)):
                return [True]
        outcomes = _by_name(OUTCOME, [outcome_values(outcome) for outcome in rows])
        effects = _flags(len(rows), await self._run("finish", **_by_name(_FENCE, map(_fence_of, rows)), **outcomes))
        missed = [index for index, took_effect in enumerate(effects) if not took_effect]
        if missed:
            for index, mine in zip(missed, await self._settle_late([rows[index] for index in missed]), strict=True):
                effects[index] = mine
        return effects

    async def results(self, ids: Sequence[str]) -> list[ToolResult | None]:
        found: list[ToolResult | None] = [None] * len(ids)
        for ord_, *values in await self._run("results", ids=ids):
            found[ord_ - 1] = stored_result(ids[ord_ - 1], values)
        return found

    async def read(self, name: str, **values: object) -> list[Any]:
        self.guard()
        statement = postgres_statement(name)
        try:
            async with answered_within(self._deadline):
                with translated(self._address.shown):
                    return await self._connections.read(statement.text, statement.arguments(values))
        except TimeoutError as error:
            said = f"no answer within {self._deadline:g} s"
            raise unreachable(self._address.shown, said, maybe_committed=False) from error

    async def beat(self, rows: Sequence[Heartbeat]) -> list[Answers | StorageError]:
        return [answers_of(row, await self._run("heartbeat", **heartbeat_values(row), overlap=OVERLAP)) for row in rows]

    async def due(self, scope: Scope, limit: int) -> list[Wakeup]:
        return [Wakeup(id_, attempt) for id_, attempt in await self._run("due", limit=limit, **scope_values(scope))]

    def cut_off(self) -> None:
        self._connections.cut_off()

    async def close(self) -> None:
        await self._connections.close()

    async def _submit_linked(self, rows: Sequence[NewExecution]) -> list[Answer]:
        """Store what can be stored; answer `KEY_TAKEN` for a key that was freed meanwhile."""
        links = _by_name(_LINKS, [_link_values(row) for row in rows])
        answers: list[Answer] = [None] * len(rows)
        settled = await self._run("submit_linked", **_asked(rows), **links)
        for ord_, skew, *current in settled:
            answers[ord_ - 1] = None if skew is None else refusal(rows[ord_ - 1], skew, *current)
        # A row that was neither stored nor refused: somebody holds its key, perhaps this very execution.
        known = {row[0] - 1 for row in settled}
        held = [index for index, row in enumerate(rows) if row.claim is not None and index not in known]
        if held:
            for index, answer in zip(held, await self._holders([rows[index] for index in held]), strict=True):
                answers[index] = answer
        return answers

    async def _holders(self, rows: Sequence[NewExecution]) -> list[Answer]:
        """Free the expired keys of `rows` and say who holds the others; `KEY_TAKEN` if nobody does."""
        keys = [_link_values(row)[:2] for row in rows]
        found = await self._run("holders", **_by_name(_LINKS[:2], keys))
        doubtful = [keys[ord_ - 1] for ord_, *_, is_doubtful in found if is_doubtful]
        if doubtful:
            await self._run("free", **_by_name(_LINKS[:2], doubtful))
            found = await self._run("holders", **_by_name(_LINKS[:2], keys))
        answers: list[Answer] = [KEY_TAKEN] * len(rows)
        for ord_, execution_id, fingerprint, _ in found:
            is_itself = execution_id == rows[ord_ - 1].id  # the reply to its commit was lost
            answers[ord_ - 1] = None if is_itself else Holder(execution_id, fingerprint)
        return answers

    async def _settle_late(self, rows: Sequence[Outcome]) -> list[bool]:
        """Distinguish repeated finishes that took effect before from late ones, which are recorded for people."""
        values = [(o.id, o.attempt, o.token, o.status.value, late_detail(o)) for o in rows]
        late = _by_name(("id", "attempt", "token", "status", "detail"), values)
        return _flags(len(rows), await self._run("settle_late", **late))

    async def _run(self, name: str, **values: object) -> list[Any]:
        statement = postgres_statement(name)
        return await self.fetch(statement.text, *statement.arguments(values))

    async def fetch(self, statement: str, *arguments: object) -> list[Any]:
        with translated(self._address.shown):
            return await self._connections.fetch(statement, arguments)


_FENCE = ("id", "attempt", "token", "retry_in", "give_back")
_fence_of = attrgetter(*_FENCE)
_LINKS = ("scope", "key", "fingerprint", "ttl", "replay_of", "actor", "as_replay", "as_replayed")


def transposed(rows: Iterable[Sequence[object]]) -> list[list[object]]:
    return [list(column) for column in zip(*rows, strict=True)]


def _by_name(names: Sequence[str], rows: Iterable[Sequence[object]]) -> dict[str, object]:
    return dict(zip(names, transposed(rows), strict=True))


def _asked(rows: Sequence[NewExecution]) -> dict[str, object]:
    columns = _by_name(ASKED, map(execution_values, rows))
    more = {"encrypted": [new.encrypted for new in rows], "issued_at": [new.issued_at for new in rows]}
    return {**columns, **more, "reply_key": rows[0].reply_key}  # all rows are from the one client that has this store


def _link_values(row: NewExecution) -> tuple[object, ...]:
    claim, replay = row.claim, row.replay
    key = (None,) * 4 if claim is None else (clean(claim.scope), clean(claim.key), claim.fingerprint, float(claim.ttl))
    return (*key, *((None,) * 4 if replay is None else (replay.of, clean(replay.actor), *links(row.id, replay))))


def _flags(count: int, rows: Sequence[Any]) -> list[bool]:
    """Return True for each ordinal that came back."""
    flags = [False] * count
    for (ord_,) in rows:
        flags[ord_ - 1] = True
    return flags


def _refusals(rows: Sequence[NewExecution], refused: Sequence[Any]) -> list[ForgeError | None]:
    errors: list[ForgeError | None] = [None] * len(rows)
    for ord_, *why in refused:
        errors[ord_ - 1] = refusal(rows[ord_ - 1], *why)
    return errors
