"""What children send of artifacts, for which nobody vouches: it is set aside, and kept once it is what its id says."""

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import ParamSpec, TypeVar

from forge_tools.artifacts.parts import count_parts, unpack
from forge_tools.errors import ErrorCode, SandboxError
from forge_tools.model import Artifact
from forge_tools.sandbox.spools import UnnamedFile

MOST_UNPROVEN = 16
"""So many artifacts a call may send at once; of more, that is given up of which no part came for longest."""

T = TypeVar("T")
P = ParamSpec("P")


class Proofs:
    """What one call has sent of artifacts so far. No other call sees it, and it goes with the call."""

    def __init__(self) -> None:
        self._sent: dict[tuple[str, int], Sent] = {}
        self._is_over = False

    async def begin(self, new: Artifact) -> None:
        """Wait for the bytes of an artifact; those that the call has sent already stay."""
        if _key(new) in self._sent:
            return
        sent = await _on_disk(Sent, new)
        if not self._is_over:
            self._sent.setdefault(_key(new), sent)
        while len(self._sent) > MOST_UNPROVEN:
            del self._sent[next(iter(self._sent))]

    async def add(self, new: Artifact, number: int, data: bytes) -> bool:
        """Set the next part aside; False if it is not waited for, or no longer.

        Raises:
            ValueError: it is not the next, or no such part of that artifact.
            SandboxError: there is no room for it.
        """
        sent = self._sent.pop(_key(new), None)
        if sent is None:
            return False
        self._sent[_key(new)] = sent  # the last in the row is the last that is given up
        await _on_disk(sent.add, number, data)
        return True

    def take(self, new: Artifact) -> "Sent | None":
        """Hand over all of an artifact, which is proven now; None if parts are missing, then begin again.

        Raises:
            SandboxError: these are other bytes.
        """
        sent = self._sent.pop(_key(new), None)
        return sent if sent is not None and sent.is_proven() else None

    def end(self) -> None:
        """Let go of it all: each file goes with the last thread that is at it."""
        self._is_over = True
        self._sent.clear()


class Sent(UnnamedFile):
    """The packed parts of one artifact, in their order, in a file without a name."""

    def __init__(self, new: Artifact) -> None:
        super().__init__()
        self._new = new
        self._digest = blake2b(digest_size=16)
        self._parts: list[_Part] = []

    def add(self, number: int, data: bytes) -> None:
        """Write down the next part. One that is here already may come again: the whole decides whether it was right."""
        with self._in_use:  # two threads may bring the same part
            if number < len(self._parts):
                return
            if number > len(self._parts):
                raise ValueError(f"part {number} before part {len(self._parts)}")
            chunk = unpack(data, number, self._new.size)
            view = memoryview(data)
            while view:
                view = view[os.pwrite(self.fd, view, self.size + len(data) - len(view)) :]
            self._digest.update(chunk)
            self._parts.append(_Part(self.size, len(data), chunk.count(b"\n"), _mark(data)))
            self.size += len(data)

    def is_proven(self) -> bool:
        """Whether it is all here; nothing can be added any more then.

        Raises:
            SandboxError: these are other bytes.
        """
        if len(self._parts) < count_parts(self._new.size):
            return False
        if self._digest.hexdigest() != self._new.id:
            raise _refusal(self._new, "other bytes were sent than its id says")
        return True

    async def part(self, number: int) -> tuple[bytes, int]:
        """Return a packed part as it was sent, and how many lines end in it.

        Raises:
            SandboxError: it is not there any more as it was.
        """
        part = self._parts[number]
        data = await _on_disk(self._read, part)
        if _mark(data) != part.mark:  # with the rights of this user /proc leads even to files without a name
            raise _refusal(self._new, "somebody changed its bytes on this host")
        return data, part.breaks

    def _read(self, part: "_Part") -> bytes:
        with self._in_use:
            return os.pread(self.fd, part.size, part.start)


@dataclass(frozen=True, slots=True)
class _Part:
    start: int
    size: int
    breaks: int
    mark: bytes


def _mark(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).digest()


def _key(new: Artifact) -> tuple[str, int]:
    return new.id, new.size


def _refusal(new: Artifact, reason: str) -> SandboxError:
    return SandboxError(f"{new.handle} is not kept: {reason}. Run the call again", ErrorCode.VALIDATION_ERROR)


async def _on_disk(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    try:
        return await asyncio.to_thread(work, *args, **kwargs)
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise SandboxError(f"The output cannot be written down on this host: {reason}", ErrorCode.TOOL_ERROR) from error
