"""The batches of the chain, each with the hash of the one before, appended by one writer at a time; and what their details say."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Select, func, select

from forge_tools.errors import StorageError
from forge_tools.model.audit import Head
from forge_tools.storage.audit.hashes import EPOCH, FORMAT, Definition, as_json, moment_form, moment_of
from forge_tools.storage.audit.proof import Signer
from forge_tools.storage.connection.database import Database, prepare
from forge_tools.storage.functions import database_now, stored
from forge_tools.storage.heartbeat import EVER, OVERLAP
from forge_tools.storage.sqlalchemy_engine import AsyncConnection
from forge_tools.storage.sqlalchemy_tables import audit_batches

SEAL, PRUNE = "seal", "prune"
NOTHING_BEFORE = "0" * 64
"""`previous` of the first batch."""

BELOW_ALL = -(2**63)

batch = audit_batches.c
_IS_NUMBERED = batch.sequence.between(1, 2**62)
"""The numbers that sealers give to batches; somebody else may have written others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A row of `audit_batches`; `detail` is JSON text."""

    sequence: int
    format: int = FORMAT
    kind: str = SEAL
    executions: int = 0
    events: int = 0
    ended_from: datetime | None = None
    ended_until: datetime | None = None
    frontier: datetime | None = None
    event_frontier: int = 0
    root: str
    previous: str
    sealed_at: datetime
    sealer: str
    detail: str = "{}"
    key_id: str | None = None
    hash: str = ""
    signature: str | None = None

    def computed_hash(self) -> str:
        """The value that `hash` must have."""
        values = {name: getattr(self, name) for name in _HASHED}
        said = {name: moment_form(v) if isinstance(v, datetime) else v for name, v in values.items() if v is not None}
        return hashlib.sha256(f"forge-tools audit {FORMAT} batch\n{as_json(said)}".encode()).hexdigest()

    def signed(self, signer: Signer | None) -> "Batch":
        named = replace(self, key_id=signer.key_id if signer else None)
        hashed = replace(named, hash=named.computed_hash())
        return replace(hashed, signature=signer.sign(hashed.message) if signer else None)

    @property
    def message(self) -> bytes:
        return f"forge-tools audit {FORMAT} head {self.hash}\n".encode()

    @property
    def head(self) -> Head:
        return Head(self.sequence, self.hash, self.sealed_at, self.key_id, self.signature)


_FIELDS = tuple(field.name for field in fields(Batch))
_NUMBERS = ("format", "executions", "events", "event_frontier")
_TEXTS = ("kind", "root", "previous", "sealer", "detail", "hash")
_HASHED = sorted(name for name in _FIELDS if name not in ("hash", "signature"))
_BATCHES = select(*(stored(batch[name]).label(name) for name in _FIELDS))


async def newest(connection: AsyncConnection) -> Batch | None:
    """The last batch; None before the first."""
    found = await _read(connection, _BATCHES.where(_IS_NUMBERED).order_by(batch.sequence.desc()).limit(1))
    return found[0] if found else None


async def following(connection: AsyncConnection, after: int, limit: int) -> list[Batch]:
    """The batches after that sequence, in order; after `BELOW_ALL` also those that no sealer has numbered."""
    return await _read(connection, _BATCHES.where(batch.sequence > after).order_by(batch.sequence).limit(limit))


async def looked_at(connection: AsyncConnection, head: Batch | None) -> datetime | None:
    """Return when the sealer of the last batch up to `head`, the newest of all, read what there was; None: unknown."""
    found = head.sealed_at if head else None
    if head is not None and head.kind != SEAL:
        sealed_at = select(stored(batch.sealed_at)).where(batch.kind == SEAL)
        found = moment_of(await connection.scalar(sealed_at.order_by(batch.sequence.desc()).limit(1)))
    return None if found == EPOCH else found


async def event_floor(connection: AsyncConnection, head: Batch | None) -> int:
    """Return the number up to which all events are sealed.

    Numbers are given before commits, so a lower one may still appear. It has had time until a sealer last looked, not
    until now: nobody has seen yet what has appeared since.
    """
    looked = await looked_at(connection, head)
    if looked is None:
        return 0
    before = select(batch.event_frontier).where(batch.kind == SEAL, batch.sealed_at <= max(EVER, looked) - OVERLAP)
    return await connection.scalar(before.order_by(batch.sequence.desc()).limit(1)) or 0


async def append(database: Database, connection: AsyncConnection, new: Batch) -> None:
    """Add the next batch: the first step of the transaction that writes what it covers.

    Raises:
        OvertakenError: somebody else has added one since the chain was read; read it again.
    """
    if new.sequence == 1:
        await require_none(connection)
    there = await connection.scalar(select(func.max(batch.sequence)).where(_IS_NUMBERED))
    values = {name: getattr(new, name) for name in _FIELDS} | {"detail": json.loads(new.detail)}
    row = database.upsert(audit_batches).values(**values)
    added = await connection.scalar(row.on_conflict_do_nothing().returning(batch.sequence))
    # The conflict reveals who adds at the same time, the number of the last batch who did so before.
    if added is None or (there or 0) != new.sequence - 1:
        raise OvertakenError("Another process has added to the audit chain at the same moment. Try again.")


async def require_none(connection: AsyncConnection) -> None:
    """Hold off the first batch until this transaction ends: without a chain, no batch reveals another writer.

    Raises:
        OvertakenError: there is a batch already.
    """
    await prepare(connection, "first_batch")
    if await connection.scalar(select(batch.sequence).where(_IS_NUMBERED).limit(1)) is not None:
        raise OvertakenError("Another process has begun the audit chain at the same moment. Try again.")


class OvertakenError(StorageError):
    """Another process was quicker, and nothing was written."""

    code = "AUDIT_OVERTAKEN"
    retryable = True


async def _read(connection: AsyncConnection, query: Select[Any]) -> list[Batch]:
    return [_batch(row._asdict()) for row in await connection.execute(query)]


def _batch(values: dict[str, Any]) -> Batch:
    """Read a row that anybody may have written; None for what is no time, -1 for no number: its hash will not fit."""
    moments = {name: moment_of(values[name]) for name in ("ended_from", "ended_until", "frontier", "sealed_at")}
    numbers = {name: values[name] if isinstance(values[name], int) else -1 for name in _NUMBERS}
    texts = {name: values[name] if isinstance(values[name], str) else str(values[name]) for name in _TEXTS}
    optional = {name: None if values[name] is None else str(values[name]) for name in ("key_id", "signature")}
    return Batch(**values | moments | numbers | texts | optional | {"sealed_at": moments["sealed_at"] or EPOCH})


class Portion(NamedTuple):
    """The part of one batch that one checkpoint removed."""

    batch: int
    executions: int
    events: int
    root: str


def portions_of(checkpoint: Batch) -> list[Portion]:
    """Read the portions that a checkpoint removed.

    Raises:
        KeyError, TypeError, ValueError: the detail is not one of a checkpoint.
    """
    pruned = json.loads(checkpoint.detail)["pruned"]
    return [Portion(int(batch), int(executions), int(events), str(root)) for batch, executions, events, root in pruned]


async def definitions_since(connection: AsyncConnection, head: Batch | None) -> datetime:
    """Return since when definitions may be in no batch up to `head`: half a minute before its sealer looked."""
    looked, now = await looked_at(connection, head), await database_now(connection)
    return EVER if looked is None else max(EVER, min(looked, now) - OVERLAP)


def listing(definitions: Mapping[Definition, bytes]) -> str:
    """Return the detail of a batch that lists these definitions with their hashes."""
    return json.dumps(
        {"definitions": [[*key, hash_.hex()] for key, hash_ in definitions.items()]} if definitions else {}
    )


def listed(batch: Batch) -> dict[Definition, bytes]:
    """The definitions that a batch lists.

    Raises:
        TypeError, ValueError, AttributeError: no sealer wrote its detail.
    """
    entries = json.loads(batch.detail).get("definitions", ())
    return {(str(name), str(version), str(digest)): bytes.fromhex(hash_) for name, version, digest, hash_ in entries}
