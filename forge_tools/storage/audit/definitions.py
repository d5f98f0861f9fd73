"""Definitions of tools in the audit chain: each batch lists, in its `detail`, those first seen since the previous batch, with their hashes."""

import json
from collections.abc import Mapping
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from forge_tools.storage.audit.batches import Batch, looked_at
from forge_tools.storage.audit.hashes import RowForm
from forge_tools.storage.functions import database_now
from forge_tools.storage.heartbeat import EVER, OVERLAP
from forge_tools.storage.tables import tools

Definition = tuple[str, str, str]
"""Name, version and digest."""

FORM = RowForm(tools, ("name", "version", "digest", "category", "lane", "timeout", "spec", "first_seen_at"))
"""The part of a row that never changes; people may enable, pin and disable tools at any time."""


async def hashes_of_definitions(connection: AsyncConnection, since: datetime = EVER) -> dict[Definition, bytes]:
    """Return the hash of each definition first seen since then."""
    query = select(*FORM.columns(), *tools.primary_key.columns)
    if since > EVER:
        query = query.where(tools.c.first_seen_at >= since)
    rows = (await connection.execute(query.order_by(*tools.primary_key.columns))).all()
    return {(str(row[-3]), str(row[-2]), str(row[-1])): FORM.digest(row) for row in rows}


async def unsealed_since(connection: AsyncConnection, head: Batch | None) -> datetime:
    """Return the time since which definitions may be missing from all batches up to `head`: half a minute before its sealer looked."""
    looked, now = await looked_at(connection, head), await database_now(connection)
    return EVER if looked is None else max(EVER, min(looked, now) - OVERLAP)


def listing(hashes: Mapping[Definition, bytes]) -> str:
    """Return the detail of a batch that lists them."""
    return json.dumps({"definitions": [[*key, digest.hex()] for key, digest in hashes.items()]} if hashes else {})


def listed(batch: Batch) -> dict[Definition, bytes]:
    """Return the definitions that a batch lists.

    Raises:
        TypeError, ValueError, AttributeError: no sealer wrote its detail.
    """
    entries = json.loads(batch.detail).get("definitions", ())
    return {(str(name), str(version), str(digest)): bytes.fromhex(hash_) for name, version, digest, hash_ in entries}
