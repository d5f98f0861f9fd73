"""Encrypts a call's secrets so that only workers decrypt them, for that call only (HPKE, RFC 9180); and the keys.

Small results are encrypted too on their way to the waiting client, since anybody may listen at the broker: with the
client's own key, created when it starts. Rows of the queue carry it to workers while a call is under way.
"""

import base64
import json
import os
import re
import stat
import sys
from functools import cache, lru_cache
from hashlib import blake2b, sha256
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge_tools.errors import ConfigurationError, EncryptionError

if TYPE_CHECKING:  # elsewhere at first use: most clients have no secrets, and need not load it
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.hpke import Suite

_SUFFIX = ".key"
_ID = re.compile(r"[0-9a-f]{16}")
VERSION = "1"
_PURPOSE = b"forge-tools encrypted parameters 1"
_ANOTHER = "Find out who wrote to the database, and make a new key: forge-tools keys rotate"

KEY_BYTES = 16
NONCE_BYTES = 12
"""Random for each result: a key would have to serve billions before a repetition is likely."""


def key_id(public: bytes) -> str:
    """Return the name of a key, derived from its public half."""
    return blake2b(public, digest_size=8).hexdigest()


class KeyFolder:
    """The private halves, one file for each key: `<id>.key` with 32 bytes in base64, which nobody else may read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def new(self) -> bytes:
        """Create a pair, store its private half here, and return the public one."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        private = X25519PrivateKey.generate()
        public = private.public_key().public_bytes_raw()
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            fd = os.open(self._path(key_id(public)), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(base64.b64encode(private.private_bytes_raw()) + b"\n")
                file.flush()
                os.fsync(fd)
        except OSError as error:
            raise ConfigurationError(
                f"Keys cannot be stored in {self.folder}: {error.strerror}. Name a folder that you may write to: "
                "FORGE_ENCRYPTION_KEYS."
            ) from error
        return public

    def ids(self) -> list[str]:
        try:
            names = [path.name.removesuffix(_SUFFIX) for path in self.folder.iterdir() if path.suffix == _SUFFIX]
        except OSError:
            return []
        return sorted(name for name in names if _ID.fullmatch(name))

    def private(self, id: str) -> "X25519PrivateKey | None":
        """Return the private half; None if it is not here.

        Raises:
            ConfigurationError: the file holds no key or another one, or others may read it.
        """
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        if not _ID.fullmatch(id):
            return None
        path = self._path(id)
        try:
            with path.open("rb") as file:
                mode, text = os.fstat(file.fileno()).st_mode, file.read(200)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ConfigurationError(
                f"{path} cannot be read: {error.strerror}. Make it readable for the workers' user."
            ) from error
        # A group may read it, since that is how orchestrators give secrets to users other than root.
        if mode & (stat.S_IRWXO | stat.S_IWGRP):
            raise ConfigurationError(f"{path} is open to others (mode {stat.filemode(mode)}). Run chmod 600 {path}.")
        try:
            key = X25519PrivateKey.from_private_bytes(base64.b64decode(text, validate=False))
        except ValueError as error:
            raise ConfigurationError(
                f"{path} does not contain an X25519 key. Copy it again from where it was made."
            ) from error
        if key_id(key.public_key().public_bytes_raw()) != id:
            raise ConfigurationError(
                f"{path} contains a different key than its name says. Copy it again from where it was made."
            )
        return key

    def forget(self, id: str) -> None:
        """Delete a private half permanently, if it is here."""
        if not _ID.fullmatch(id):
            return
        path = self._path(id)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise ConfigurationError(f"{path} cannot be deleted: {error.strerror}. Delete it yourself.") from error

    def _path(self, id: str) -> Path:
        return self.folder / f"{id}{_SUFFIX}"


class Encryptor:
    """Encrypts with the public half of a key, and cannot decrypt the result."""

    def __init__(self, public: bytes) -> None:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

        self.id = key_id(public)
        try:
            self._public = X25519PublicKey.from_public_bytes(public)
        except ValueError as error:
            raise EncryptionError(f"What the database has as key {self.id} is not a key. {_ANOTHER}") from error

    def encrypt(self, secret: dict[str, Any], *, execution_id: str, tool: str, shown: str) -> str:
        """Encrypt `secret` for the call of `tool` whose parameters people see as the JSON text `shown`."""
        text = json.dumps(secret, separators=(",", ":")).encode()
        try:
            encrypted = _suite().encrypt(text, self._public, info=_bound_to(execution_id, tool, shown))
        except ValueError as error:  # a point that makes all shared secrets equal
            raise EncryptionError(f"Key {self.id} cannot be used to encrypt. {_ANOTHER}") from error
        return f"{VERSION}.{self.id}.{base64.b64encode(encrypted).decode()}"


class Opener:
    """Decrypts with the private halves in a folder, which is searched again for an unknown key."""

    def __init__(self, folder: KeyFolder) -> None:
        self._folder = folder
        self._keys: dict[str, X25519PrivateKey] = {}

    def open(self, encrypted: str, *, execution_id: str, tool: str, shown: str) -> dict[str, Any]:
        """Decrypt what was encrypted for this very call. Anybody can encrypt, so the content may be any JSON, or none.

        Raises:
            ValueError: it is not JSON.
            EncryptionError: the key is not here, or this was encrypted for another call, or was altered.
            ConfigurationError: the file of the key cannot be used.
        """
        from cryptography.exceptions import InvalidTag

        version, _, rest = encrypted.partition(".")
        used, _, encoded = rest.partition(".")
        if version != VERSION:
            raise EncryptionError(f"It was encrypted in a form that this version does not know ({version[:10]!r}).")
        key = self._key(used)
        try:
            text = _suite().decrypt(
                base64.b64decode(encoded, validate=True), key, info=_bound_to(execution_id, tool, shown)
            )
        except (InvalidTag, ValueError) as error:  # invalid base64 or an impossible length counts as altered
            raise EncryptionError(
                "The encrypted values do not belong to this call, or the row was changed after it was submitted. "
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
                    "Copy its file to every worker, or retire the key so that new calls use another one: "
                    f"forge-tools keys retire {id[:16]}",
                    retryable=True,
                )
            self._keys[id] = key
        return self._keys[id]


@cache
def _suite() -> "Suite":
    from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

    return Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)


