"""Turns a call into the row that SQL accepts, or into a rejection that says what to fix."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache, partial
from typing import Any, NamedTuple

from forge_tools.client.call import Call, without_texts
from forge_tools.client.catalogue import REFRESH_INTERVAL, Snapshot
from forge_tools.config import Settings
from forge_tools.errors import EncryptionError, ErrorCode, InvalidCallError
from forge_tools.model.calls import (
    COUNT,
    LONGEST_SECONDS,
    ExecutionContext,
    RetryPolicy,
    ToolResult,
    is_count,
    is_duration,
    unlike,
)
from forge_tools.model.execution import NewExecution, new_id
from forge_tools.model.overview import told_of
from forge_tools.model.places import host_of, host_queue
from forge_tools.model.tools import ToolCategory, ToolSpec
from forge_tools.schema import Validator, clean_text, encode_json, suggestion
from forge_tools.secrets.detection import Patterns, SecretDetector
from forge_tools.secrets.scrubber import LEAST_IN_FAILURES, scrubber_of
from forge_tools.setting_types import queue_name

MAX_NAME = 200
SHOWN_TOOLS = 20
KEY_SECONDS = 60.0
"""How long clients use a key before they read it again: it may have been retired since, and be deleted soon."""

NO_KEY = (
    "{tool} takes a secret ({names}), and the database has no key to encrypt it with. Make one where the workers read it: "
    "forge-tools keys new. Or pass the secret by reference: secret://NAME"
)


class Rejected(NamedTuple):
    """A call that is over before it began: the failed result, and the record that keeps it.

    A snapshot older than `most_age` seconds may not reject it: its tool may have appeared or changed since.
    """

    new: NewExecution
    result: ToolResult
    most_age: float


class _Plan(NamedTuple):
    """What is the same for every call of a tool, computed on its first one."""

    spec: ToolSpec
    validator: Validator
    queue: str
    handles: tuple[str, ...]
    """Parameters whose values name the host that the call must reach."""
    detector: SecretDetector | None
    """What its calls hide; None if nothing."""
    execution: Callable[..., NewExecution]
    """Builds the row of a call from what is not the same for all."""


class Intake:
    """Checks calls against a catalogue snapshot and this client's settings."""

    def __init__(self, settings: Settings, submitter: str, reply_key: str | None = None) -> None:
        self._settings = settings
        self._time_limits = settings.time_limits
        self._submitter = submitter
        self._reply_key = reply_key
        self._patterns = Patterns.of(settings.encrypt_patterns)
        self._plans: dict[str, _Plan] = {}

    def prepare(self, call: Call, snapshot: Snapshot) -> NewExecution | Rejected:
        """Validate and encode a call. Never raises for a caller's mistake."""
        if call.flaw is not None:
            return self._reject(call, call.flaw, ErrorCode.INVALID_CALL)
        spec = snapshot.find(call.name)
        if spec is None and (disabled := snapshot.find_disabled(call.name)) is not None:
            error = f"Tool disabled: {disabled.name}. It was switched off; use another tool, or ask an operator to enable it."
            return self._reject(call, error, ErrorCode.TOOL_DISABLED, disabled)
        if spec is None:
            error = f"Unknown tool: {clean_text(call.name)[:MAX_NAME]}{told_of(call.name, snapshot.servers)}"
            return self._reject(call, error, ErrorCode.TOOL_NOT_FOUND, **_known(call.name, snapshot))
        try:
            plan = self._plans.get(spec.name)
            # A tool that moved to the other lane keeps its digest.
            if plan is None or plan.spec.digest != spec.digest or plan.spec.lane != spec.lane:
                plan = self._plans[spec.name] = self._planned(spec)
            return self._accept(call, plan, snapshot)
        except InvalidCallError as error:
            required = [parameter.name for parameter in spec.declared if parameter.required]
            return self._reject(call, error.message, error.code, spec, errors=error.details, required=required)
        except EncryptionError as error:
            return self._reject(call, error.message, error.code, spec)

    def handle_of(self, call: Call, new: NewExecution) -> str | None:
        """Return the parameter that names the host of an accepted call, if one does."""
        plan = self._plans[new.tool]
        return _handle_among(plan.validator.named(call.arguments), plan.handles)

    def refuse(self, call: Call, error: str, code: str, snapshot: Snapshot, **metadata: Any) -> Rejected:
        """Reject a call that passed the checks here; keywords become the result's metadata."""
        return self._reject(call, error, code, snapshot.find(call.name), **metadata)

    def _planned(self, spec: ToolSpec) -> _Plan:
        queue, call = self._settings.queue_for(spec.name, spec.category.value), Call(spec.name)
        return _Plan(
            spec,
            Validator.for_spec(spec),
            queue,
            tuple(parameter.name for parameter in spec.parameters if parameter.names_host),
            SecretDetector.of(spec, self._patterns),
            partial(NewExecution, **self._identity(spec), **_repetition(call, spec), **self._timing(call, spec, queue)),
        )

    def _identity(self, spec: ToolSpec) -> dict[str, Any]:
        return {
            "tool": spec.name,
            "tool_key": spec.key,
            "tool_version": spec.version,
            "tool_digest": spec.digest,
            "category": spec.category.value,
            "idempotent": spec.capabilities.idempotent,
            "lane": spec.lane,
            "reply_to": self._submitter,
            "reply_key": self._reply_key,
        }

    def _accept(self, call: Call, plan: _Plan, snapshot: Snapshot) -> NewExecution:
        context = call.effective_context
        parameters, text = self._encode(call.arguments, plan.validator)
        queue = plan.queue if call.queue is None else _checked_queue(call.queue)
        handle = _handle_among(parameters, plan.handles) if plan.handles else None
        if handle is not None and (host := host_of(handle)) is not None:  # wherever the workspace is
            queue, context = host_queue(host), context.model_copy(update={"workspace": None})
        elif context.workspace is not None:
            home = snapshot.queue_of(context.workspace)
            queue = home if home and call.queue is None else queue
        id_ = new_id()
        asked: dict[str, Any] = {"parameters": text}
        if snapshot.walls_decide:
            asked["lane"] = snapshot.lane_of(plan.spec, queue)
        if plan.detector is not None or context.metadata:
            hiding, context = self._encrypted(plan, parameters, context, id_, snapshot)
            asked |= hiding
        if queue != plan.queue or _asks_for_a_time(call, context):
            asked |= self._timing(call, plan.spec, queue)
        if call.retry is not None or call.max_attempts is not None:
            asked |= _repetition(call, plan.spec)
        return plan.execution(
            id=id_,
            agent_id=context.agent_id,
            session_id=context.session_id,
            queue=queue,
            **asked,
            context=_encode_context(context, self._settings.max_parameter_bytes),
        )

    def _encrypted(
        self, plan: _Plan, parameters: dict[str, Any], context: ExecutionContext, id_: str, snapshot: Snapshot
    ) -> tuple[dict[str, Any], ExecutionContext]:
        """Return the fields that hide a call's secrets, none if it has none, and the context as people see it.

        Raises:
            EncryptionError: there is something to hide, and no key.
            InvalidCallError: the values cannot be carried.
        """
        limit, tool = self._settings.max_parameter_bytes, plan.spec.name
        encode_json(context.metadata, "context.metadata", limit)  # first, since only JSON can be searched for secrets
        parts = (plan.detector or SecretDetector(plan.spec)).part(parameters, context.metadata)
        if parts is None:
            return {}, context
        if snapshot.encryptor is None:
            raise EncryptionError(NO_KEY.format(tool=tool, names=", ".join(parts.names)))
        shown = encode_json(parts.shown, "parameters", limit)
        encrypted = snapshot.encryptor.encrypt(parts.encrypted, execution_id=id_, tool=tool, shown=shown)
        hiding = {"parameters": shown, "encrypted": encrypted, "encrypted_names": parts.names}
        return hiding, context.model_copy(update={"metadata": parts.shown_metadata})

    def _encode(self, given: dict[str, Any], validator: Validator) -> tuple[dict[str, Any], str]:
        """Check what was given and encode it once, under the names that the tool uses. Errors name what was given.

        Defaults are the worker's to fill in: one with an older definition knows no parameters that came later.
        """
        limit, parameters = self._settings.max_parameter_bytes, validator.named(given)
        refused, text = None, ""
        try:
            text = encode_json(parameters, "parameters", limit)
        except InvalidCallError as error:
            refused = error
        # If names were replaced or left out, the given values may still be the ones that cannot be carried.
        if refused is not None or not given.keys() <= parameters.keys():
            encode_json(given, "parameters", limit)
        if errors := validator.all_errors(given):
            raise InvalidCallError(errors[0], errors)
        if refused is not None:
            raise refused
        return parameters, text

    def _timing(self, call: Call, spec: ToolSpec, queue: str) -> dict[str, Any]:
        settings, delay = self._settings, call.due_in
        timeout, source = spec.timeout_for(call.effective_context, settings.max_timeout)
        expires_in = settings.expiry_for(queue) if call.expires_in is None else call.expires_in
        if call.when is not None and delay > LONGEST_SECONDS:
            raise InvalidCallError(f"when is {call.when.isoformat()}; it must be within ten years from now")
        for name, value in (("timeout", timeout), ("expires_in", expires_in), ("delay", delay)):
            least = "0 or more" if name == "delay" else "above 0"
            is_right = is_duration(value) and (value != 0 or name == "delay")
            _require(is_right, name, value, f"a number of seconds {least}, and at most ten years")
        limits = self._time_limits.limits(timeout)
        return {
            "timeout": timeout,
            "timeout_source": source,
            "soft_time_limit": limits.soft,
            "time_limit": limits.hard,
            "delay": delay,
            "expires_in": delay + expires_in,
        }

    def _reject(self, call: Call, error: str, code: str, spec: ToolSpec | None = None, **metadata: Any) -> Rejected:
        arguments, is_known = call.arguments, spec is not None
        spec = spec or ToolSpec(
            name=clean_text(call.label)[:MAX_NAME], description="unknown", category=ToolCategory.OTHER
        )
        result = ToolResult.fail(error, error_code=code, error_details=metadata.get("errors"), **metadata)
        asked = call.effective_context
        # Errors quote names and values that the caller sent.
        if scrubber := scrubber_of(spec, arguments, LEAST_IN_FAILURES, metadata=asked.metadata):
            result = scrubber.result(result)
        kept, context = SecretDetector(spec, self._patterns).seen(arguments, asked)
        new = NewExecution(
            id=new_id(),
            **self._identity(spec),
            agent_id=context.agent_id,
            session_id=context.session_id,
            parameters=_kept(kept if is_known else without_texts(arguments), self._settings.max_parameter_bytes),
            context=_kept(context.model_dump(), self._settings.max_parameter_bytes),
            timeout=0.0,
            timeout_source="rejected",
            soft_time_limit=0,
            time_limit=0,
        )
        return Rejected(new, result, REFRESH_INTERVAL if code == ErrorCode.VALIDATION_ERROR else 0.0)


