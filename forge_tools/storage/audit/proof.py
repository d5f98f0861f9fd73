"""What proves the chain without trust in its database: signatures with Ed25519 keys, and a file that keeps the last heads."""

import fcntl
import hashlib
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO, TYPE_CHECKING, Any, Self

from forge_tools.errors import ConfigurationError
from forge_tools.model.audit import Head

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

KEPT = 500
"""How many heads remain when a file is shortened; that happens at twice as many lines."""

_HEAD = re.compile(rb"([0-9]{1,18}):([0-9a-f]{64})")
_TORN = re.compile(rb"[0-9]{0,18}(:[0-9a-f]{0,64})?")
"""What a crash of the machine may leave of a line."""

KeptHead = tuple[int, str]
"""Sequence and hash of a batch."""

_OPEN_TO_OTHERS = 0o077


class Signer:
    """Signs with a private key, which `key_id` names."""

    def __init__(self, key: "Ed25519PrivateKey") -> None:
        self._key = key
        self.public = key.public_key()
        self.key_id = key_id_of(self.public)

    def sign(self, message: bytes) -> str:
        """The signature in hexadecimal digits."""
        return self._key.sign(message).hex()

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a private key in PEM (PKCS #8), which nobody but its owner may read."""
        key = _loaded(path, "private")
        if path.stat().st_mode & _OPEN_TO_OTHERS:
            raise ConfigurationError(
                f"{path} holds the key that signs history, and others may read it: chmod 600 {path}."
            )
        return cls(key)

    @classmethod
    def load_or_make(cls, path: Path) -> Self:
        """Read the key at `path`, or make one there that only its owner can read; of several at once one wins."""
        if not path.exists():
            make_key(path, replace_none=True)
        return cls.load(path)


class Trust:
    """The public keys whose signatures count."""

    def __init__(self, keys: "Iterable[Ed25519PublicKey]" = ()) -> None:
        self._keys = {key_id_of(key): key for key in keys}

    def __bool__(self) -> bool:
        return bool(self._keys)

    @classmethod
    def load(cls, paths: Iterable[Path]) -> Self:
        """Read public keys in PEM; private ones will do, too."""
        return cls(_loaded(path, "public") for path in paths)

    def knows(self, key_id: str | None) -> bool:
        return key_id in self._keys

    def accepts(self, key_id: str, message: bytes, signature: str) -> bool:
        from cryptography.exceptions import InvalidSignature

        try:
            self._keys[key_id].verify(bytes.fromhex(signature), message)
        except (InvalidSignature, ValueError):
            return False
        return True


class HeadFile:
    """A file with one head per line, `N:HASH` as `forge-tools audit head` prints it, the newest last. Several processes may write to it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> list[KeptHead]:
        """Return all heads in it, the oldest first; none if the file does not exist."""
        try:
            return self._parsed(self.path.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise self._unusable("read", error) from error

    def keep(self, head: Head) -> bool:
        """Add a head that the chain holds; return whether it is the first in the file."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            while True:
                fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
                with os.fdopen(fd, "r+b") as file:
                    fcntl.flock(file, fcntl.LOCK_EX)
                    if os.path.samestat(os.fstat(fd), self.path.stat()):  # else it was shortened meanwhile
                        return self._append(file, head)
        except OSError as error:
            raise self._unusable("written", error) from error

    def _append(self, file: IO[bytes], head: Head) -> bool:
        content = file.read()
        kept = self._parsed(content)
        new = f"{head}\n".encode()
        if not content.endswith(new):
            file.write(new if not content or content.endswith(b"\n") else b"\n" + new)
            file.flush()
            os.fsync(file.fileno())
        if len(kept) >= 2 * KEPT:
            with suppress(OSError):  # an append-only file, or a folder of another user: the file just grows
                self._shorten([*kept, (head.sequence, head.hash)][-KEPT:])
        return not kept

    def _shorten(self, kept: list[KeptHead]) -> None:
        new = self.path.with_name(f"{self.path.name}.new")
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
            file.writelines(f"{sequence}:{hash_}\n".encode() for sequence, hash_ in kept)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self.path)

    def _parsed(self, content: bytes) -> list[KeptHead]:
        found = []
        for number, line in enumerate(content.split(b"\n"), 1):
            if match := _HEAD.fullmatch(line):
                found.append((int(match[1]), match[2].decode()))
            elif not _TORN.fullmatch(line):
                raise ConfigurationError(
                    f"{self.path} contains something other than heads of an audit chain, in line {number}. Move it away, and the next "
                    "batch begins a new one; or name another file."
                )
        return found

    def _unusable(self, how: str, error: OSError) -> ConfigurationError:
        why = error.strerror or error
        return ConfigurationError(
            f"{self.path}, the file of the audit chain's heads, cannot be {how}: {why}. FORGE_AUDIT_HEADS names another."
        )


def make_key(path: Path, *, replace_none: bool = False) -> Signer:
    """Write a new private key to `path`, and its public one beside it with `.pub` after its name."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    try:
        with NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.") as part:  # for nobody else to read
            part.write(private)
            part.flush()
            os.link(part.name, path)  # whole or not at all, and never over another
        path.with_name(f"{path.name}.pub").write_bytes(public)
    except FileExistsError as error:
        if not replace_none:
            raise ConfigurationError(f"{path} is there already; a key is never replaced. Name another file.") from error
    except OSError as error:
        raise ConfigurationError(f"The key cannot be written to {path}: {error.strerror or error}.") from error
    return Signer(key)


def key_id_of(key: "Ed25519PublicKey") -> str:
    """The first 16 hexadecimal digits of the SHA-256 of the public key's 32 bytes."""
    return hashlib.sha256(key.public_bytes_raw()).hexdigest()[:16]


def _loaded(path: Path, wanted: str) -> Any:
    """Read an Ed25519 key; a private one has the public one in it."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key

    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"The key {path} cannot be read: {error.strerror or error}.") from error
    problem = f"{path} is no Ed25519 {wanted} key in PEM. Make one: forge-tools audit keygen {path.name}"
    is_private = wanted == "private" or b"PRIVATE KEY" in data
    try:
        key = load_pem_private_key(data, password=None) if is_private else load_pem_public_key(data)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigurationError(problem) from error
    if not isinstance(key, Ed25519PrivateKey | Ed25519PublicKey):
        raise ConfigurationError(problem)
    return key.public_key() if isinstance(key, Ed25519PrivateKey) and wanted == "public" else key
