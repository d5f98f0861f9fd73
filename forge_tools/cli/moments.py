"""Times and durations as people read them: short, UTC, never ambiguous."""

import re
from datetime import UTC, datetime, timedelta

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_AGE = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")


def parse_since(text: str, now: datetime | None = None) -> datetime:
    """Read `90s`, `15m`, `1h`, `2d`, `1w` (ago), or a date or time in ISO 8601; without an offset it is UTC.

    Raises:
        ValueError: with what was given and the forms that are understood.
    """
    age = _AGE.fullmatch(text.strip())
    try:
        if age:
            return (now or datetime.now(UTC)) - timedelta(seconds=float(age[1]) * _UNITS[age[2]])
        moment = datetime.fromisoformat(text.strip())
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is no time. Write 90s, 15m, 1h, 2d, or ISO such as 2026-05-01T12:00Z.") from None


def iso(moment: datetime | None) -> str | None:
    """UTC in ISO 8601 with milliseconds, for programs."""
    return None if moment is None else moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def compact(moment: datetime | None, now: datetime | None = None) -> str:
    """`14:03:22Z 2m`: the time in UTC and how long ago; with the date instead of seconds where it is older than a day."""
    if moment is None:
        return "-"
    moment = moment.astimezone(UTC)
    seconds = ((now or datetime.now(UTC)) - moment).total_seconds()
    form = "%H:%M:%SZ" if seconds < 86_400 else "%m-%d %H:%MZ"
    return f"{moment.strftime(form)} {age(seconds)}"


def age(seconds: float) -> str:
    """`12s`, `5m`, `3h`, `9d`: one unit is enough to find one's way."""
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    return f"{max(0, int(seconds))}s"


def took(milliseconds: float | None) -> str:
    """`3 ms`, `1.2 s`, `4m 10s`."""
    if milliseconds is None:
        return "-"
    if milliseconds < 0.95:
        return f"{milliseconds:.1f} ms"
    if milliseconds < 999.5:
        return f"{milliseconds:.0f} ms"
    seconds = milliseconds / 1000
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m {rest:02d}s" if minutes < 60 else f"{minutes // 60}h {minutes % 60:02d}m"


def limit(seconds: float) -> str:
    """Seconds as they were set: `5s`, `0.5s`, `120s`."""
    return f"{seconds:g}s"
