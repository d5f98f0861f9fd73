"""What a worker logs and prints for a call has none of its secrets."""

import contextvars
import io
import logging
import threading
from collections.abc import Iterator

import pytest

from forge_tools.logs import set_up
from forge_tools.secrets.scrubber import CONCEALED, Scrubber
from workers.log_redaction import RedactedStream, concealed


@pytest.fixture
def log(own_logging: None) -> Iterator[io.StringIO]:
    text = io.StringIO()
    set_up("WARNING", "text", RedactedStream(text))
    token = CONCEALED.set(Scrubber(["s3cret-key"]))
    yield text
    CONCEALED.reset(token)


def test_message_arguments_data_and_traceback_are_scrubbed(log: io.StringIO) -> None:
    logger = logging.getLogger("tests.redaction")
    try:
        raise ValueError("no s3cret-key")
    except ValueError:
        logger.exception("with %s and %d", "s3cret-key", 7, extra={"seen": {"deep": ["s3cret-key"]}})

    said = log.getvalue()
    assert "s3cret-key" not in said
    assert "with [redacted] and 7" in said
    assert "ValueError: no [redacted]" in said
    assert "seen={'deep': ['[redacted]']}" in said


def test_without_a_call_a_record_passes_untouched(log: io.StringIO) -> None:
    token = CONCEALED.set(None)
    logging.getLogger("tests.redaction").warning("plain %s", "s3cret-key")
    CONCEALED.reset(token)

    assert log.getvalue().endswith("Z WARNING tests.redaction: plain s3cret-key\n")


def test_what_is_printed_is_scrubbed_and_the_rest_of_the_stream_is_as_it_was() -> None:
    under = io.StringIO()
    stream = RedactedStream(under)
    token = CONCEALED.set(Scrubber(["s3cret-key"]))
    print("a s3cret-key", file=stream)
    CONCEALED.reset(token)
    print("plain", file=stream)

    assert under.getvalue() == "a [redacted]\nplain\n"
    assert stream.getvalue() == under.getvalue()


class Client:
    def __repr__(self) -> str:
        return "Client(key='s3cret-key')"


def test_what_is_printed_in_parts_is_scrubbed_and_written_at_the_latest_when_the_call_is_over() -> None:
    under = io.StringIO()
    stream = RedactedStream(under)

    def run() -> None:
        with concealed(["s3cret key"]):
            print("a s3cret", "key", file=stream)
            thread = threading.Thread(
                target=print, args=("in a thread s3c", "s3cret"), kwargs={"file": stream, "end": ""}
            )
            thread.start()
            thread.join()
            assert under.getvalue() == "a [redacted]\nin a thread s3c "

    contextvars.copy_context().run(run)

    assert under.getvalue() == "a [redacted]\nin a thread s3c s3cret"


def test_calls_that_print_at_once_are_each_rid_of_their_own_secret() -> None:
    under = io.StringIO()
    stream = RedactedStream(under)
    steps = [_printing(stream, secret) for secret in ("first-secret", "other-secret")]
    contexts = [contextvars.copy_context() for _ in steps]
    for _ in range(3):
        for context, step in zip(contexts, steps, strict=True):
            context.run(next, step, None)

    assert under.getvalue() == "[redacted]\n[redacted]\n"


def _printing(stream: RedactedStream, secret: str) -> Iterator[None]:
    with concealed([secret]):
        print(secret[:7], end="", file=stream)
        yield
        print(secret[7:], file=stream)
        yield


def test_what_quotes_a_secret_only_when_it_is_written_is_scrubbed_too(log: io.StringIO) -> None:
    logging.getLogger("tests.redaction").warning("made %s", Client(), extra={"client": Client(), "all": {Client()}})

    assert "s3cret-key" not in log.getvalue()
    assert log.getvalue().count("Client(key='[redacted]')") == 3


def test_lines_that_are_written_at_once_are_scrubbed() -> None:
    under = io.StringIO()
    token = CONCEALED.set(Scrubber(["s3cret-key"]))
    RedactedStream(under).writelines(["a s3cret-key\n", "b\n"])
    CONCEALED.reset(token)

    assert under.getvalue() == "a [redacted]\nb\n"


def test_what_a_thread_prints_that_a_call_started_is_scrubbed_while_that_runs() -> None:
    under = io.StringIO()
    stream = RedactedStream(under)

    def tell() -> None:
        thread = threading.Thread(target=print, args=("a s3cret-key",), kwargs={"file": stream})
        thread.start()
        thread.join()

    def run() -> None:
        with concealed(["s3cret-key"]):
            tell()

    contextvars.copy_context().run(run)
    tell()

    assert under.getvalue() == "a [redacted]\na s3cret-key\n"
