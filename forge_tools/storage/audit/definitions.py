"""Definitions of tools in the audit chain: each batch lists those first seen since the one before, with their hashes, in its `detail`."""

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
"""What never changes of a row: people enable, pin and disable tools any day."""


async def hashes_of_definitions(connection: AsyncConnection, since: datetime = EVER) -> dict[Definition, bytes]:
    """The hash of each definition that was first seen since."""
    query = select(*FORM.columns(), *tools.primary_key.columns)
    if since > EVER:
        query = query.where(tools.c.first_seen_at >= since)
    rows = (await connection.execute(query.order_by(*tools.primary_key.columns))).all()
    return {(str(row[-3]), str(row[-2]), str(row[-1])): FORM.digest(row) for row in rows}


async def unsealed_since(connection: AsyncConnection, head: Batch | None) -> datetime:
    """From when on a definition may be first seen and in no batch up to `head`: half a minute earlier than its sealer looked."""
    looked, now = await looked_at(connection, head), await database_now(connection)
    return EVER if looked is None else max(EVER, min(looked, now) - OVERLAP)


def listing(hashes: Mapping[Definition, bytes]) -> str:
    """The detail of a batch that lists them."""
    return json.dumps({"definitions": [[*key, digest.hex()] for key, digest in hashes.items()]} if hashes else {})


def listed(batch: Batch) -> dict[Definition, bytes]:
    """What a batch lists.

    Raises:
        TypeError, ValueError, AttributeError: its detail is not one that a sealer writes.
    """
    entries = json.loads(batch.detail).get("definitions", ())
    return {(str(name), str(version), str(digest)): bytes.fromhex(hash_) for name, version, digest, hash_ in entries}
