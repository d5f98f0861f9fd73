"""What passes in parts is rid of the secrets of the call that runs, wherever it is cut."""

import os
import signal
import threading
import warnings
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_tools.sandbox.processes.output import ScrubbedText, scrubbed_chunks
from forge_tools.secrets.scrubber import CONCEALED, Scrubber

PIECES = st.text("abcde[]rt1=", min_size=3, max_size=16)


async def _stream(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


async def scrubbed(scrubber: Scrubber, data: bytes, size: int) -> bytes:
    token = CONCEALED.set(scrubber)
    try:
        clean = scrubbed_chunks(_stream(*(data[at : at + size] for at in range(0, len(data), size))))
    finally:
        CONCEALED.reset(token)
    return b"".join([chunk async for chunk in clean])


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 10_000])
async def test_a_secret_that_is_cut_by_chunks_is_found(size: int) -> None:
    data = b"x" * 50 + b"s3cret-key" + b"y" * 50 + b"s3c\x1b[0mret-key"

    clean = await scrubbed(Scrubber(["s3cret-key"]), data, size)

    assert clean == b"x" * 50 + b"[redacted]" + b"y" * 50 + b"[redacted]"


async def test_without_a_secret_nothing_is_copied() -> None:
    stream = _stream(b"x")

    assert scrubbed_chunks(stream) is stream
    assert [chunk async for chunk in stream] == [b"x"]


@pytest.mark.parametrize("size", [1, 3, 12, 25, 10_000])
async def test_of_two_secrets_that_begin_alike_the_longer_one_is_taken_out_wherever_it_is_cut(size: int) -> None:
    data = b"x" * 20 + b"s3cret-key-and-what-follows" + b"y" * 200 + b"s3cret-key"

    clean = await scrubbed(Scrubber(["s3cret-key", "s3cret-key-and-what-follows"]), data, size)

    assert clean == b"x" * 20 + b"[redacted]" + b"y" * 200 + b"[redacted]"


@given(st.sets(PIECES, max_size=12), st.lists(PIECES, max_size=12), st.integers(1, 9))
async def test_very_many_secrets_are_taken_out_of_a_stream_as_few_are(
    secrets: set[str], parts: list[str], size: int
) -> None:
    data = "".join([*parts, *secrets]).encode()
    few = await scrubbed(Scrubber(secrets, least=3), data, size)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("forge_tools.secrets.readings.FEW", 0)
        many = await scrubbed(Scrubber(secrets, least=3), data, size)

    assert many == few


def test_a_copy_of_the_process_writes_though_the_lock_was_held_when_it_was_made() -> None:
    is_held, may_go_on = threading.Event(), threading.Event()
    reading, writing = os.pipe()

    def write(text: str) -> None:
        os.write(writing, text.encode())
        is_held.set()
        may_go_on.wait(30)

    stream = ScrubbedText(Scrubber(["s3cret-key"]), write)
    holder = threading.Thread(target=stream.put, args=("held ",))
    holder.start()
    assert is_held.wait(30)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of a fork beside threads
        copy = os.fork()
    if copy == 0:
        signal.alarm(10)
        may_go_on.set()
        stream.put("s3cret-key.")
        os._exit(0)
    os.close(writing)
    _, code = os.waitpid(copy, 0)
    may_go_on.set()
    holder.join()
    with open(reading) as written:
        assert (code, written.read()) == (0, "held [redacted].")
