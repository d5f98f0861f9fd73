"""A folder as code: its files with what each says, read anew where they changed, kept on this host otherwise."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from forge_tools.errors import SandboxError
from forge_tools.sandbox.index import HostIndex, Seen
from forge_tools.sandbox.paths.confinement import Handle
from forge_tools.sandbox.paths.folders import open_allowed
from forge_tools.sandbox.paths.workspace import Workspace
from forge_tools.sandbox.reach import REACH
from forge_tools.tools.code.facts import MAX_BYTES, SHAPE, Definition, Facts, facts_of, unread
from forge_tools.tools.code.languages import Language, language_of
from forge_tools.tools.deadline import Deadline
from forge_tools.tools.file.walk import Walk

UNSUPPORTED_LANGUAGE = "UNSUPPORTED_LANGUAGE"

_BATCH = 200
_MOST_SKIPPED = 10


@dataclass(frozen=True, slots=True)
class Source:
    """One file: its path as people see it, and below the folder that was asked for."""

    path: str
    inside: str
    language: Language
    facts: Facts


@dataclass(slots=True)
class Codebase:
    """`skipped` are files that are no code which people write, with the reason. It is partial where time was short."""

    sources: dict[str, Source] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    is_partial: bool = False
    parsed: int = 0

    def definitions(self) -> Iterator[tuple[Source, Definition]]:
        return ((source, one) for source in self.sources.values() for one in source.facts.definitions)

    def named(self, symbol: str, *, file: str | None = None) -> list[tuple[Source, Definition]]:
        """The definitions of a name, or of a path of names such as `Class/method`, `Class.method` or `Class::method`."""
        wanted = symbol.replace("::", "/").replace(".", "/")
        found = [
            (source, one)
            for source, one in self.definitions()
            if f"/{one.path}".endswith(f"/{wanted}") and file in (None, source.path)
        ]
        return sorted(found, key=lambda one: (not one[1].is_public, one[0].path, one[1].line))

    @property
    def note(self) -> str:
        """What an answer says of what was not read."""
        if not self.is_partial and not self.skipped:
            return ""
        some = ", ".join(f"{path} ({why})" for path, why in list(self.skipped.items())[:3])
        left = f"; left out: {some}" + (f" and {len(self.skipped) - 3} more" if len(self.skipped) > 3 else "")
        partial = "; time was short, so not all files were read: ask again, or of a smaller folder"
        return f"\n[{len(self.sources):,} files read{left if self.skipped else ''}{partial if self.is_partial else ''}]"

    def index(self) -> dict[str, Any]:
        """What metadata say of how the answer was found."""
        skipped = dict(list(self.skipped.items())[:_MOST_SKIPPED])
        return {"files": len(self.sources), "parsed": self.parsed, "skipped": skipped, "partial": self.is_partial}


@dataclass(slots=True)
class _File:
    path: str
    inside: str
    language: Language
    handle: Handle
    digest: str | None = None
    text: str | None = None


def read(workspace: Workspace, path: str, deadline: Deadline, *, containing: str | None = None) -> Codebase:
    """Read the code of a folder, or one file. `containing`: files that do not have that word are not parsed for it.

    Raises:
        SandboxError: the path cannot be opened, or is a file of no language that is known.
    """
    codebase = Codebase()
    index = HostIndex(REACH.get().cache)
    batch: list[_File] = []
    with workspace.open(path) as target:
        for one in _files(workspace, target, deadline, codebase):
            batch.append(one)
            if len(batch) == _BATCH:
                _take(batch, codebase, index, containing)
                batch = []
            if deadline.is_over:
                codebase.is_partial = True
                break
        _take(batch, codebase, index, containing)
    return codebase


def read_file(workspace: Workspace, path: str, deadline: Deadline) -> Source:
    """Read one file.

    Raises:
        SandboxError: as `read` does, and where it is a folder, or no code that people write.
    """
    codebase = read(workspace, path, deadline)
    if len(codebase.sources) != 1:
        why = next(iter(codebase.skipped.values()), "a folder; name one file")
        raise SandboxError(f"{path} is not read as code: it is {why}", UNSUPPORTED_LANGUAGE)
    [source] = codebase.sources.values()
    return source


def _files(workspace: Workspace, target: Handle, deadline: Deadline, codebase: Codebase) -> Iterator[_File]:
    if not target.is_folder:
        language = language_of(target.name)
        if language is None:
            raise SandboxError(
                f"{target.name} is of no language that the code tools know; Grep searches it all the same",
                UNSUPPORTED_LANGUAGE,
            )
        yield _File(target.name, target.name, language, workspace.open_file(target.name))
        return
    above = workspace.inside(target)
    above = "" if above == "." else f"{above}/"
    walk = Walk(workspace, target, deadline)
    for level in walk.levels():
        for name in sorted(level.files):
            inside = level.path + name
            if (language := language_of(name)) is None:
                continue
            shown = workspace.shown(above + inside, target)
            if (handle := open_allowed(target.root, above + inside, shown)) is None:
                continue
            if handle.stat.st_size > MAX_BYTES:
                codebase.skipped[shown] = "larger than 1 MiB"
                handle.close()
                continue
            yield _File(shown, inside, language, handle)
    codebase.is_partial = codebase.is_partial or walk.is_partial


def _take(batch: Sequence[_File], codebase: Codebase, index: HostIndex, containing: str | None) -> None:
    for one, digest in zip(batch, index.digests([one.handle.stat for one in batch]), strict=True):
        one.digest = digest
    known = index.facts([one.digest for one in batch if one.digest])
    read, new = list[tuple[Seen, str]](), dict[str, Any]()
    for one in batch:
        facts = _known(known.get(one.digest or ""))
        if facts is None and _load(one, codebase) and one.digest and one.text is not None:
            known |= index.facts([one.digest]) if one.digest not in known else {}
            facts = _known(known.get(one.digest))
            if facts is None and (containing is None or containing in one.text):
                facts = facts_of(one.text, one.language)
                codebase.parsed += 1
                new[one.digest] = facts.as_json()
            if facts is not None:
                read.append((one.handle.stat, one.digest))
        one.handle.close()
        if facts is not None:
            codebase.sources[one.path] = Source(one.path, one.inside, one.language, facts)
    index.keep(read, new)


def _load(one: _File, codebase: Codebase) -> bool:
    """Read the bytes; False where they are left out."""
    data = os.pread(one.handle.fd, MAX_BYTES + 1, 0)
    if (why := unread(data)) is not None:
        codebase.skipped[one.path] = why
        return False
    one.digest = blake2b(data, digest_size=16, person=f"{SHAPE}{one.language.name}".encode()).hexdigest()
    one.text = data.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace")
    return True


def _known(told: Any) -> Facts | None:
    if told is not None:
        with suppress(TypeError, ValueError):
            return Facts.of_json(told)
    return None


def lines_of(workspace: Workspace, sources: Mapping[str, Source] | Sequence[str]) -> dict[str, str]:
    """The texts of files, as they are now; those that are gone are left out."""
    texts: dict[str, str] = {}
    for path in sources:
        with suppress(SandboxError), workspace.open_file(path) as handle:
            texts[path] = os.pread(handle.fd, MAX_BYTES, 0).removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace")
    return texts
