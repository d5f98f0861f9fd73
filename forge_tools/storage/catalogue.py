"""What workers publish for clients: definitions of tools, by default the pinned or last seen one; encryption keys."""

import base64
import builtins
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import combinations
from typing import Any

from sqlalchemy import Row, Update, delete, false, func, or_, select, true, tuple_, update

from forge_tools.errors import ConfigurationError, ToolNotFoundError
from forge_tools.model.execution import ExecutionStatus
from forge_tools.model.overview import WorkerWalls
from forge_tools.model.secret_names import EncryptionKey
from forge_tools.model.tools import ToolSpec, ToolVersion, ToolWalls
from forge_tools.schema import shown, suggestion
from forge_tools.storage.connection.database import Database, prepare
from forge_tools.storage.directory import LIVE_SECONDS, Directories
from forge_tools.storage.functions import from_now
from forge_tools.storage.queue.workers import is_alive
from forge_tools.storage.rows import clean, record_of
from forge_tools.storage.sqlalchemy_engine import AsyncConnection
from forge_tools.storage.sqlalchemy_tables import encryption_keys, execution_queue, tools, workers

LEAST_DIGEST = 4

known_keys = encryption_keys.c


def chosen(versions: Sequence[ToolVersion], definition: str) -> ToolVersion:
    """Return the version that `definition` names: by version, by digest, or by the beginning of a digest."""
    name = versions[0].spec.name
    exact = [one for one in versions if definition in (one.digest, one.spec.version)]
    begun = [one for one in versions if len(definition) >= LEAST_DIGEST and one.digest.startswith(definition)]
    found = exact or begun
    if len(found) == 1:
        return found[0]
    known = ", ".join(f"{one.spec.version} ({one.digest})" for one in versions)
    said = "means several definitions; give the digest" if found else "is neither a version of it nor a digest"
    raise ToolNotFoundError(name, f"{shown(definition)!r} {said}. There are: {known}.")