def _bound_to(execution_id: str, tool: str, shown: str) -> bytes:
    """Return what must be equal for decryption: moved to another call, or beside altered parameters, it fails."""
    parts = (_PURPOSE, execution_id.encode(), *(text.encode("utf-8", "surrogatepass") for text in (tool, shown)))
    # Each after its length, so that no text can move from one part into the next.
    return sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts)).digest()


def new_reply_key() -> str:
    return base64.b64encode(os.urandom(KEY_BYTES)).decode()


def encrypted_reply(key: str, execution_id: str, text: bytes) -> bytes | None:
    """Encrypt the text for that execution; None if `key` is invalid, since anybody may have written it."""
    try:
        cipher = _cipher(key)
    except ValueError:
        return None
    nonce = os.urandom(NONCE_BYTES)
    return nonce + cipher.encrypt(nonce, text, execution_id.encode())


def decrypted_reply(key: str, execution_id: str, encrypted: bytes) -> bytes | None:
    """Decrypt the text; None if it was not encrypted with that key for that execution."""
    from cryptography.exceptions import InvalidTag

    try:
        return _cipher(key).decrypt(encrypted[:NONCE_BYTES], encrypted[NONCE_BYTES:], execution_id.encode())
    except (InvalidTag, ValueError):
        return None


CIPHER = "cryptography.hazmat.primitives.ciphers.aead"
"""Loading it takes longer than reading a result from the database."""


def is_cipher_loaded() -> bool:
    return CIPHER in sys.modules


def load_cipher() -> None:
    import_module(CIPHER)


@lru_cache(maxsize=1024)
def _cipher(key: str) -> "AESGCM":
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(base64.b64decode(key, validate=True))
