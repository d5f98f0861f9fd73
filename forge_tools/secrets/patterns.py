"""Secrets that are known by their looks, wherever in a call's parameters they are."""

import re
from collections.abc import Iterable, Sequence
from typing import Any, Self

from forge_tools.secrets.scrubber import leaves

WELL_KNOWN = "well-known"
"""Stands for the shapes below among patterns."""

_SHAPES = (
    r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",  # AWS
    r"\bgh[pousr]_[A-Za-z0-9]{36,255}\b",
    r"\bgithub_pat_\w{22,255}\b",
    r"\bglpat-[\w-]{20,}",
    r"\bsk-[\w-]{20,}",  # OpenAI, Anthropic
    r"\b[rs]k_(?:live|test)_[A-Za-z0-9]{16,}\b",  # Stripe
    r"\bxox[abeprs]-[A-Za-z0-9-]{10,}",  # Slack
    r"\bAIza[\w-]{35}",  # Google
    r"\bnpm_[A-Za-z0-9]{36}\b",
    r"\bhf_[A-Za-z0-9]{30,}\b",
    r"\bpypi-[\w-]{50,}",
    r"\beyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{10,}",  # JSON Web Token
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]+?-----END [A-Z ]*PRIVATE KEY-----",
    r"(?<=earer )[\w.~+/-]{16,}=*",
    r"(?<=://)[^/\s:@]*:[^/\s]{6,}(?=@)",  # user:password of a URL
)


class Patterns:
    """Regular expressions, each of which finds a secret. One that does not compile is the settings' to refuse."""

    def __init__(self, patterns: Iterable[str]) -> None:
        shapes = [shape for one in patterns for shape in (_SHAPES if one == WELL_KNOWN else (one,))]
        self._search = re.compile("|".join(f"(?:{shape})" for shape in shapes))

    @classmethod
    def of(cls, patterns: Sequence[str]) -> Self | None:
        """What looks for them; None where there are none."""
        return cls(patterns) if patterns else None

    def found_in(self, value: Any) -> list[str]:
        """The secrets in every text inside a value."""
        found = (match[0] for text in leaves(value) for match in self._search.finditer(text))
        return [secret for secret in found if secret]
