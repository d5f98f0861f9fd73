"""An execution of the past as a call of today."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from forge_tools.client.call import Call
from forge_tools.client.intake import Rejected
from forge_tools.errors import InvalidCallError
from forge_tools.model import DEFAULT_TIMEOUT, REDACTED, ExecutionContext, ExecutionRecord, ToolSpec
from forge_tools.model.places import HOST_PREFIX
from forge_tools.schema import shown

DEFAULT_QUEUE = "default"


def repeated(
    record: ExecutionRecord,
    spec: ToolSpec | None,
    parameters: Mapping[str, Any],
    dry_run: bool | None,
    changes: Mapping[str, Any],
) -> Call:
    """The call that `record` was, with these parameters in place of its own; `changes` are fields of `Call`.

    `dry_run` None leaves it as it was.

    Raises:
        InvalidCallError: it is not over, or a value is wanted that history does not keep.
    """
    if not record.is_over and not dry_run:
        raise InvalidCallError(
            f"Execution {record.id} is {record.status.value}: to run it again now would be to run it twice. Wait for its "
            "end or cancel it first; a dry run can be had at once."
        )
    values = _merged(record, spec, parameters)
    if "context" not in changes and _is_hidden(record.context.get("metadata")):
        raise InvalidCallError(
            f"History does not keep what is secret, and the metadata of execution {record.id} had such: give its context "
            "again, as `context=` of `client.calls.replay`."
        )
    return replace(Call(record.tool, values, _context(record, dry_run), queue=_queue(record)), **changes)


def explained(rejected: Rejected, record: ExecutionRecord, spec: ToolSpec | None) -> Rejected:
    """Say of a call that is refused today what it repeats, and that its tool has changed, if that may be why."""
    error, metadata = rejected.outcome.error or "", {**rejected.result.metadata, "replay_of": record.id}
    if spec is not None and spec.digest != record.tool_digest:
        was, is_now = record.tool_version, spec.version
        change = f"is {is_now}, and was {was}" if was != is_now else "has another definition than it had"
        why = f"{spec.name} {change} when execution {record.id} was made"
        error = f"{error}. {why}"
        metadata["errors"] = [*metadata.get("errors", ()), why]
    outcome = replace(rejected.outcome, error=error, metadata=json.dumps(metadata))
    return rejected._replace(
        outcome=outcome, result=rejected.result.model_copy(update={"error": error, "metadata": metadata})
    )


def _merged(record: ExecutionRecord, spec: ToolSpec | None, given: Mapping[str, Any]) -> dict[str, Any]:
    parameters = spec.declared if spec else ()
    aliases, known = {alias: p.name for p in parameters for alias in p.aliases}, {p.name for p in parameters}
    # A name and its alias at once are for the checks to refuse.
    changes = {name if aliases.get(name) in given else aliases.get(name, name): value for name, value in given.items()}
    kept = {name: value for name, value in record.parameters.items() if name not in changes}
    hidden = sorted(name for name, value in kept.items() if _is_hidden(value))
    if hidden:
        names = ", ".join(map(shown, hidden))
        raise InvalidCallError(
            f"History does not keep what is secret: give {names} again to replay execution {record.id}.",
            [f"Missing value, kept secret: {shown(name)}" for name in hidden],
        )
    merged = {**record.parameters, **changes}
    return {name: value for name, value in merged.items() if value is not None or name in known or name not in changes}


def _is_hidden(value: Any) -> bool:
    """Whether something was left out of it; a text that says so by chance has to be given again, too."""
    if isinstance(value, str):
        return REDACTED in value
    if isinstance(value, dict):
        return any(map(_is_hidden, (*value, *value.values())))
    return isinstance(value, list) and any(map(_is_hidden, value))


def _context(record: ExecutionRecord, dry_run: bool | None) -> ExecutionContext:
    """As it was. A timeout that nobody asked for stays one that nobody asks for."""
    known = {name: value for name, value in record.context.items() if name in ExecutionContext.model_fields}
    if record.timeout_source != "call" and "by call" not in record.timeout_source:
        is_asked = record.timeout_source == "rejected" and known.get("timeout") != DEFAULT_TIMEOUT
        known = known if is_asked else {name: value for name, value in known.items() if name != "timeout"}
    if dry_run is not None:
        known["dry_run"] = dry_run
    return ExecutionContext.model_validate({"working_dir": ".", **known})


def _queue(record: ExecutionRecord) -> str | None:
    """The queue it had, unless configuration or the host of its workspace decides."""
    is_decided_anew = record.queue == DEFAULT_QUEUE or record.queue.startswith(HOST_PREFIX)
    return None if is_decided_anew else record.queue
