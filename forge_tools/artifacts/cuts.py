"""Where bytes that are text may be cut: between two lines, or else between two characters."""


def after_last_line(data: bytes) -> int:
    """Where the last whole line ends, or the last whole character."""
    return data.rfind(b"\n") + 1 or after_last_character(data)


def after_last_character(data: bytes) -> int:
    """Where the last whole character ends, if this is UTF-8."""
    for back in range(1, min(4, len(data)) + 1):
        if (first := data[-back]) & 0xC0 != 0x80:
            width = 1 + (first >= 0xC0) + (first >= 0xE0) + (first >= 0xF0)
            return len(data) - (back if width > back else 0)
    return len(data)


def next_line(data: bytes) -> int:
    """Where the next line begins, or the next character."""
    if (start := data.find(b"\n") + 1) > 0:
        return start
    return next((at for at, byte in enumerate(data[:4]) if byte & 0xC0 != 0x80), 0)
