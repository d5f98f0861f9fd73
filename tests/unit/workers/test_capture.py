"""The standard streams of a worker, as code of bodies uses them."""

import codecs
import io
import subprocess
import sys
from pathlib import Path

import pytest

from forge_tools.model.scope import SCOPE
from forge_tools.sandbox.reports import ReportBuffer
from tests.unit.workers.child_bench import CLAIM
from workers.capture import CallStream, ChildOutput
from workers.lanes.base import scope_of
from workers.log_redaction import RedactedStream


@pytest.fixture
def log() -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), write_through=True)


@pytest.fixture
def stream(log: io.TextIOWrapper) -> CallStream:
    return CallStream("stdout", RedactedStream(log))


def test_the_bytes_of_a_stream_can_be_wrapped_again_and_again(stream: CallStream) -> None:
    reports = ReportBuffer(lambda: None)
    token = SCOPE.set(scope_of(CLAIM, reports))
    try:
        for _ in range(2):
            io.TextIOWrapper(stream.buffer, encoding="utf-8", write_through=True).write("é")
            codecs.getwriter("utf-8")(stream.detach()).write("è")
        stream.buffer.writelines([b"a", b"b"])
    finally:
        SCOPE.reset(token)

    assert "".join(told.text or "" for told in reports.close()) == "éèéèab"


def test_a_body_that_closes_a_stream_closes_it_for_nobody(stream: CallStream, log: io.TextIOWrapper) -> None:
    stream.detach().close()
    stream.close()

    stream.write("still there")

    assert log.buffer.getvalue() == b"still there"  # type: ignore[attr-defined]  # it is a BytesIO


def test_a_stream_that_is_forgotten_after_the_log_was_closed_says_nothing(
    stream: CallStream, log: io.TextIOWrapper
) -> None:
    log.close()

    stream.buffer.close()  # as the collector does


SHORT = """
import os, resource
from workers.capture import ChildOutput

highest = os.dup(0)
for room in range(1, 7):
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + room, 64))
    try:
        ChildOutput()
    except OSError as error:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        print(error.strerror, "from", (next_one := os.dup(0)) - highest)
        os.close(next_one)
"""


def test_an_output_that_lacks_descriptors_keeps_none() -> None:
    """A pool tries again, and would take the last ones, a few each time."""
    run = subprocess.run([sys.executable, "-c", SHORT], capture_output=True, text=True, check=True)

    assert run.stdout.splitlines() == ["Too many open files from 1"] * 6


def test_only_pipes_are_taken_from_a_child(tmp_path: Path) -> None:
    """Reading or asking anything else might block: a terminal, or a file system of the child's own."""
    (tmp_path / "file").write_bytes(b"not a pipe")
    output = ChildOutput()
    with (tmp_path / "file").open("rb") as file:
        output.hand_over({"stdout": (file.fileno(), -1), "stderr": (output.pipes["stderr"][0], -1)})
    output.born()

    said = list(output.last_words())
    output.close()

    assert said == [("stderr", b"")]
