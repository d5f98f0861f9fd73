"""Decides on the worker whether a failed attempt is followed by another one, and when."""

import json
import math
from dataclasses import fields, replace
from typing import Any

from forge_tools.model.calls import RetryPolicy
from forge_tools.model.execution import Claim, ExecutionStatus, Outcome
from forge_tools.model.tools import Capabilities
from forge_tools.tool.executor import may_be_retried
from workers.lanes.process_state import fell_short
from workers.middleware.base import Middleware

UNASKED = RetryPolicy(max_attempts=3, delay_seconds=1.0, backoff=2.0, max_delay_seconds=60.0, jitter=True)
"""Used if neither the call nor its tool has a policy, for failures marked as retryable and for process shortages."""

_POLICY_FIELDS = frozenset(field.name for field in fields(RetryPolicy))


class Retries(Middleware):
    """Sends a failed call back to its queue if the policy, the tool and the attempts left allow it.

    A failed result is an answer. Without a policy it is retried only if it is marked as `retryable`, or if its process
    lacked descriptors, memory or threads, which is no answer.
    """

    def ended(self, claim: Claim, outcome: Outcome) -> Outcome:
        is_failure = outcome.status in {ExecutionStatus.FAILED, ExecutionStatus.TIMED_OUT}
        if not is_failure or outcome.retry_in is not None or claim.attempt >= claim.max_attempts:
            return outcome
        options, metadata = json.loads(claim.options), json.loads(outcome.metadata)
        says = metadata.get("retryable")
        may_pass = says is True or (claim.idempotent and fell_short(outcome))
        policy = _policy(options) or (UNASKED if may_pass else None)
        if policy is None:
            return outcome
        can = Capabilities(idempotent=claim.idempotent, retryable=options.get("retryable") is True)
        if may_be_retried(outcome.error_code, says, can):
            return replace(outcome, retry_in=policy.delay_after(claim.attempt))
        if can.idempotent:
            return outcome
        why = f"{claim.tool} is not idempotent, so a second run could repeat what the first one did."
        return replace(outcome, metadata=json.dumps(metadata | {"not_retried": why}))


def _policy(options: dict[str, Any]) -> RetryPolicy | None:
    """Return the policy in the row; a newer client may use more fields."""
    policy = options.get("retry")
    if not isinstance(policy, dict):
        return None
    known = {name: value for name, value in policy.items() if name in _POLICY_FIELDS}
    is_sound = all(isinstance(value, int | float) and 0 <= value < math.inf for value in known.values())
    return RetryPolicy(**known) if is_sound else None