class Catalogue:
    """Tools as data, so that a client validates and exports them without importing them."""

    def __init__(self, database: Database, directories: Directories) -> None:
        self._database = database
        self._directories = directories

    async def publish(
        self,
        specs: Sequence[ToolSpec],
        instance: str,
        *,
        keeps_first: bool = False,
        walls: WorkerWalls | None = None,
        places: Mapping[str, ToolWalls] | None = None,
    ) -> list[str]:
        """Record which tools `instance`, which must be registered, hosts from now on besides those it published before.

        With `keeps_first`, each of its tools that is not pinned is pinned to the definition that was the default
        before. Tools that its `walls` withhold are left out. `places` maps names of tools to their walls. Returns a
        warning for each tool of which another live instance hosts a different definition under the same version, and
        for each that is pinned to another definition.
        """
        names = [spec.name for spec in specs]
        hosted = {
            spec.name: f"{spec.version} {spec.digest}"
            for spec in specs
            if walls is None or spec.name not in walls.withheld
        }
        statement = self._database.upsert(tools).values(
            enabled=True, is_default=False, first_seen_at=from_now(0.0), last_seen_at=from_now(0.0)
        )
        seen = statement.on_conflict_do_update(
            index_elements=["name", "version", "digest"],
            set_={"last_seen_at": from_now(0.0), "walls": statement.excluded.walls, "moved": statement.excluded.moved},
        )

        async def work(connection: AsyncConnection) -> list[str]:
            await prepare(connection, "catalogue_in_turn")
            if specs:
                if keeps_first:
                    await connection.execute(_pin_defaults(names))
                await connection.execute(
                    seen, [_values(spec, (places or {}).get(spec.name, ToolWalls())) for spec in specs]
                )
                await connection.execute(_kept_disabled())
                await _settle_defaults(connection, names)
                if keeps_first:
                    await connection.execute(_pin_defaults(names))  # those published for the first time
            before = await connection.scalar(select(workers.c.tools).where(workers.c.id == instance)) or {}
            facts = {"tools": {**before, **hosted}} | ({} if walls is None else {"walls": asdict(walls)})
            await connection.execute(update(workers).where(workers.c.id == instance).values(facts))
            return _disagreements(await _live(connection), instance) + await _left_alone(connection, specs)

        return await self._database.write(work)

    async def disagreements(self) -> list[str]:
        """Name the tools of which live workers host different definitions under one version."""
        async with self._database.reading() as connection:
            return _disagreements(await _live(connection))

    async def versions(self, name: str) -> list[ToolVersion]:
        """List all definitions ever published of the tool of that name or alias: the default first, then the last seen."""
        tool = await self._named(name)
        async with self._database.reading() as connection:
            return await self._versions(connection, tool)

    async def definition(self, name: str, version: str, digest: str) -> ToolSpec | None:
        """Return a definition as published, such as the one an execution was accepted with; None if there is none."""
        found = (tools.c.name == clean(name), tools.c.version == clean(version), tools.c.digest == clean(digest))
        rows = await self._database.rows(select(tools).where(*found))
        return self._published(rows[0]) if rows else None

    async def hosted(self, instance: str, name: str) -> tuple[str, str] | None:
        """Return version and digest of a tool as a worker instance hosts it; None if unknown."""
        known = await self._database.scalar(select(workers.c.tools).where(workers.c.id == instance)) or {}
        version, _, digest = str(known.get(name, "")).partition(" ")
        return (version, digest) if digest else None

    async def hosts_of(self, name: str, digest: str) -> list[str]:
        """List the hosts of live workers that host that definition."""
        async with self._database.reading() as connection:
            live = await _live(connection)
        return sorted({one.hostname for one in live if one.tools.get(name, "").partition(" ")[2] == digest})

    async def pin(self, name: str, definition: str | None) -> ToolVersion:
        """Pin a tool to one definition, so that no other runs; `definition` is a version, a digest or its prefix.

        None unpins it: the definition seen last becomes the default again. Returns the default.
        """
        tool = await self._named(name)
        of_tool = update(tools).where(tools.c.name == tool)

        async def work(connection: AsyncConnection) -> ToolVersion:
            await prepare(connection, "catalogue_in_turn")
            one = None if definition is None else chosen(await self._versions(connection, tool), definition)
            await connection.execute(of_tool.where(tools.c.pinned_at.is_not(None)).values(pinned_at=None))
            if one is not None:
                exactly = (tools.c.version == one.spec.version, tools.c.digest == one.digest)
                await connection.execute(of_tool.where(*exactly).values(pinned_at=from_now(0.0)))
            await _settle_defaults(connection, [tool])
            return (await self._versions(connection, tool))[0]

        return await self._database.write(work)

    async def switch(self, name: str, *, is_enabled: bool) -> str:
        """Enable or disable the tool of that name or alias in all definitions, future ones included; returns its name."""
        tool = await self._named(name)

        async def work(connection: AsyncConnection) -> None:
            await prepare(connection, "catalogue_in_turn")
            await connection.execute(update(tools).where(tools.c.name == tool).values(enabled=is_enabled))

        await self._database.write(work)
        return tool

    async def switches(self) -> tuple[frozenset[str], frozenset[tuple[str, str]]]:
        """Return the names of disabled tools, and (name, digest) of pinned definitions."""
        query = select(tools.c.name, tools.c.digest, tools.c.enabled, tools.c.pinned_at).where(
            or_(tools.c.enabled == false(), tools.c.pinned_at.is_not(None))
        )
        rows = await self._database.rows(query)
        disabled = frozenset(row.name for row in rows if not row.enabled)
        return disabled, frozenset((row.name, row.digest) for row in rows if row.pinned_at is not None)

    async def _named(self, name: str) -> str:
        directory = await self._directories.read()
        specs = [*directory.enabled, *directory.disabled]
        known = {alias: spec.name for spec in specs for alias in spec.aliases}
        known |= {spec.name: spec.name for spec in specs}
        if name not in known:
            raise ToolNotFoundError(
                shown(name), f"No worker ever published it{suggestion(name, known)}. What there is: forge-tools tools"
            )
        return known[name]

    async def _versions(self, connection: AsyncConnection, tool: str) -> list[ToolVersion]:
        rows = (
            await connection.execute(
                select(tools)
                .where(tools.c.name == tool)
                .order_by(tools.c.is_default.desc(), tools.c.last_seen_at.desc(), tools.c.first_seen_at.desc())
            )
        ).all()
        return [
            record_of(ToolVersion, row, spec=spec, is_pinned=row.pinned_at is not None, is_enabled=row.enabled)
            for row in rows
            if (spec := self._published(row)) is not None
        ]

    def _published(self, row: Row[Any]) -> ToolSpec | None:
        return self._directories.definition(row.name, row.version, row.digest, row.spec)

    async def demote(self, spec: ToolSpec, reason: str) -> None:
        """Move a tool as defined by `spec` to the process lane permanently, with its calls that wait in the async lane.

        Publishing the same definition again does not undo this; another definition is not affected.
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
        """Return (name, digest) of every demoted definition."""
        query = select(tools.c.name, tools.c.digest).where(tools.c.demoted_at.is_not(None))
        return {(row.name, row.digest) for row in await self._database.rows(query)}

    async def divert(self, keys: Sequence[str]) -> int:
        """Move queued calls of demoted tools out of the async lane, if more have arrived; returns how many."""
        return await self._database.execute(_diverted(keys))


async def _settle_defaults(connection: AsyncConnection, names: Sequence[str]) -> None:
    """Choose the default definition of each of those tools again: first clear it, since there may never be two."""
    named = tools.c.name.in_(names)
    order = (tools.c.pinned_at.is_(None), tools.c.last_seen_at.desc(), tools.c.first_seen_at.desc())
    place = func.row_number().over(partition_by=tools.c.name, order_by=order)
    ranked = select(tools.c.name, tools.c.version, tools.c.digest, place.label("place")).where(named).subquery()
    first = select(ranked.c.name, ranked.c.version, ranked.c.digest).where(ranked.c.place == 1)
    key = tuple_(tools.c.name, tools.c.version, tools.c.digest)
    await connection.execute(update(tools).where(named, tools.c.is_default).values(is_default=False))
    await connection.execute(update(tools).where(key.in_(first)).values(is_default=True))


def _pin_defaults(names: Sequence[str]) -> Update:
    pinned = select(tools.c.name).where(tools.c.pinned_at.is_not(None))
    wanted = tools.c.is_default & tools.c.name.in_(names) & tools.c.name.not_in(pinned)
    return update(tools).where(wanted).values(pinned_at=from_now(0.0))


def _kept_disabled() -> Update:
    """Disable a new definition of a disabled tool: deploying does not enable."""
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


async def _live(connection: AsyncConnection) -> Sequence[Row[str, str, dict[str, str]]]:
    rows = select(workers.c.id, workers.c.hostname, workers.c.tools).where(is_alive(LIVE_SECONDS))
    return (await connection.execute(rows.order_by(workers.c.id))).all()


def _disagreements(hosts: Sequence[Row[str, str, dict[str, str]]], instance: str | None = None) -> list[str]:
    """Name tools of which two live instances (or `instance` and another) host two definitions under one version."""
    return [
        f"Tool '{name}' {theirs.partition(' ')[0]} of worker {one.id} on {one.hostname} differs from the one that worker "
        f"{other.id} on {other.hostname} hosts under the same version; calls may meet either. Deploy one definition, or "
        "raise the version."
        for one, other in combinations(hosts, 2)
        if instance in {None, one.id, other.id}
        for name, theirs in sorted(one.tools.items())
        if _differs(theirs, other.tools.get(name))
    ]


def _differs(ours: str, theirs: str | None) -> bool:
    return theirs is not None and theirs != ours and theirs.partition(" ")[0] == ours.partition(" ")[0]


async def _left_alone(connection: AsyncConnection, specs: Sequence[ToolSpec]) -> list[str]:
    query = select(tools.c.name, tools.c.version, tools.c.digest).where(tools.c.pinned_at.is_not(None))
    pins = {row.name: row for row in await connection.execute(query)}
    return [
        f"Tool '{spec.name}' {spec.version} ({spec.digest}) is hosted here, but pinned to {pin.version} ({pin.digest}): this "
        f"worker does not run its calls. To make it the default: forge-tools tools pin {spec.name} {spec.digest}"
        for spec in specs
        if (pin := pins.get(spec.name)) is not None and pin.digest != spec.digest
    ]


def _values(spec: ToolSpec, walls: ToolWalls) -> dict[str, object]:
    said = spec.model_dump(mode="json")
    return {name: said[name] for name in ("name", "version", "category", "lane", "timeout")} | {
        "digest": spec.digest,
        "spec": said,
        "walls": walls.tier,
        "moved": walls.is_moved,
    }


class EncryptionKeys:
    """The keys that clients encrypt with: the newest that is not retired. Workers decrypt with retired ones too."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def publish(self, id: str, public: bytes) -> None:
        """Make clients encrypt with this key from now on. Publishing it again changes nothing."""
        row = {"id": id, "public": base64.b64encode(public).decode(), "created_at": from_now(0.0)}
        statement = self._database.upsert(encryption_keys).values(row).on_conflict_do_nothing()
        await self._database.execute(statement)

    async def list(self) -> builtins.list[EncryptionKey]:
        """List all keys, the newest first, with how many executions under way need each."""
        newest_first = select(encryption_keys).order_by(known_keys.created_at.desc(), known_keys.id)
        async with self._database.reading() as connection:
            return [
                record_of(
                    EncryptionKey,
                    row,
                    public=base64.b64decode(row.public),
                    live=await _needing(connection, row.id),
                )
                for row in (await connection.execute(newest_first)).all()
            ]

    async def retire(self, ids: Sequence[str]) -> None:
        """Stop clients from using these keys; workers still decrypt what was encrypted with them."""
        retired = update(encryption_keys).where(known_keys.id.in_(ids), known_keys.retired_at.is_(None))
        await self._database.execute(retired.values(retired_at=from_now(0.0)))

    async def forget(self, id: str) -> None:
        async def work(connection: AsyncConnection) -> None:
            in_use = select(known_keys.id).where(known_keys.id == id, known_keys.retired_at.is_(None))
            if await connection.scalar(in_use) is not None:
                raise ConfigurationError(f"Key {id} is in use. Retire it first: forge-tools keys retire {id}")
            if live := await _needing(connection, id):
                raise ConfigurationError(
                    f"Unfinished calls that are encrypted with key {id}: {live:,}. Wait until they have ended."
                )
            await connection.execute(delete(encryption_keys).where(known_keys.id == id))

        await self._database.write(work)


async def _needing(connection: AsyncConnection, id: str) -> int:
    """Count calls under way that need it: encrypted text begins with the version of its format and its key's id."""
    needed = select(func.count()).select_from(execution_queue).where(execution_queue.c.encrypted.like(f"%.{id}.%"))
    return int(await connection.scalar(needed) or 0)
