"""Ed25519 keys: whoever seals needs the private one, whoever verifies only the public one."""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any, Self

from forge_tools.errors import ConfigurationError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

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
        """Whether that known key has signed that message."""
        from cryptography.exceptions import InvalidSignature

        try:
            self._keys[key_id].verify(bytes.fromhex(signature), message)
        except (InvalidSignature, ValueError):
            return False
        return True


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
