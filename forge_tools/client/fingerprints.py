"""What makes a call that call, as digests that say nothing of its values to who does not have the key."""

import hmac
import json
import os
import secrets
import stat
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from forge_tools.config import Settings
from forge_tools.errors import ConfigurationError
from forge_tools.storage.engine import Address
from forge_tools.validation import shown

KEY_BYTES = 32
DIGEST_CHARACTERS = 32
"""128 bits: nobody finds another value with the same digest, and a row stays small."""

MOST_NAMED = 10
"""Differences that a message names."""


def digest_key(settings: Settings) -> bytes:
    """The secret of all clients of one database: `FORGE_DIGEST_KEY`, or a file beside the SQLite file, made at the first need.

    Raises:
        ConfigurationError: there is none, or others could read it.
    """
    given = settings.digest_key.get_secret_value()
    if given:
        return sha256(given.encode("utf-8", "surrogatepass")).digest()
    address = Address.parse(settings.database)
    if address.dialect != "sqlite":
        raise ConfigurationError(
            "Idempotency keys need FORGE_DIGEST_KEY: a secret that the database does not hold, the same for all that submit "
            "calls to it. Make one with: openssl rand -hex 32"
        )
    return _kept(Path(f"{address.target}.digest-key"))


def fingerprint(
    secret: bytes, of: tuple[str, str], tool: str, arguments: Mapping[str, Any], context: Mapping[str, Any]
) -> str:
    """Digest each argument and each part of the context by itself, so that it can be told which differ.

    `of` are scope and key: the same value under another key has another digest.
    """

    def digests(kind: str, values: Mapping[str, Any]) -> dict[str, str]:
        return {name: _digest(secret, [*of, kind, name, value]) for name, value in sorted(values.items())}

    parts = {"arguments": digests("argument", arguments), "context": digests("context", context)}
    return json.dumps({"digest_key": _digest(secret, ["digest key"])[:8], "tool": tool, **parts})


def is_comparable(mine: str, theirs: str) -> bool:
    """Whether both were made with the same secret."""
    return bool(json.loads(mine)["digest_key"] == json.loads(theirs)["digest_key"])


def differences(mine: str, theirs: str) -> list[str]:
    """The names of what differs between two calls: the tool, arguments, parts of the context; none if they are the same."""
    if mine == theirs:
        return []
    left, right = json.loads(mine), json.loads(theirs)
    found = ["tool"] if left["tool"] != right["tool"] else []
    for kind, prefix in (("arguments", ""), ("context", "context.")):
        names = sorted({**left[kind], **right[kind]})
        found += [f"{prefix}{shown(name)}" for name in names if left[kind].get(name) != right[kind].get(name)]
    return found if len(found) <= MOST_NAMED else [*found[:MOST_NAMED], f"and {len(found) - MOST_NAMED} more"]


def _digest(secret: bytes, values: list[Any]) -> str:
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hmac.new(secret, text.encode(), sha256).hexdigest()[:DIGEST_CHARACTERS]


def _kept(path: Path) -> bytes:
    try:
        if not path.exists():
            _make(path)
        with path.open("rb") as file:
            mode, text = os.fstat(file.fileno()).st_mode, file.read(KEY_BYTES * 2 + 1)
    except OSError as error:
        raise ConfigurationError(
            f"The digest key {path} cannot be read or made: {error.strerror}. Mend that, or set FORGE_DIGEST_KEY."
        ) from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigurationError(f"Others can read or change the digest key {path}. Do: chmod 600 {path}")
    if len(text) != KEY_BYTES * 2:
        raise ConfigurationError(
            f"{path} holds no digest key. Delete it, and another one is made; or set FORGE_DIGEST_KEY."
        )
    return sha256(text).digest()


def _make(path: Path) -> None:
    """Let it appear with its content: of those that come first at the same moment one wins, and all read that one's."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f"{path.name}.") as file:
        file.write(secrets.token_hex(KEY_BYTES))
        file.flush()
        os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(file.name, path)
