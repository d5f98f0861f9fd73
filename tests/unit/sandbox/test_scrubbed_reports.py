"""What a call reports is one stream, and its secrets are removed however it is reported."""

import re
import threading

from hypothesis import given
from hypothesis import strategies as st

from forge_tools.model import Output, Progress
from forge_tools.model.scope import Report, Reporter
from forge_tools.sandbox.reports import DirectReporter, ScrubbingReporter
from forge_tools.secrets.scrubber import Scrubber


def scrubbing(reporter: Reporter, *secrets: str) -> ScrubbingReporter:
    return ScrubbingReporter(reporter, Scrubber(secrets or ["hunter22"]))


def test_a_secret_that_comes_in_pieces_is_handed_on_in_none() -> None:
    heard: list[Report] = []
    reporter = scrubbing(DirectReporter(heard.append))
    for part in (b"pass hun", "ter22\nand \x1b[1mhun\x1b", "[0mter22 caf", "é".encode()[:1], "é".encode()[1:], " hunt"):
        reporter.emit(part)
    assert [report.text for report in heard] == ["pass ", "[redacted]\nand \x1b[1m", "[redacted] caf", "é", " "]

    reporter.end()
    assert heard[-1] == Output(text="hunt")


def test_progress_does_not_wait_for_what_may_begin_a_secret() -> None:
    heard: list[Report] = []
    reporter = scrubbing(DirectReporter(heard.append))
    reporter.emit("hunt")
    reporter.progress(1, None, "with hun\x1b[1mter22, hunt")
    reporter.emit("ing\n")

    assert heard == [Progress(done=1.0, message="with [redacted], hunt"), Output(text="hunting\n")]


@given(st.lists(st.sampled_from(["hunter22", "hun", "ter22", "é", "\ud800", "\x1b[1m", "\n", b"\xc3", b"\xa9"])))
def test_nothing_but_secrets_is_lost(parts: list[str | bytes]) -> None:
    plain, clean = list[Report](), list[Report]()
    for reporter in (
        scrubbing(DirectReporter(plain.append), "nothing of this"),
        scrubbing(DirectReporter(clean.append)),
    ):
        for part in parts:
            reporter.emit(part)
        reporter.end()
    text = "".join(report.text for report in plain)

    assert re.sub("h(ESC)?u(ESC)?n(ESC|\n)*ter22".replace("ESC", "\x1b\\[1m"), "[redacted]", text) == "".join(
        report.text for report in clean
    )


def test_threads_that_put_out_parts_of_a_secret_tear_no_character_and_lose_nothing() -> None:
    heard: list[Report] = []
    reporter = scrubbing(DirectReporter(heard.append))

    def tell() -> None:
        for _ in range(500):
            reporter.emit("é hunter22\n")

    threads = [threading.Thread(target=tell) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    reporter.end()

    assert "".join(report.text for report in heard) == "é [redacted]\n" * 2000
