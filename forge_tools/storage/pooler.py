"""Statements through a transaction pooler: only within a transaction do all steps of one meet the same server."""

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any
from uuid import uuid4
from weakref import WeakKeyDictionary

IDLE_SECONDS = 10
"""When the server ends a transaction whose client says no more: one that is frozen must not keep its locks."""

DRIVER = {"statement_cache_size": 0}
"""For asyncpg: nothing is named, and what has no name is parsed anew, together with each execution."""

ADAPTER = {"prepared_statement_name_func": str}
"""For SQLAlchemy's adapter of it: the name of a statement is the empty one."""

_NUMBERS = count()


class Transactions:
    """Runs each statement in a transaction with `settings`, which a pooler takes at no other moment.

    A statement has a name, and so its plan is kept, where the pooler knows names: PgBouncer from 1.21 on, unless its
    `max_prepared_statements` is 0.
    """

    def __init__(self, settings: Mapping[str, str]) -> None:
        limits = {**settings, "idle_in_transaction_session_timeout": f"{IDLE_SECONDS}s"}
        self._begin = "BEGIN; " + "; ".join(f"SET LOCAL {name} = '{value}'" for name, value in limits.items())
        self._prepared: WeakKeyDictionary[Any, tuple[bool, dict[str, Any]]] = WeakKeyDictionary()

    async def fetch(self, connection: Any, statement: str, arguments: Sequence[object]) -> list[Any]:
        """Run it and commit; what fails is rolled back."""
        if connection not in self._prepared:
            self._prepared[connection] = await knows_names(connection), {}
        try:
            await connection.execute(self._begin)
            prepared = await self._prepare(connection, statement)
            rows: list[Any] = await prepared.fetch(*arguments)
        except Exception:
            self._prepared.pop(connection)  # what it returns may have changed, by a migration
            if not connection.is_closed():
                await connection.execute("ROLLBACK")
            raise
        await connection.execute("COMMIT")
        return rows

    async def _prepare(self, connection: Any, statement: str) -> Any:
        is_named, known = self._prepared[connection]
        if statement not in known:
            known[statement] = await connection.prepare(statement, name=f"forge_{next(_NUMBERS)}" if is_named else "")
        return known[statement]


async def knows_names(connection: Any) -> bool:
    """Whether the pooler follows prepared statements, and so gives them names of its own on each server."""
    name = f"forge_{uuid4().hex}"
    async with connection.transaction():
        statement = await connection.prepare("SELECT 1 FROM pg_prepared_statements WHERE name = $1", name=name)
        is_passed_on = await statement.fetchval(name) is not None
        if is_passed_on:
            await connection.execute(f'DEALLOCATE "{name}"')
    return not is_passed_on
