"""What links a call to others: its idempotency key, with digests that reveal no value, and what it repeats."""

import asyncio
import hmac
import json
import os
import secrets
import stat
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from forge_tools.client.call import Call
from forge_tools.client.catalogue import Snapshot
from forge_tools.client.intake import Rejected
from forge_tools.config import Settings
from forge_tools.errors import ConfigurationError, InvalidCallError
from forge_tools.model.calls import DEFAULT_TIMEOUT, LONGEST_SECONDS, ExecutionContext
from forge_tools.model.execution import Holder, IdempotencyKey, KeyClaim
from forge_tools.model.history import ExecutionRecord
from forge_tools.model.places import HOST_PREFIX
from forge_tools.model.secret_names import REDACTED
from forge_tools.model.tools import ToolSpec
from forge_tools.schema import Validator, shown
from forge_tools.storage.connection.drivers import Address
from forge_tools.storage.tables import DEFAULT_QUEUE

MAX_KEY = 255
"""The most characters of a key, and of a scope."""

SHARED = "shared"

KEY_BYTES = 32
DIGEST_CHARACTERS = 32
"""128 bits: nobody finds another value with the same digest, and a row stays small."""

MOST_NAMED = 10
"""How many differences a message names."""


class Claims:
    """What calls with a key claim, by the settings of one client."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._secret: bytes | None = None

    async def of(self, call: Call, snapshot: Snapshot) -> KeyClaim | None:
        """Return the claim of a call; None if it has no key.

        Raises:
            ConfigurationError: there is no secret for digests.
            InvalidCallError: its key is invalid.
        """
        if call.idempotency_key is None:
            return None
        asked = _checked(call.idempotency_key)
        if self._secret is None:
            self._secret = await asyncio.to_thread(digest_key, self._settings)
        context = call.effective_context
        scope, spec = self._scope(asked, context), snapshot.find(call.name)
        arguments, name = call.arguments, call.name
        if spec is not None:
            arguments, name = Validator.for_spec(spec).effective(arguments), spec.name
            plain = {parameter.name: parameter.default for parameter in spec.parameters if not parameter.required}
            # Passing a default explicitly makes the same call, also after an update that adds a parameter.
            arguments = {key: value for key, value in arguments.items() if key not in plain or plain[key] != value}
        where = {"working_dir": context.working_dir, "workspace": context.workspace, "dry_run": context.dry_run}
        text = fingerprint(self._secret, (scope, asked.key), name, arguments, where)
        return KeyClaim(scope, asked.key, text, self._settings.idempotency_ttl if asked.ttl is None else asked.ttl)

    def _scope(self, asked: IdempotencyKey, context: ExecutionContext) -> str:
        if asked.scope is not None:
            return f"named:{asked.scope}"
        kind = self._settings.idempotency_scope
        who = {"agent": context.agent_id, "session": context.session_id, SHARED: None}[kind]
        if not who:
            return SHARED
        if len(who) > MAX_KEY:
            raise InvalidCallError(
                f"{kind}_id is {len(who):,} characters; as the scope of an idempotency key it may have {MAX_KEY}. "
                "Give the key its own scope: IdempotencyKey(key, scope=...)"
            )
        return f"{kind}:{who}"


def conflict(claim: KeyClaim, holder: Holder) -> tuple[str, list[str]]:
    """Say why a call cannot have its key, which stands for another one; also returns the names of what differs."""
    differing = differences(claim.fingerprint, holder.fingerprint)
    if differing is None:
        why = "was used by a client with another digest key, so whether this is the same call is unknown"
    else:
        why = f"was used for another call, which differs in: {', '.join(differing)}"
    return (
        f"Idempotency key {claim.key!r} ({claim.scope}) {why}. It belongs to execution {holder.execution_id}: "
        "repeat that call unchanged, or use another key."
    ), differing or []


def digest_key(settings: Settings) -> bytes:
    """Return the secret of a database's clients: `FORGE_DIGEST_KEY`, or a file by the SQLite file, made when needed.

    Raises:
        ConfigurationError: there is none, or others could read it.
    """
    given = settings.digest_key.get_secret_value()
    if given:  # what an environment variable holds need not be UTF-8
        return sha256(given.encode("utf-8", "surrogatepass")).digest()
    address = Address.parse(settings.database)
    if address.dialect != "sqlite":
        raise ConfigurationError(
            "Idempotency keys need FORGE_DIGEST_KEY: a secret that is not in the database, the same for all clients that submit "
            "calls to it. Make one with: openssl rand -hex 32"
        )
    return _kept(Path(f"{address.target}.digest-key"))


def fingerprint(
    secret: bytes, of: tuple[str, str], tool: str, arguments: Mapping[str, Any], context: Mapping[str, Any]
) -> str:
    """Digest each argument and each part of the context separately, so that differences can be named.

    `of` are scope and key: the same value under another key has another digest.
    """

    def digests(kind: str, values: Mapping[str, Any]) -> dict[str, str]:
        return {name: _digest(secret, [*of, kind, name, value]) for name, value in sorted(values.items())}

    parts = {"arguments": digests("argument", arguments), "context": digests("context", context)}
    return json.dumps({"digest_key": _digest(secret, ["digest key"])[:8], "tool": tool, **parts})


def differences(mine: str, theirs: str) -> list[str] | None:
    """Name what differs between two calls: the tool, arguments, parts of the context.

    None means that nobody knows: their fingerprints were made with different secrets.
    """
    left, right = json.loads(mine), json.loads(theirs)
    if left["digest_key"] != right["digest_key"]:
        return None
    found = ["tool"] if left["tool"] != right["tool"] else []
    for kind, prefix in (("arguments", ""), ("context", "context.")):
        names = sorted({**left[kind], **right[kind]})
        found += [f"{prefix}{shown(name)}" for name in names if left[kind].get(name) != right[kind].get(name)]
    return found if len(found) <= MOST_NAMED else [*found[:MOST_NAMED], f"and {len(found) - MOST_NAMED} more"]


def repeated(
    record: ExecutionRecord,
    spec: ToolSpec | None,
    parameters: Mapping[str, Any],
    dry_run: bool | None,
    changes: Mapping[str, Any],
) -> Call:
    """Rebuild the call of `record`, with these parameters in place of its own; `changes` are fields of `Call`.

    `dry_run` None leaves it as it was.

    Raises:
        InvalidCallError: it is not over, or it needs a value that history does not keep.
    """
    if not record.is_over and not dry_run:
        raise InvalidCallError(
            f"Execution {record.id} is {record.status.value}: running it again now would run it twice. Wait for its "
            "end or cancel it first; a dry run is possible now."
        )
    values = _merged(record, spec, parameters)
    if "context" not in changes and _is_hidden(record.context.get("metadata")):
        raise InvalidCallError(
            f"History does not keep secrets, and the metadata of execution {record.id} had some: pass its context "
            "again, as `context=` of `client.calls.replay`."
        )
    # Unless it named its queue, configuration or the host of its workspace decides anew.
    is_named = record.queue != DEFAULT_QUEUE and not record.queue.startswith(HOST_PREFIX)
    queue = record.queue if is_named else None
    return replace(Call(record.tool, values, _context(record, dry_run), queue=queue), **changes)


def explained(rejected: Rejected, record: ExecutionRecord, spec: ToolSpec | None) -> Rejected:
    """Add to a rejection which execution it repeats, and that its tool has changed, if that may be why."""
    error, metadata = rejected.result.error or "", {**rejected.result.metadata, "replay_of": record.id}
    if spec is not None and spec.digest != record.tool_digest:
        was, is_now = record.tool_version, spec.version
        change = f"is {is_now}, but was {was}" if was != is_now else "has another definition than"
        why = f"{spec.name} {change} when execution {record.id} was made"
        error = f"{error}. {why}"
        metadata["errors"] = [*metadata.get("errors", ()), why]
    return rejected._replace(result=rejected.result.model_copy(update={"error": error, "metadata": metadata}))


def _checked(asked: object) -> IdempotencyKey:
    key = IdempotencyKey(asked) if isinstance(asked, str) else asked
    if not isinstance(key, IdempotencyKey):
        raise InvalidCallError(f"idempotency_key is {shown(repr(asked))}; it must be a string or an IdempotencyKey")
    _check_name("idempotency_key", key.key)
    if key.scope is not None:
        _check_name("The scope of the idempotency key", key.scope)
    if key.ttl is not None and not (type(key.ttl) in {int, float} and 0 < key.ttl <= LONGEST_SECONDS):
        raise InvalidCallError(
            f"The ttl of the idempotency key is {shown(repr(key.ttl))}; it must be a number of seconds above 0, at most ten years"
        )
    return key


def _check_name(what: str, name: object) -> None:
    if not isinstance(name, str):
        raise InvalidCallError(f"{what} is {shown(repr(name))}; it must be a string")
    if len(name) > MAX_KEY:
        raise InvalidCallError(f"{what} is {len(name):,} characters; the limit is {MAX_KEY}")
    if not name.strip() or not name.isprintable():
        raise InvalidCallError(f"{what} is {shown(repr(name))}; it must be a string of printable characters")


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
            f"The digest key {path} cannot be read or created: {error.strerror}. Fix that, or set FORGE_DIGEST_KEY."
        ) from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigurationError(f"Others can read or change the digest key {path}. Run: chmod 600 {path}")
    if len(text) != KEY_BYTES * 2:
        raise ConfigurationError(
            f"{path} does not contain a digest key. Delete it, so that a new one is created, or set FORGE_DIGEST_KEY."
        )
    return sha256(text).digest()


def _make(path: Path) -> None:
    """Create it with its content: if several start at once, one wins, and all read that one's."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f"{path.name}.") as file:
        file.write(secrets.token_hex(KEY_BYTES))
        file.flush()
        os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(file.name, path)


