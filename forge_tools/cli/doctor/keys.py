"""Checks of the keys outside the embedded stack: what is refused, or not proven, for want of one. None of them is a problem by itself."""

from collections.abc import Iterator
from pathlib import Path

from forge_tools.cli.doctor.finding import Finding, note, ok, problem
from forge_tools.config import Settings
from forge_tools.records import SealingKey
from forge_tools.records.audit import Head
from forge_tools.secrecy import KeyFolder
from forge_tools.storage import Store


async def check_keys(store: Store, settings: Settings) -> list[Finding]:
    """Look at what is sealed with, what identifies repeated calls, and what history is signed with."""
    held = KeyFolder(settings.keys_folder).ids()
    return [
        _sealing(await store.sealing.current(), held, settings.keys_folder),
        *_digests(store.dialect, settings),
        *_signature(await store.audit.head(), settings),
    ]


def _sealing(key: SealingKey | None, held: list[str], folder: Path) -> Finding:
    if key is None:
        return note(
            "secrets",
            "no key to seal them with: calls with a secret parameter are refused",
            "Where workers read it (FORGE_SEALING_KEYS): forge-tools keys new",
        )
    where = (
        f"opened with {folder}" if key.id in held else "opened where workers have its private half, not on this host"
    )
    return ok("secrets", f"sealed with key {key.id}, {where}")


def _digests(dialect: str, settings: Settings) -> Iterator[Finding]:
    """On SQLite there is a file for it, which is made at the first need."""
    if dialect == "sqlite":
        return
    if settings.digest_key.get_secret_value():
        yield ok("idempotency", "FORGE_DIGEST_KEY is set here; it must be the same for all clients")
    else:
        yield note(
            "idempotency",
            "no FORGE_DIGEST_KEY here: calls from here with an idempotency key are refused",
            "Set the same secret for all clients: openssl rand -hex 32",
        )


def _signature(head: Head | None, settings: Settings) -> Iterator[Finding]:
    """What was sealed last says more than the settings of this host, which may have no key on purpose."""
    path = settings.audit_key
    if path is not None and not path.exists():
        yield problem("audit", f"FORGE_AUDIT_KEY names {path}, which is not there", f"forge-tools audit keygen {path}")
    elif head is not None and head.key_id is not None:
        yield ok("audit", f"history is signed by key {head.key_id}, the last batch is {head.sequence}")
    elif settings.is_embedded or (head is None and path is not None):
        yield ok("audit", "history will be signed")
    else:
        yield note(
            "audit",
            "history is sealed without a signature: whoever owns the database could make the chain anew",
            "forge-tools audit keygen FILE, and FORGE_AUDIT_KEY=FILE for workers",
        )
