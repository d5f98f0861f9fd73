"""Execution ids: UUIDv7, so that time order, pages and keys are one."""

import os
import time


def new_id() -> str:
    """Make a UUIDv7: 48 bits of Unix milliseconds, then 74 random bits (RFC 9562)."""
    value = (time.time_ns() // 1_000_000) << 80 | int.from_bytes(os.urandom(10), "big")
    value = value & ~(0xF000 << 64) | (0x7000 << 64)
    value = value & ~(0xC000 << 48) | (0x8000 << 48)
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def id_time(execution_id: str) -> float:
    """Read the Unix time in seconds out of a UUIDv7."""
    return int(execution_id[:8] + execution_id[9:13], 16) / 1000