def _merged(record: ExecutionRecord, spec: ToolSpec | None, given: Mapping[str, Any]) -> dict[str, Any]:
    parameters = spec.declared if spec else ()
    aliases, known = {alias: p.name for p in parameters for alias in p.aliases}, {p.name for p in parameters}
    # The checks refuse a name given together with its alias.
    changes = {name if aliases.get(name) in given else aliases.get(name, name): value for name, value in given.items()}
    kept = {name: value for name, value in record.parameters.items() if name not in changes}
    hidden = sorted(name for name, value in kept.items() if _is_hidden(value))
    if hidden:
        names = ", ".join(map(shown, hidden))
        raise InvalidCallError(
            f"History does not keep secrets: pass {names} again to replay execution {record.id}.",
            [f"Missing secret value: {shown(name)}" for name in hidden],
        )
    merged = {**record.parameters, **changes}
    # None takes out a parameter that the tool no longer has; it could not be left out otherwise.
    return {name: value for name, value in merged.items() if value is not None or name in known or name not in changes}


def _is_hidden(value: Any) -> bool:
    """Return whether something was left out of it; a text that looks so by chance must be given again, too."""
    if isinstance(value, str):
        return REDACTED in value
    if isinstance(value, dict):
        return any(map(_is_hidden, (*value, *value.values())))
    return isinstance(value, list) and any(map(_is_hidden, value))


def _context(record: ExecutionRecord, dry_run: bool | None) -> ExecutionContext:
    """Rebuild the context. A timeout that nobody asked for stays unset."""
    known = {name: value for name, value in record.context.items() if name in ExecutionContext.model_fields}
    # "operator maximum (asked 7s by call)" is the caller's, too. A rejection has no source: any but the default was asked for.
    if record.timeout_source != "call" and "by call" not in record.timeout_source:
        is_asked = record.timeout_source == "rejected" and known.get("timeout") != DEFAULT_TIMEOUT
        known = known if is_asked else {name: value for name, value in known.items() if name != "timeout"}
    if dry_run is not None:
        known["dry_run"] = dry_run
    return ExecutionContext.model_validate({"working_dir": ".", **known})
