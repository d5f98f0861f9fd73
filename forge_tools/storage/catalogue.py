"""The catalogue: every definition of a tool that a worker ever published."""

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

from sqlalchemy import Update, false, select, text, true, update
from sqlalchemy.ext.asyncio import AsyncConnection

from forge_tools.errors import ToolNotFoundError
from forge_tools.records import ExecutionStatus, ToolSpec
from forge_tools.storage import alive
from forge_tools.storage.engine import Database
from forge_tools.storage.models import execution_queue, from_now, tools, workers
from forge_tools.storage.rows import clean
from forge_tools.validation import shown, suggestion

LIVE_SECONDS = 60.0
"""A boot silent for longer is not asked what it hosts."""


class _Host(NamedTuple):
    boot: str
    hostname: str
    tools: dict[str, str]


class Catalogue:
    """Tools as data, so that a client validates and exports them without importing any."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def publish(self, specs: Sequence[ToolSpec], boot: str) -> list[str]:
        """Write what `boot`, which must be registered, hosts.

        Returns a warning for each tool of which another live boot hosts a different definition under the same version.
        """
        hosted = {spec.name: f"{spec.version} {spec.digest}" for spec in specs}

        statement = self._database.upsert(tools).values(
            enabled=True, first_seen_at=from_now(0.0), last_seen_at=from_now(0.0)
        )
        seen = statement.on_conflict_do_update(
            index_elements=["name", "version", "digest"], set_={"last_seen_at": from_now(0.0)}
        )

        async def work(connection: AsyncConnection) -> list[str]:
            await _in_turn(connection)
            if specs:
                await connection.execute(seen, [_values(spec) for spec in sorted(specs, key=_identity)])
                await connection.execute(_kept_disabled())
            await connection.execute(update(workers).where(workers.c.id == boot).values(tools=hosted))
            return _disagreements(await _live(connection), boot)

        return await self._database.write(work)

    async def disagreements(self) -> list[str]:
        """Say for which tools live workers host different definitions under one version."""
        async with self._database.reading() as connection:
            return _disagreements(await _live(connection))

    async def specs(self) -> list[ToolSpec]:
        """The enabled tools by name; of several definitions, the one seen last. Demoted ones say lane `process`."""
        enabled, _ = await self.read()
        return enabled

    async def read(self) -> tuple[list[ToolSpec], list[ToolSpec]]:
        """The tools that are enabled, and those that are not, as `specs` has them."""
        query = select(tools.c.name, tools.c.spec, tools.c.demoted_at, tools.c.enabled).order_by(tools.c.last_seen_at)
        async with self._database.reading() as connection:
            newest = {row.name: row for row in await connection.execute(query)}
        enabled, disabled = list[ToolSpec](), list[ToolSpec]()
        for _, row in sorted(newest.items()):
            (enabled if row.enabled else disabled).append(_spec(row.spec, is_demoted=row.demoted_at is not None))
        return enabled, disabled

    async def switch(self, name: str, *, is_enabled: bool) -> str:
        """Enable or disable the tool of that name or alias, in every definition there is and will be; returns its name.

        Raises:
            ToolNotFoundError: none was ever published.
        """
        specs = [spec for part in await self.read() for spec in part]
        known = {alias: spec.name for spec in specs for alias in spec.aliases}
        known |= {spec.name: spec.name for spec in specs}
        if name not in known:
            raise ToolNotFoundError(shown(name), f"No worker ever published it{suggestion(name, known)}")
        tool = known[name]

        async def work(connection: AsyncConnection) -> None:
            await _in_turn(connection)
            await connection.execute(update(tools).where(tools.c.name == tool).values(enabled=is_enabled))

        await self._database.write(work)
        return tool

    async def disabled(self) -> frozenset[str]:
        """The names of the tools that are disabled."""
        query = select(tools.c.name).where(tools.c.enabled == false())
        async with self._database.reading() as connection:
            return frozenset(await connection.scalars(query))

    async def demote(self, spec: ToolSpec, reason: str) -> None:
        """Move a tool as defined by `spec` to the process lane for good, with its calls that wait in the async lane.

        Publishing the same definition again does not undo it; another definition starts afresh.
        """
        statement = (
            update(tools)
            .where(tools.c.name == spec.name, tools.c.digest == spec.digest, tools.c.demoted_at.is_(None))
            .values(demoted_at=from_now(0.0), demoted_reason=clean(reason))
        )

        async def work(connection: AsyncConnection) -> None:
            await connection.execute(statement)
            await connection.execute(_diverted([spec.key]))

        await self._database.write(work)

    async def demoted(self) -> set[tuple[str, str]]:
        """(name, digest) of every demoted definition."""
        query = select(tools.c.name, tools.c.digest).where(tools.c.demoted_at.is_not(None))
        async with self._database.reading() as connection:
            return {(row.name, row.digest) for row in await connection.execute(query)}

    async def divert(self, keys: Sequence[str]) -> int:
        """Move queued calls of demoted tools that came to the async lane since; returns how many."""

        async def work(connection: AsyncConnection) -> int:
            return (await connection.execute(_diverted(keys))).rowcount

        return await self._database.write(work)


def _spec(stored: object, *, is_demoted: bool) -> ToolSpec:
    spec = ToolSpec.model_validate(stored)
    if not is_demoted:
        return spec
    spec.digest  # noqa: B018 computed before the copy, which keeps it: the definition is the one that was published
    return spec.model_copy(update={"lane": "process"})


async def _in_turn(connection: AsyncConnection) -> None:
    """Let no other writer of the catalogue in: a switch must find the definition that is published meanwhile, or be found."""
    if connection.dialect.name == "postgresql":  # SQLite has one writer at a time anyway
        await connection.execute(text("LOCK TABLE tools IN SHARE ROW EXCLUSIVE MODE"))


def _kept_disabled() -> Update:
    """A new definition of a disabled tool is as disabled as the ones before it: deploying is not enabling."""
    off = select(tools.c.name).where(tools.c.enabled == false())
    return update(tools).where(tools.c.enabled == true(), tools.c.name.in_(off)).values(enabled=False)


def _diverted(keys: Sequence[str]) -> Update:
    queued = execution_queue.c
    waiting = (
        select(queued.id)
        .where(queued.status == ExecutionStatus.QUEUED.value, queued.lane == "async", queued.tool_key.in_(keys))
        .order_by(queued.id)
        .with_for_update(skip_locked=True)
    )
    return update(execution_queue).where(queued.id.in_(waiting)).values(lane="process")


async def _live(connection: AsyncConnection) -> list[_Host]:
    rows = select(workers.c.id, workers.c.hostname, workers.c.tools).where(alive.is_alive(LIVE_SECONDS))
    return [_Host(*row) for row in await connection.execute(rows.order_by(workers.c.id))]


def _disagreements(hosts: Sequence[_Host], boot: str | None = None) -> list[str]:
    """Say where two live boots (or `boot` and another) host different definitions under one version."""
    return [
        f"Tool '{name}' {theirs.partition(' ')[0]} of worker {one.boot} on {one.hostname} differs from the one that worker "
        f"{other.boot} on {other.hostname} hosts under the same version; calls may meet either. Deploy one definition, or "
        "raise the version."
        for one, other in combinations(hosts, 2)
        if boot in {None, one.boot, other.boot}
        for name, theirs in sorted(one.tools.items())
        if _differs(theirs, other.tools.get(name))
    ]


def _differs(ours: str, theirs: str | None) -> bool:
    return theirs is not None and theirs != ours and theirs.partition(" ")[0] == ours.partition(" ")[0]


def _identity(spec: ToolSpec) -> tuple[str, str, str]:
    return spec.name, spec.version, spec.digest


def _values(spec: ToolSpec) -> dict[str, object]:
    return {
        "name": spec.name,
        "version": spec.version,
        "digest": spec.digest,
        "category": spec.category.value,
        "lane": spec.lane,
        "timeout": spec.timeout,
        "spec": spec.model_dump(mode="json"),
    }
