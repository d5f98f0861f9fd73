"""Keeps secrets secret: what of a call is hidden, how it is encrypted for the workers, and how texts are rid of it.

What may live here knows records and errors alone: no call is run, no row read, no tool known.

The names below are loaded when first asked for: what supervisors of shells need of this loads nothing else.
"""

from importlib import import_module

TYPE_CHECKING = False  # to import typing takes milliseconds

if TYPE_CHECKING:
    from forge_tools.secrets.concealment import (
        SCHEME,
        WELL_KNOWN,
        Concealed,
        Concealment,
        Opened,
        Patterns,
        SecretSource,
        as_shown,
    )
    from forge_tools.secrets.encryption import Encryptor, KeyFolder, Opener, key_id
    from forge_tools.secrets.replies import decrypted_reply, encrypted_reply, new_reply_key
    from forge_tools.secrets.scrubber import CONCEALED, LEAST_IN_FAILURES, Scrubber, leaves, scrubbed, scrubber_of

__all__ = [
    "CONCEALED",
    "LEAST_IN_FAILURES",
    "SCHEME",
    "WELL_KNOWN",
    "Concealed",
    "Concealment",
    "Encryptor",
    "KeyFolder",
    "Opened",
    "Opener",
    "Patterns",
    "Scrubber",
    "SecretSource",
    "as_shown",
    "decrypted_reply",
    "encrypted_reply",
    "key_id",
    "leaves",
    "new_reply_key",
    "scrubbed",
    "scrubber_of",
]

_OWNERS = {
    **dict.fromkeys(
        ("SCHEME", "WELL_KNOWN", "Concealed", "Concealment", "Opened", "Patterns", "SecretSource", "as_shown"),
        "concealment",
    ),
    **dict.fromkeys(("Encryptor", "KeyFolder", "Opener", "key_id"), "encryption"),
    **dict.fromkeys(("decrypted_reply", "encrypted_reply", "new_reply_key"), "replies"),
}
"""Which module has the names that are not of `scrubber`."""


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found = getattr(import_module(f"{__name__}.{_OWNERS.get(name, 'scrubber')}"), name)
    return found
