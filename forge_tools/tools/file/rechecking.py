"""What a search found where folders changed under it, looked at again by our own handles: what may lie outside is not told."""

import asyncio
import codecs
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from hashlib import blake2b

from forge_tools.sandbox.paths.confinement import Handle
from forge_tools.sandbox.paths.folders import Changes
from forge_tools.tools.file.hits import MatchSink, NameSink, Origin, Page
from forge_tools.tools.file.ripgrep import Complaints
from forge_tools.tools.file.scope import Folder

SearchAgain = Callable[[Sequence[str], NameSink], Awaitable[None]]
"""Searches files by these paths and feeds the sink."""

_OPEN_FILES = 100
_MAX_BYTES = 64 << 20
_MARKS = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class Recheck:
    """One look at what a search has told of; `unsure` says which folders have changed since they were surveyed.

    What is inside stays. The rest is forgotten, and `lost` names the folders that it was in.
    """

    def __init__(self, place: Folder, unsure: Changes) -> None:
        self.lost: dict[str, None] = {}
        self._place = place
        self._unsure = unsure

    async def names(self, sink: NameSink, again: SearchAgain) -> None:
        """Search the files that are in doubt once more, each opened by us."""
        counts, names = sink.counts(), sink.first()
        right = {name: counts[name] for name in names if not self._is_unsure(name)}
        doubtful = [name for name in names if name not in right]
        for index in range(0, len(doubtful), _OPEN_FILES):
            right |= await self._found_again(doubtful[index : index + _OPEN_FILES], counts, again)
        self._forget(name for name in names if name not in right)
        sink.keep(right)

    async def lines(self, sink: MatchSink) -> None:
        """Look whether the lines that are in doubt stand in the files that we can open, where they were found."""
        kept = await asyncio.to_thread(self._standing, sink.origins)
        self._forget(origin.name for index, origin in enumerate(sink.origins) if index not in kept)
        sink.keep(sorted(kept))

    def complaints(self, complaints: Complaints) -> None:
        """Forget what was said about files that are in doubt."""
        complaints.leave_out(self._is_unsure)

    def warnings(self) -> list[str]:
        return [
            f"{self._place.shown(folder.rstrip('/') or '.')}: changed while it was searched" for folder in self.lost
        ]

    def _is_unsure(self, name: str) -> bool:
        return self._unsure.above(name.removeprefix("./")) is not None

    def _forget(self, names: Iterator[str]) -> None:
        for name in names:
            folder = name.removeprefix("./").rpartition("/")[0]
            self.lost[folder or "."] = None

    async def _found_again(
        self, names: Sequence[str], counts: dict[str, bytes], again: SearchAgain
    ) -> dict[str, bytes]:
        with ExitStack() as stack:
            opened = [(name, handle) for name in names if (handle := self._place.open(name))]
            links = {stack.enter_context(handle).link: name for name, handle in opened}
            if not links:
                return {}
            page = Page(offset=0, limit=len(links), room=0)
            sink = NameSink(page, lambda _: True, str, has_counts=any(counts.values()))
            await again([*links], sink)
            return {links[link]: count for link, count in sink.counts().items() if link in links}

    def _standing(self, origins: Sequence[Origin]) -> set[int]:
        kept = {index for index, origin in enumerate(origins) if not self._is_unsure(origin.name)}
        doubtful: dict[str, list[int]] = {}
        for index, origin in enumerate(origins):
            if index not in kept:
                doubtful.setdefault(origin.name, []).append(index)
        for name, indexes in doubtful.items():
            handle = self._place.open(name)
            if handle is not None:
                with closing(handle):
                    kept.update(index for index in indexes if _stands(origins[index], handle))
        return kept


def _stands(origin: Origin, handle: Handle) -> bool:
    """Whether the file has these bytes there; of one that is searched as UTF-8 and is not, in what it is as UTF-8."""
    if origin.digest is None:
        return False
    if os.pread(handle.fd, 3, 0).startswith(_MARKS):
        text = _as_utf8(os.pread(handle.fd, _MAX_BYTES, 0))
        data = text[origin.offset : origin.offset + origin.length]
    else:
        data = os.pread(handle.fd, origin.length, origin.offset)
    return blake2b(data, digest_size=16).digest() == origin.digest


def _as_utf8(data: bytes) -> bytes:
    """Take a byte order mark off, and turn what it says is UTF-16 into UTF-8."""
    if data.startswith(codecs.BOM_UTF8):
        return data.removeprefix(codecs.BOM_UTF8)
    return data.decode("utf-16", "replace").encode()
