"""What passes in parts, without the secrets of the call that it belongs to."""

import codecs
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from functools import cached_property

from forge_tools.sandbox.terminals import CONTROL, plain
from forge_tools.sandbox.withholding import Withholding
from forge_tools.secrecy import CONCEALED, Scrubber
from forge_tools.secrecy.forms import LEAST, search_for


def withholding(scrubber: Scrubber) -> Withholding:
    """Make what takes the secrets out of one stream."""
    return Withholding(forms_in_streams(scrubber), search_for)


def forms_in_streams(scrubber: Scrubber | None) -> list[bytes]:
    """What is looked for: secrets in all their forms, and what a terminal leaves of those."""
    forms = scrubber.forms if scrubber is not None else []
    return list(dict.fromkeys((*forms, *_left_of(forms))))


def scrubbed_chunks(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Hand on a stream without the secrets of the call that runs; it is the same one where that has none."""
    scrubber = CONCEALED.get()
    return _without(withholding(scrubber), chunks) if scrubber else chunks


def scrubbed_text(scrubber: Scrubber, text: str) -> str:
    """Copy a text that is whole without the secrets, neither as it is nor as a terminal shows it."""
    if not CONTROL.search(text):
        return scrubber.text(text)
    stream = withholding(scrubber)
    return _decoded(stream.feed(_encoded(text)) + stream.rest())


class ScrubbedText:
    """A stream of text that several threads write to, and that `write` gets without secrets, a part at a time.

    What may be the beginning of a secret is held back until more comes, or `end`. Then it goes on as before.
    """

    def __init__(self, scrubber: Scrubber, write: Callable[[str], object]) -> None:
        self._scrubber = scrubber
        self._write = write
        self._lock, self._pid = threading.RLock(), os.getpid()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def put(self, text: str | bytes) -> None:
        """Write a part; a character may come in parts, too, if it comes as bytes."""
        data, rest = (bytes(text), "") if isinstance(text, bytes | bytearray | memoryview) else (b"", str(text))
        with self._alone():
            begun = self._decoder.decode(data, final=not data)
            self._pass_on(self._withholding.feed(_encoded(begun + rest)))

    def end(self) -> None:
        """Write what was held back."""
        with self._alone():
            begun = self._decoder.decode(b"", final=True)
            self._pass_on(self._withholding.feed(_encoded(begun)) + self._withholding.rest())

    def _pass_on(self, clean: bytes) -> None:
        if clean:
            self._write(_decoded(clean))

    def _alone(self) -> AbstractContextManager[object]:
        """In a copy of this process that a tool forked, whoever held the lock is not there."""
        if self._pid != os.getpid():
            self._lock, self._pid = threading.RLock(), os.getpid()
        return self._lock

    @cached_property
    def _withholding(self) -> Withholding:
        return withholding(self._scrubber)


async def _without(secrets: Withholding, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async for chunk in chunks:
        if clean := secrets.feed(chunk):
            yield clean
    if rest := secrets.rest():
        yield rest


def _left_of(forms: Iterable[bytes]) -> Iterator[bytes]:
    """Those with line ends of Windows, or with escapes, would be looked for in vain."""
    for form in forms:
        left = plain(_decoded(form))
        if len(left) >= LEAST:
            yield _encoded(left)


def _encoded(text: str) -> bytes:
    """Half a surrogate pair, which is no character, is for whoever gets it to deal with."""
    return text.encode("utf-8", "surrogatepass")


def _decoded(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")
