"""Execution ids: UUIDv7, so that time order, pages and keys are one."""

import os
import re
import time

_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")

_VARIANTS = {digit: "89ab"[value % 4] for value, digit in enumerate("0123456789abcdef")}
"""The two bits that name the layout, above two that stay random."""


def new_id() -> str:
    """Make a UUIDv7: 48 bits of Unix milliseconds, 12 bits of their fraction, 62 random bits (RFC 9562, method 3).

    So ids of one process are in the order in which they were made, to a quarter of a microsecond.
    """
    milliseconds, rest = divmod(time.time_ns(), 1_000_000)
    moment, fraction = f"{milliseconds:012x}", f"{rest * 4096 // 1_000_000:03x}"
    chance = os.urandom(8).hex()
    return f"{moment[:8]}-{moment[8:]}-7{fraction}-{_VARIANTS[chance[0]]}{chance[1:4]}-{chance[4:16]}"


def is_id(text: str) -> bool:
    """Whether `text` is a UUID as this package writes it; PostgreSQL refuses others, with the whole batch."""
    return _ID.fullmatch(text) is not None


def id_floor(seconds: float) -> str:
    """The lowest UUIDv7 of a Unix time: what is made then or later is not below it."""
    moment = f"{int(seconds * 1000):012x}"
    return f"{moment[:8]}-{moment[8:]}-7000-8000-000000000000"


def id_time(execution_id: str) -> float:
    """Read the Unix time in seconds out of a UUIDv7."""
    return int(execution_id[:8] + execution_id[9:13], 16) / 1000
