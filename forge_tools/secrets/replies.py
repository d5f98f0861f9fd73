"""Small results on their way to the waiting client: encrypted, since anybody may listen at the broker.

The key is the client's own, created when it starts. Rows of the queue carry it to workers while a call is under way.
"""

import base64
import os
import sys
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES = 16
NONCE_BYTES = 12
"""Random for each result: a key would have to serve billions before a repetition is likely."""


def new_reply_key() -> str:
    """Return a new key in the form that the database stores."""
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


def is_quick() -> bool:
    """Whether the cipher is loaded; loading takes longer than reading a result from the database."""
    return "cryptography.hazmat.primitives.ciphers.aead" in sys.modules


def load() -> None:
    """Load the cipher, in any thread."""
    import cryptography.hazmat.primitives.ciphers.aead  # noqa: F401  to be there when it is needed


@lru_cache(maxsize=1024)
def _cipher(key: str) -> "AESGCM":
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(base64.b64decode(key, validate=True))
