"""Which definition of a tool counts: the one that it is pinned to, else the one seen last."""

import json
import logging
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError
from sqlalchemy import (
    Row,
    Select,
    Update,
    func,
    select,
    tuple_,
    update,
)

from forge_tools.errors import ErrorCode, ForgeError, ToolError, ToolNotFoundError
from forge_tools.records import NewExecution, ToolSpec, ToolVersion
from forge_tools.storage.functions import from_now
from forge_tools.storage.models import tools
from forge_tools.storage.rows import MAX_SKEW, record_of, skewed
from forge_tools.validation import shown

LEAST_DIGEST = 4

logger = logging.getLogger(__name__)

_IS_PINNED = tools.c.pinned_at.is_not(None)


def defaults() -> Select[Any]:
    """The rows that count, by name."""
    return select(tools).where(tools.c.is_default).order_by(tools.c.name)


def pin_defaults(names: Sequence[str]) -> Update:
    """Pin what counts of those tools that are not pinned."""
    pinned = select(tools.c.name).where(_IS_PINNED)
    wanted = tools.c.is_default & tools.c.name.in_(names) & tools.c.name.not_in(pinned)
    return update(tools).where(wanted).values(pinned_at=from_now(0.0))


def settle_defaults(names: Sequence[str]) -> tuple[Update, Update]:
    """Say anew which definition of each of those tools counts: first that none does, since two never may."""
    named = tools.c.name.in_(names)
    order = (tools.c.pinned_at.is_(None), tools.c.last_seen_at.desc(), tools.c.first_seen_at.desc())
    place = func.row_number().over(partition_by=tools.c.name, order_by=order)
    ranked = select(tools.c.name, tools.c.version, tools.c.digest, place.label("place")).where(named).subquery()
    first = select(ranked.c.name, ranked.c.version, ranked.c.digest).where(ranked.c.place == 1)
    key = tuple_(tools.c.name, tools.c.version, tools.c.digest)
    return (
        update(tools).where(named, tools.c.is_default).values(is_default=False),
        update(tools).where(key.in_(first)).values(is_default=True),
    )


def spec_of(published: Any, digest: str, *, is_demoted: bool) -> ToolSpec:
    """A definition, with the digest that it was published with; a demoted one in the lane where it runs now."""
    spec = ToolSpec.model_validate(published)
    if is_demoted:
        spec = spec.model_copy(update={"lane": "process"})
    vars(spec)["digest"] = digest  # this code may reckon it otherwise than the worker that published it did
    return spec


class ToolChangedError(ToolError):
    """The insert refused a call: its tool is disabled, or defined otherwise than the call was checked by.

    `current` is the definition that counts, None where this code cannot read it.
    """

    code = ErrorCode.TOOL_CHANGED

    def __init__(self, name: str, current: ToolSpec | None, *, is_enabled: bool) -> None:
        how = "is defined otherwise than when" if is_enabled else "was disabled after"
        super().__init__(name, f"Tool changed: {name} {how} the call was checked. Call again.")
        self.current = current
        self.is_enabled = is_enabled


def refusal(new: NewExecution, skew: float, *current: Any) -> ForgeError:
    """Why an insert refused a call: the time of its id, or what counts of its tool (name, spec, digest, enabled, demoted)."""
    if abs(skew) > MAX_SKEW:
        return skewed(new, skew)
    name, published, digest, is_enabled, is_demoted = current
    try:
        spec = spec_of(json.loads(published), digest, is_demoted=bool(is_demoted))
    except ValueError:  # newer code published it
        spec = None
    return ToolChangedError(name, spec, is_enabled=bool(is_enabled))


class Reader:
    """Reads what may have been written by newer code. What it cannot read is left out, and that is said of each once."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def spec_of(self, row: Row[Any], *, is_as_published: bool = False) -> ToolSpec | None:
        """Do what `spec_of` does; None where this code cannot."""
        try:
            is_demoted = row.demoted_at is not None and not is_as_published
            return spec_of(row.spec, row.digest, is_demoted=is_demoted)
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


def version_of(row: Row[Any], spec: ToolSpec) -> ToolVersion:
    """A row, and the definition that was read of it, as people read them."""
    return record_of(ToolVersion, row, spec=spec, is_pinned=row.pinned_at is not None, is_enabled=row.enabled)


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
