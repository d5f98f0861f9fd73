"""Secrets in calls: the names that reveal them, what is shown in their place, and the public keys that encrypt them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

REDACTED = "[redacted]"

MAX_DEPTH = 100
"""How deep values are searched."""

_SECRET_NAME = re.compile(
    r"(?i:(^|[_-])(passwords?|passwd|passphrase|secrets?|credentials?|authorization|cookie|api[_-]?keys?)$"
    r"|(^|[_-])(api|access|auth|bearer|refresh|session|id|secret|bot)[_-]?token$"
    r"|(^|[_-])(access|private|secret|signing)[_-]?key$"
    r"|^token$)"
    r"|[A-Z]_(TOKEN|PASS)$"
    r"|[a-z0-9](Passwords?|Passwd|Passphrase|Secrets?|Credentials?|Authorization|(Api|Access|Private|Secret|Signing)Keys?"
    r"|(Api|Access|Auth|Bearer|Refresh|Session|Id|Secret|Bot)Token)$"
)
"""Other names that end in `token` may mean a page or a count, except those of environment variables."""


def is_secret_name(name: object) -> bool:
    """Whether a value of that name is most likely a secret."""
    return isinstance(name, str) and _SECRET_NAME.search(name) is not None


def without_secrets(value: Any, depth: int = 0) -> Any:
    """Copy a value with `[redacted]` in place of everything inside it that has the name of a secret."""
    if depth >= MAX_DEPTH:
        return value
    if isinstance(value, Mapping):
        return {key: REDACTED if _hides(key, item) else without_secrets(item, depth + 1) for key, item in value.items()}
    return [without_secrets(item, depth + 1) for item in value] if isinstance(value, list | tuple) else value


def secrets_in(value: Any, depth: int = 0) -> list[Any]:
    """Return what `without_secrets` would hide."""
    if depth >= MAX_DEPTH or not isinstance(value, Mapping | list | tuple):
        return []
    if not isinstance(value, Mapping):
        return [secret for item in value for secret in secrets_in(item, depth + 1)]
    return [
        secret
        for key, item in value.items()
        for secret in ([item] if _hides(key, item) else secrets_in(item, depth + 1))
    ]


def is_reference(value: object) -> bool:
    """Whether a value refers to a secret of the worker by name, and so may be seen by anybody."""
    return isinstance(value, str) and REFERENCE.fullmatch(value) is not None


REFERENCE = re.compile(r"secret://([A-Za-z_][A-Za-z0-9_.-]{0,127})")


def _hides(key: object, item: Any) -> bool:
    return is_secret_name(key) and not isinstance(item, bool | None) and not is_reference(item)


@dataclass(frozen=True, slots=True)
class EncryptionKey:
    """`live` counts the unfinished executions that are encrypted with it."""

    id: str
    public: bytes
    created_at: datetime
    retired_at: datetime | None = None
    live: int = 0