def _encode_context(context: ExecutionContext, limit: int) -> str:
    if type(context) is ExecutionContext and not context.metadata:
        fields = vars(context).copy()
        del fields["metadata"]
        try:
            return _plain_context(limit, **fields)
        except TypeError:  # a field was given a value without a hash, such as a list, by `model_copy`
            pass
    return encode_json(context.model_dump(), "context", limit)


@lru_cache(maxsize=64, typed=True)  # 1, 1.0 and True are equal, but not the same JSON
def _plain_context(limit: int, **fields: Any) -> str:
    """Encode a context without metadata: most callers make all their calls in a few."""
    return encode_json(ExecutionContext.model_construct(**fields).model_dump(), "context", limit)


def _handle_among(parameters: Mapping[str, Any], names: Sequence[str]) -> str | None:
    """Return the first that names a host; the tool itself refuses values that name none."""
    return next((parameters[name] for name in names if host_of(parameters.get(name))), None)


def _known(name: str, snapshot: Snapshot) -> dict[str, Any]:
    names = [spec.name for spec in snapshot.specs]
    more = f" and {len(names) - SHOWN_TOOLS} more" if len(names) > SHOWN_TOOLS else ""
    known: dict[str, Any] = {
        "available": (", ".join(names[:SHOWN_TOOLS]) or "none (no worker has published any yet)") + more
    }
    hint = suggestion(name, names).strip(" ()")
    return {**known, "hint": hint} if hint else known


