"""Which definition of a tool counts: the one that it is pinned to, else the one seen last."""

import logging
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError
from sqlalchemy import (
    CompoundSelect,
    Row,
    Select,
    Text,
    Update,
    and_,
    cast,
    false,
    func,
    literal,
    null,
    select,
    tuple_,
    union_all,
    update,
)

from forge_tools.errors import ToolNotFoundError
from forge_tools.records import ToolSpec, ToolVersion
from forge_tools.storage.models import from_now, tools
from forge_tools.validation import shown

LEAST_DIGEST = 4

logger = logging.getLogger(__name__)

_IS_PINNED = tools.c.pinned_at.is_not(None)


def defaults() -> Select[Any]:
    """The rows that count, by name. Definitions are read of these alone, however many there were."""
    first = _first().subquery()
    same = and_(*(tools.c[name] == first.c[name] for name in ("name", "version", "digest")))
    return select(tools).join(first, same).where(first.c.place == 1).order_by(tools.c.name)


def keep_first(names: Sequence[str]) -> Update:
    """Pin what counts of those tools that are not pinned."""
    pinned = tools.alias("p")
    first = _first().where(tools.c.name.in_(names)).subquery()
    has_pin = select(pinned.c.name).where(pinned.c.pinned_at.is_not(None))
    wanted = select(first.c.name, first.c.version, first.c.digest).where(
        first.c.place == 1, first.c.name.not_in(has_pin)
    )
    key = tuple_(tools.c.name, tools.c.version, tools.c.digest)
    return update(tools).where(key.in_(wanted)).values(pinned_at=from_now(0.0))


def switches_query() -> CompoundSelect[Any]:
    """Rows of (kind, name, detail), each kind through an index that is empty where nothing was said."""
    return union_all(
        select(literal("seen"), cast(null(), Text), cast(func.max(tools.c.last_seen_at), Text)),
        select(literal("disabled"), tools.c.name, cast(null(), Text)).where(tools.c.enabled == false()),
        select(literal("pinned"), tools.c.name, tools.c.digest).where(_IS_PINNED),
    )


def spec_of(row: Row[Any], *, is_as_published: bool = False) -> ToolSpec:
    """The definition of a row, with the digest that it was published with; a demoted one in the lane where it runs now."""
    spec = ToolSpec.model_validate(row.spec)
    if row.demoted_at is not None and not is_as_published:
        spec = spec.model_copy(update={"lane": "process"})
    vars(spec)["digest"] = row.digest  # this code may reckon it otherwise than the worker that published it did
    return spec


class Reader:
    """Reads what may have been written by newer code. What it cannot read is left out, and that is said of each once."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def spec_of(self, row: Row[Any], *, is_as_published: bool = False) -> ToolSpec | None:
        """Do what `spec_of` does; None where this code cannot."""
        try:
            return spec_of(row, is_as_published=is_as_published)
        except ValidationError as error:
            if row.digest not in self._told:
                self._told.add(row.digest)
                first = error.errors(include_url=False, include_input=False)[0]
                logger.warning(
                    "Tool '%s' %s (%s) is left out: this version of forge-tools cannot read its definition (%s: %s). "
                    "Newer code published it; install that here, too.",
                    *(row.name, row.version, row.digest, ".".join(map(str, first["loc"])) or "spec", first["msg"]),
                )
            return None


def version_of(row: Row[Any], spec: ToolSpec, *, is_default: bool) -> ToolVersion:
    """A row, and the definition that was read of it, as people read them."""
    return ToolVersion(
        spec=spec,
        digest=row.digest,
        first_seen_at=row.first_seen_at,
        last_seen_at=row.last_seen_at,
        is_default=is_default,
        is_pinned=row.pinned_at is not None,
        is_enabled=row.enabled,
        demoted_reason=row.demoted_reason,
    )


def chosen(versions: Sequence[ToolVersion], definition: str) -> ToolVersion:
    """The one that a version, a digest or the beginning of one means.

    Raises:
        ToolNotFoundError: naming those there are.
    """
    name = versions[0].spec.name
    exact = [one for one in versions if definition in (one.digest, one.spec.version)]
    begun = [one for one in versions if len(definition) >= LEAST_DIGEST and one.digest.startswith(definition)]
    found = exact or begun
    if len(found) == 1:
        return found[0]
    known = ", ".join(f"{one.spec.version} ({one.digest})" for one in versions)
    said = "means several definitions; give the digest" if found else "is neither a version of it nor a digest"
    raise ToolNotFoundError(name, f"{shown(definition)!r} {said}. There are: {known}.")


def _first() -> Select[Any]:
    order = (tools.c.pinned_at.is_(None), tools.c.last_seen_at.desc(), tools.c.first_seen_at.desc())
    place = func.row_number().over(partition_by=tools.c.name, order_by=order)
    return select(tools.c.name, tools.c.version, tools.c.digest, place.label("place"))
