"""Keeps secrets secret: which parts of a call are hidden, how they are encrypted for workers, and how texts are scrubbed.

Modules here may import only records and errors: they run no call, read no row and know no tool.

The names below are loaded on first use: supervisors of shells need few of them and load nothing else.
"""

from importlib import import_module

TYPE_CHECKING = False  # importing typing takes milliseconds

if TYPE_CHECKING:
    from forge_tools.secrets.detection import (
        SCHEME,
        WELL_KNOWN,
        Concealed,
        Opened,
        Patterns,
        SecretDetector,
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
    "Encryptor",
    "KeyFolder",
    "Opened",
    "Opener",
    "Patterns",
    "Scrubber",
    "SecretDetector",
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
        ("SCHEME", "WELL_KNOWN", "Concealed", "SecretDetector", "Opened", "Patterns", "SecretSource", "as_shown"),
        "detection",
    ),
    **dict.fromkeys(("Encryptor", "KeyFolder", "Opener", "key_id"), "encryption"),
    **dict.fromkeys(("decrypted_reply", "encrypted_reply", "new_reply_key"), "replies"),
}
"""The modules of the names that are not in `scrubber`."""


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found = getattr(import_module(f"{__name__}.{_OWNERS.get(name, 'scrubber')}"), name)
    return found
