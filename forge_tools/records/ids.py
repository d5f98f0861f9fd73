"""Execution ids: UUIDv7, so that time order, pages and keys are one."""

import os
import time

_VARIANTS = {digit: "89ab"[value % 4] for value, digit in enumerate("0123456789abcdef")}
"""The two bits that name the layout, above two that stay random."""


def new_id() -> str:
    """Make a UUIDv7: 48 bits of Unix milliseconds, then 74 random bits (RFC 9562)."""
    moment = f"{time.time_ns() // 1_000_000:012x}"
    chance = os.urandom(10).hex()
    return f"{moment[:8]}-{moment[8:]}-7{chance[:3]}-{_VARIANTS[chance[3]]}{chance[4:7]}-{chance[7:19]}"


def id_time(execution_id: str) -> float:
    """Read the Unix time in seconds out of a UUIDv7."""
    return int(execution_id[:8] + execution_id[9:13], 16) / 1000
