"""Executions and outcomes as values that columns can store, and why a database rejects some."""

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import Field, fields
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

from forge_tools.errors import ErrorCode, ForgeError, ToolError, UnstorableRowError
from forge_tools.model.calls import ToolResult
from forge_tools.model.diagnosis import Diagnosis
from forge_tools.model.execution import Claim, ExecutionStatus, Holder, NewExecution, Outcome, Replay
from forge_tools.model.tools import ToolSpec
from forge_tools.schema import clean_text, decode_json
from forge_tools.storage.columns import JsonList, Kind, Relation, Text
from forge_tools.storage.tables import execution_attempts, executions


class _Kept(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


T = TypeVar("T", bound=_Kept)

MAX_SKEW = 3600.0
"""How many seconds the time of an id may differ from the database's clock: ids order pages and partitions."""


def _shared(table: Relation, record: type[Any], *, but: Collection[str] = ()) -> tuple[str, ...]:
    """Return the columns of a table that a record also has, in the order of the record."""
    return tuple(field.name for field in fields(record) if field.name in table.columns and field.name not in but)


ASKED = _shared(executions, NewExecution)
"""The columns that each new execution brings."""

CLAIM = _shared(executions, Claim, but={"id"})
"""The columns that a worker gets with its claim."""

OUTCOME = _shared(execution_attempts, Outcome, but={"attempt", "token"})
"""The columns that an attempt leaves."""

RESULT = ("attempt", *OUTCOME)

Record = tuple[NewExecution, Outcome]
"""An execution that is over when it is inserted, and how it ended."""

Answer = Holder | ForgeError | None
"""Who holds the key, why the call cannot be stored, or None: it is stored."""


class Ask(NamedTuple):
    """A request for a claim: the id and attempt, and the token that the winner holds."""

    id: str
    attempt: int
    token: str


def clean(text: str | None) -> Any:
    """Make a plain text column storable; NULL stays NULL."""
    return text if text is None or (text.isascii() and text.isprintable()) else clean_text(text)


_FORMS: dict[Kind, Callable[[Any], Any]] = {
    Text: clean,
    JsonList: lambda names: json.dumps(names) if names else None,
}
"""How values are converted, by the kind of their column; other JSON is already text here."""


def _values_of(table: Relation, names: Sequence[str]) -> Callable[[Any], list[Any]]:
    get = attrgetter(*names)
    forms = [(place, _FORMS.get(table.columns[name].kind)) for place, name in enumerate(names)]
    changed = [(place, form) for place, form in forms if form is not None]

    def values(record: Any) -> list[Any]:
        found = [*get(record)]
        for place, form in changed:
            value = found[place]
            # The first test of `clean`, which spares nearly every text the call.
            if value is not None and not (form is clean and value.isascii() and value.isprintable()):
                found[place] = form(value)
        return found

    return values


execution_values: Callable[[NewExecution], list[Any]] = _values_of(executions, ASKED)
"""Returns the values of `ASKED`, storable."""

outcome_values: Callable[[Outcome], list[Any]] = _values_of(execution_attempts, OUTCOME)
"""Returns the values of `OUTCOME`, storable."""


def named_values(table: Relation, kind: type[Any]) -> Callable[[Any], dict[str, Any]]:
    """Make a function that converts a record to a dict of the table's columns that it has, storable."""
    names = _shared(table, kind)
    values = _values_of(table, names)
    return lambda record: dict(zip(names, values(record), strict=True))


asked_by_name: Callable[[NewExecution], dict[str, Any]] = named_values(executions, NewExecution)
outcome_by_name: Callable[[Outcome], dict[str, Any]] = named_values(execution_attempts, Outcome)
"""It includes the attempt's number and token."""


def record_of(kind: type[T], row: Any, **more: Any) -> T:
    """Read a row as a record: each field not given here is the column of that name."""
    return kind(**{name: getattr(row, name) for name in kind.__dataclass_fields__ if name not in more}, **more)


def claim_of(
    ask: Ask, values: Sequence[Any], *, encrypted: str | None, reply_key: str | None, started_at: float
) -> Claim:
    """Build a claim from the values of `CLAIM` and those that only its row in the queue has."""
    told: dict[str, Any] = dict(zip(CLAIM, values, strict=True))
    told["idempotent"] = bool(told["idempotent"])
    return Claim(
        id=ask.id,
        attempt=ask.attempt + 1,
        token=ask.token,
        started_at=started_at,
        encrypted=encrypted,
        reply_key=reply_key,
        **told,
    )


def links(new_id: str, replay: Replay) -> tuple[str, str]:
    """Return the details of a replay's event, and of the event of the execution it repeats, as JSON."""
    said = {"dry_run": replay.dry_run, **({"reason": clean(replay.reason)} if replay.reason else {})}
    return json.dumps({"of": replay.of, **said}), json.dumps({"as": new_id, **said})


def spec_of(published: Any, digest: str, *, is_moved: bool) -> ToolSpec:
    """Read a definition with the digest it was published with; one that was moved gets the lane where it runs now."""
    spec = ToolSpec.model_validate(published)
    if is_moved:
        spec = spec.model_copy(update={"lane": "process"})
    vars(spec)["digest"] = digest  # this code may compute it differently than the worker that published it
    return spec


class ToolChangedError(ToolError):
    """The insert refused a call: its tool is disabled, or is defined otherwise than when the call was checked.

    `current` is the definition that counts, None if this code cannot read it.
    """

    code = ErrorCode.TOOL_CHANGED

    def __init__(self, name: str, current: ToolSpec | None, *, is_enabled: bool) -> None:
        how = "has another definition than when" if is_enabled else "was disabled after"
        super().__init__(name, f"Tool changed: {name} {how} the call was checked. Call again.")
        self.current = current
        self.is_enabled = is_enabled


def refusal(new: NewExecution, skew: float, *current: Any) -> ForgeError:
    """Say why an insert refused a call: `skew` of its id from the clock in seconds, or its tool now.

    `current` is that tool's name, spec, digest, enabled and moved.
    """
    if abs(skew) > MAX_SKEW:
        direction = "ahead of" if skew > 0 else "behind"
        return UnstorableRowError(
            f"Execution id {new.id} was made {abs(skew):.0f} s {direction} the database's clock; "
            f"the limit is {MAX_SKEW:.0f} s. Set this host's clock (NTP) and submit again with a new id."
        )
    name, published, digest, is_enabled, is_moved = current
    try:
        spec = spec_of(json.loads(published), digest, is_moved=bool(is_moved))
    except ValueError:  # newer code published it
        spec = None
    return ToolChangedError(name, spec, is_enabled=bool(is_enabled))


def unstorable(outcome: Outcome, error: UnstorableRowError) -> Outcome:
    """Return the failed result that replaces one that the database refuses."""
    return Outcome(
        id=outcome.id,
        attempt=outcome.attempt,
        token=outcome.token,
        status=ExecutionStatus.FAILED,
        duration_ms=outcome.duration_ms,
        error=f"The tool ran, but its result cannot be stored: {error.message}",
        error_code=ErrorCode.UNSTORABLE,
    )


def stored_result(execution_id: str, row: Any) -> ToolResult:
    """Build the result from the values of `RESULT`, as callers get it: its metadata has the execution's id."""
    told: dict[str, Any] = {
        name: value if value is None or name not in _JSON_RESULTS else decode_json(value)
        for name, value in zip(RESULT, row, strict=True)
    }
    status, attempt = ExecutionStatus(told.pop("status")), told.pop("attempt")
    told["metadata"] |= {"execution_id": execution_id, "attempt": attempt}
    if told["diagnosis"] is not None:
        told["diagnosis"] = Diagnosis.read(told["diagnosis"])
    return ToolResult(success=status == ExecutionStatus.SUCCEEDED, **told)


def result_text(outcome: Outcome) -> bytes:
    """Return an outcome, as JSON, as it would be read once stored."""
    return json.dumps([outcome.attempt, *outcome_values(outcome)]).encode()


def result_of(execution_id: str, text: bytes) -> ToolResult:
    """Undo `result_text`."""
    return stored_result(execution_id, json.loads(text))


_JSON_RESULTS = {name for name in OUTCOME if execution_attempts.columns[name].kind.type == "json"}


def late_detail(outcome: Outcome) -> str:
    """Return what people may read about a finish that came too late."""
    output = outcome.output
    detail = {
        "attempt": outcome.attempt,
        "status": outcome.status.value,
        "duration_ms": outcome.duration_ms,
        "error": outcome.error,
        "error_code": outcome.error_code,
        "output": output if output is None or len(output) <= LATE_OUTPUT else f"{output[:LATE_OUTPUT]}...",
    }
    return json.dumps(detail)


LATE_OUTPUT = 10_000
"""How many characters of a late output's JSON are kept."""
