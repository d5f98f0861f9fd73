"""Encrypts what a call hides so that only workers open it, and only as part of that very call (HPKE, RFC 9180)."""

import base64
import json
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from forge_tools.errors import EncryptionError
from forge_tools.secrets.keys import KeyFolder, key_id

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
    from cryptography.hazmat.primitives.hpke import Suite

VERSION = "1"
_PURPOSE = b"forge-tools encrypted parameters 1"
_ANOTHER = "Find out who wrote to the database, and make another key: forge-tools keys rotate"


class Encryptor:
    """Encrypts with the public half of a key; what it encrypted it cannot open."""

    def __init__(self, public: bytes) -> None:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

        self.id = key_id(public)
        try:
            self._public = X25519PublicKey.from_public_bytes(public)
        except ValueError as error:
            raise EncryptionError(f"What the database has as key {self.id} is none. {_ANOTHER}") from error
        self._suite = _suite()

    def encrypt(self, secret: dict[str, Any], *, execution_id: str, tool: str, shown: str) -> str:
        """Encrypt `secret` for the call of `tool` whose parameters people see as the JSON text `shown`."""
        text = json.dumps(secret, separators=(",", ":")).encode()
        try:
            encrypted = self._suite.encrypt(text, self._public, info=_bound_to(execution_id, tool, shown))
        except ValueError as error:  # a point that makes all secrets the same
            raise EncryptionError(f"With key {self.id} nothing can be encrypted. {_ANOTHER}") from error
        return f"{VERSION}.{self.id}.{base64.b64encode(encrypted).decode()}"


class Opener:
    """Opens with the private halves in a folder, which is looked into again for a key that is not known yet."""

    def __init__(self, folder: KeyFolder) -> None:
        self._folder = folder
        self._suite: Suite | None = None
        self._keys: dict[str, X25519PrivateKey] = {}

    def open(self, encrypted: str, *, execution_id: str, tool: str, shown: str) -> dict[str, Any]:
        """Decrypt what was encrypted for this very call. Everybody can encrypt: it may be anything that JSON can say, or not.

        Raises:
            ValueError: it is no JSON.
            EncryptionError: the key is not here, or this was encrypted for another call, or was altered.
            ConfigurationError: the file of the key cannot be used.
        """
        from cryptography.exceptions import InvalidTag

        version, _, rest = encrypted.partition(".")
        used, _, encoded = rest.partition(".")
        if version != VERSION:
            raise EncryptionError(f"It was encrypted in a form that this version does not know ({version[:10]!r}).")
        key = self._key(used)
        self._suite = self._suite or _suite()
        try:
            text = self._suite.decrypt(
                base64.b64decode(encoded, validate=True), key, info=_bound_to(execution_id, tool, shown)
            )
        except (
            InvalidTag,
            ValueError,
        ) as error:  # what is not base64, or of no length that it could have, is the latter
            raise EncryptionError(
                "What was encrypted does not belong to this call, or the row was altered since it was submitted. "
                "Submit the call again, and find out who wrote to the database."
            ) from error
        opened: dict[str, Any] = json.loads(text)
        return opened

    def _key(self, id: str) -> "X25519PrivateKey":
        if id not in self._keys:
            key = self._folder.private(id)
            if key is None:
                held = ", ".join(self._folder.ids()) or "none"
                raise EncryptionError(
                    f"It was encrypted with key {id[:16]}, which this worker does not hold (in {self._folder.folder}: {held}). "
                    "Give its file to every worker, or retire the key so that new calls use another: "
                    f"forge-tools keys retire {id[:16]}",
                    retryable=True,
                )
            self._keys[id] = key
        return self._keys[id]


def _suite() -> "Suite":
    from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

    return Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)


def _bound_to(execution_id: str, tool: str, shown: str) -> bytes:
    """What must be the same when it is opened: moved to another call, or beside altered parameters, it stays shut."""
    parts = (_PURPOSE, execution_id.encode(), *(text.encode("utf-8", "surrogatepass") for text in (tool, shown)))
    return sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts)).digest()
