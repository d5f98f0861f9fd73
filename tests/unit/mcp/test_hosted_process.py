"""What servers write beside their messages."""

import logging

import pytest

from forge_tools.mcp.hosted import process as module
from forge_tools.mcp.hosted.process import ServerLog, shortened


def heard(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [getattr(record, "line", record.msg) for record in caplog.records]


def test_what_is_shown_of_a_line_is_short_and_printable() -> None:
    assert shortened(b"  \x1b[31mred\x1b[0m\x07 ") == "red\\x07"
    assert shortened(b"\xff\xfe") == "\ufffd\ufffd"
    assert shortened(b"x" * 3_000) == "x" * 200 + "... (3,000 bytes)"


def test_a_flood_is_told_in_few_lines(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    log = ServerLog(logging.WARNING, "Said", "s")

    for number in range(5_000):
        log.write(b"%d" % number)
    now += 11
    log.write(b"later")

    assert heard(caplog) == [*map(str, range(20)), "later"]
    assert log.last() == "4998 / 4999 / later"


def test_empty_lines_are_not_told(caplog: pytest.LogCaptureFixture) -> None:
    ServerLog(logging.WARNING, "Said", "s").write(b" \r")

    assert caplog.records == []
