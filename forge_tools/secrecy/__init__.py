"""Keeps secrets secret: what of a call is hidden, how it is sealed for the workers, and how texts are rid of it.

What may live here knows records and errors alone: no call is run, no row read, no tool known.
"""

from forge_tools.secrecy.concealing import Concealed, Concealment, Opened, as_shown
from forge_tools.secrecy.keys import KeyFolder, key_id
from forge_tools.secrecy.patterns import WELL_KNOWN, Patterns
from forge_tools.secrecy.references import SCHEME, SecretSource
from forge_tools.secrecy.scrubbing import (
    CONCEALED,
    LEAST_IN_FAILURES,
    Scrubber,
    leaves,
    scrubbed,
    scrubber_of,
)
from forge_tools.secrecy.sealing import Opener, Sealer

__all__ = [
    "CONCEALED",
    "LEAST_IN_FAILURES",
    "SCHEME",
    "WELL_KNOWN",
    "Concealed",
    "Concealment",
    "KeyFolder",
    "Opened",
    "Opener",
    "Patterns",
    "Scrubber",
    "Sealer",
    "SecretSource",
    "as_shown",
    "key_id",
    "leaves",
    "scrubbed",
    "scrubber_of",
]