def _checked_queue(queue: object) -> str:
    try:
        return queue_name(queue)
    except ValueError as error:
        raise InvalidCallError(str(error)) from error


def _require(is_right: bool, name: str, value: object, wanted: str) -> None:
    if not is_right:
        raise InvalidCallError(clean_text(unlike(name, value, wanted)))


def _check_attempts(call: Call) -> None:
    retry = call.retry
    _require(call.max_attempts is None or is_count(call.max_attempts), "max_attempts", call.max_attempts, COUNT)
    if retry is None:
        return
    _require(isinstance(retry, RetryPolicy), "retry", retry, "a RetryPolicy")
    if retry.flaw is not None:
        raise InvalidCallError(retry.flaw)
    if call.max_attempts not in {None, retry.max_attempts}:
        raise InvalidCallError(
            f"max_attempts is {call.max_attempts}, but retry.max_attempts is {retry.max_attempts}; give one of them"
        )


def _asks_for_a_time(call: Call, context: ExecutionContext) -> bool:
    """Whether it sets its timeout, its delay or how long it may wait; most calls leave these to their tool."""
    # By its exact type: `False` and `""` are no delay either, but `_timing` has to refuse them.
    is_due_now = type(call.delay) is float and not call.delay and call.when is None
    return not is_due_now or call.expires_in is not None or "timeout" in context.model_fields_set


def _repetition(call: Call, spec: ToolSpec) -> dict[str, Any]:
    """Return how often a body may start and, under `options`, what a worker needs to decide on the next start."""
    _check_attempts(call)
    attempts = call.max_attempts or (call.retry.max_attempts if call.retry else spec.attempts)
    retry = call.retry or spec.retry
    options: dict[str, Any] = {} if retry is None else {"retry": asdict(retry)}
    if spec.capabilities.retryable and not spec.capabilities.idempotent:
        options["retryable"] = True
    return {"max_attempts": attempts, "options": json.dumps(options, separators=(",", ":"))}


def _kept(values: Mapping[str, Any], limit: int) -> str:
    """Encode what the caller sent for the record of a rejection, or say why it cannot be kept."""
    try:
        return encode_json(dict(values), "parameters", limit)
    except InvalidCallError as error:
        return encode_json({"not kept": error.message}, "parameters", limit)
