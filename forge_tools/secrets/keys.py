"""Key pairs: the public halves are for everybody, the private ones are files that only workers can read."""

import base64
import os
import re
import stat
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

from forge_tools.errors import ConfigurationError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

_SUFFIX = ".key"
_ID = re.compile(r"[0-9a-f]{16}")


def key_id(public: bytes) -> str:
    """The name of a key, which follows from its public half."""
    return blake2b(public, digest_size=8).hexdigest()


class KeyFolder:
    """The private halves, one file a key: `<id>.key` with 32 bytes in base64, which nobody else may read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def new(self) -> bytes:
        """Make a pair, keep its private half here, and return the public one.

        Raises:
            ConfigurationError: the folder cannot be written to.
        """
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
                f"No key can be kept in {self.folder}: {error.strerror}. Name a folder that you may write to: "
                "FORGE_ENCRYPTION_KEYS."
            ) from error
        return public

    def ids(self) -> list[str]:
        """The keys whose private halves are here."""
        try:
            names = [path.name.removesuffix(_SUFFIX) for path in self.folder.iterdir() if path.suffix == _SUFFIX]
        except OSError:
            return []
        return sorted(name for name in names if _ID.fullmatch(name))

    def public(self, id: str) -> bytes | None:
        """The public half of a key whose private one is here."""
        private = self.private(id)
        return None if private is None else private.public_key().public_bytes_raw()

    def private(self, id: str) -> "X25519PrivateKey | None":
        """The private half; None where it is not here.

        Raises:
            ConfigurationError: the file holds no key, holds another one, or others may read it.
        """
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        if not _ID.fullmatch(id):
            return None
        path = self._path(id)
        try:
            with path.open("rb") as file:
                _refuse_if_open_to_all(path, os.fstat(file.fileno()).st_mode)
                text = file.read(200)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ConfigurationError(
                f"{path} cannot be read: {error.strerror}. Give it to the workers' user."
            ) from error
        try:
            key = X25519PrivateKey.from_private_bytes(base64.b64decode(text, validate=False))
        except ValueError as error:
            raise ConfigurationError(f"{path} holds no X25519 key. Copy it again from where it was made.") from error
        if key_id(key.public_key().public_bytes_raw()) != id:
            raise ConfigurationError(
                f"{path} holds another key than its name says. Copy it again from where it was made."
            )
        return key

    def forget(self, id: str) -> bool:
        """Delete a private half, for good; False where there was none.

        Raises:
            ConfigurationError: it cannot be deleted.
        """
        try:
            self._path(id).unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise ConfigurationError(
                f"{self._path(id)} cannot be deleted: {error.strerror}. Delete it yourself."
            ) from error
        return True

    def _path(self, id: str) -> Path:
        return self.folder / f"{id}{_SUFFIX}"


def _refuse_if_open_to_all(path: Path, mode: int) -> None:
    """A group may read it: so do orchestrators hand secrets to a user who is not root."""
    if mode & (stat.S_IRWXO | stat.S_IWGRP):
        raise ConfigurationError(f"{path} is open to others (mode {stat.filemode(mode)}). Run chmod 600 {path}.")
