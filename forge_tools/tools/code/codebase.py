"""A folder as code: what each source file defines, imports and names, kept in an index on this host until the file changes.

Also the base of the tools that answer from it.
"""

import os
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from hashlib import blake2b
from typing import Any, Literal, NoReturn, Self

from forge_tools.errors import SandboxError, ToolFailure
from forge_tools.model import Lane, ToolCategory, ToolResult
from forge_tools.model.tools import Tier
from forge_tools.sandbox.index import HostIndex, Kept, Seen
from forge_tools.sandbox.paths.confinement import Handle
from forge_tools.sandbox.paths.workspace import Workspace
from forge_tools.sandbox.reach import REACH
from forge_tools.tools.builtin import PATH, Deadline, LookingTool, option
from forge_tools.tools.code.facts import MAX_BYTES, SHAPE, WORD, Definition, Facts, facts_of, unread
from forge_tools.tools.file.walk import Walk
from forge_tools.tools.languages import Language, language_of

UNSUPPORTED_LANGUAGE = "UNSUPPORTED_LANGUAGE"
SYMBOL_NOT_FOUND = "SYMBOL_NOT_FOUND"
SYMBOL: dict[str, Any] = {"min_length": 1, "max_length": 300}

_BATCH = 200
_LARGE = 8192
SLOW_SECONDS = 5.0
"""Code that takes longer to parse was not written by hand; files smaller than `_LARGE` never take this long."""
_MOST_SKIPPED = 10
_MOST_CLOSE = 5
_TOO_SLOW = "too slow to parse"
_DEFINED = r"\b(?:def|class)\s+{0}\b|(?:^|[;:])\s*{0}\s*[:=]"


@dataclass(frozen=True, slots=True)
class Source:
    """One source file; `path` is the one that people see."""

    path: str
    language: Language
    facts: Facts
    digest: str


@dataclass(slots=True)
class Codebase:
    """`seen` counts files by language, `skipped` maps the path of a file that was not read to the reason. It is partial if time ran out."""

    sources: dict[str, Source] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    is_partial: bool = False
    seen: Counter[str] = field(default_factory=Counter)
    parsed: int = 0

    def definitions(self) -> Iterator[tuple[Source, Definition]]:
        return ((source, one) for source in self.sources.values() for one in source.facts.definitions)

    def named(self, symbol: str, *, file: str | None = None) -> list[tuple[Source, Definition]]:
        """Return the definitions of a name, or of a path of names such as `Class/method`, `Class.method` or `Class::method`."""
        wanted = f"/{'/'.join(names_in(symbol))}"
        found = [
            (source, one)
            for source, one in self.definitions()
            if wanted.endswith(one.name) and f"/{one.path}".endswith(wanted) and file in (None, source.path)
        ]
        return sorted(found, key=lambda one: (not one[1].is_public, one[0].path, one[1].line))

    @property
    def note(self) -> str:
        """What was not read, for the end of an answer; empty if everything was."""
        if not self.is_partial and not self.skipped:
            return ""
        some = ", ".join(f"{path} ({why})" for path, why in list(self.skipped.items())[:3])
        left = f"; left out: {some}" + (f" and {len(self.skipped) - 3} more" if len(self.skipped) > 3 else "")
        partial = "; time ran out before all files were read: ask again, or about a smaller folder"
        return f"\n[{self.seen.total():,} files seen{left if self.skipped else ''}{partial if self.is_partial else ''}]"

    def answer(self, lines: Iterable[str], **facts: Any) -> ToolResult:
        """Return these lines and what was not read; the metadata say how the answer was found."""
        skipped = dict(list(self.skipped.items())[:_MOST_SKIPPED])
        index = {"files": self.seen.total(), "parsed": self.parsed, "skipped": skipped, "partial": self.is_partial}
        return ToolResult.ok("\n".join(lines) + self.note, **facts, index=index)


@dataclass(slots=True)
class _File:
    path: str
    language: Language
    handle: Handle
    digest: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class Having:
    """Which files an answer needs: those that contain all these words; every file by default.

    `like` ignores case and accepts longer words that contain these; `defined` excludes files that cannot define them.
    """

    words: Sequence[str] = ()
    like: bool = False
    defined: bool = False

    @classmethod
    def name(cls, word: str | None, *, defined: bool = False) -> Self:
        """Select the files that contain a word; all files if it is not a single word."""
        return cls((word,), defined=defined) if word and WORD.fullmatch(word) else cls()

    def may_need(self, text: str, language: str) -> bool:
        said = text.lower() if self.like else text
        if not all(word in said for word in self.words):
            return False
        return not (self.defined and language == "python") or all(
            re.search(_DEFINED.format(re.escape(word)), text, re.MULTILINE) for word in self.words
        )

    @property
    def column(self) -> Literal["names", "words"]:
        """What of an index entry shows whether it is needed."""
        return "words" if self.words and not self.defined else "names"

    def needs(self, said: str) -> bool:
        """Whether a file with this column in its index entry is needed."""
        if self.like:
            return all(word in said.lower() for word in self.words)
        return all(f"\n{word}\n" in said for word in self.words)


class CodeTool(LookingTool):
    """A tool that parses. It runs in the process lane, since a parser may be slow and blocks the interpreter."""

    category = ToolCategory.OTHER
    tags = ("code",)
    lane: Lane = "process"
    walls: Tier | None = "landlock"


def below(what: str = "Folder to look below, by default the working directory.") -> Any:
    return option(what, ".", **PATH)


def names_in(symbol: str) -> list[str]:
    return symbol.replace("::", ".").replace("/", ".").split(".")


def place(source: Source, one: Definition) -> dict[str, Any]:
    taken = {name: getattr(one, name) for name in ("line", "column", "kind", "signature")}
    return {"path": source.path, "name": one.path, **taken}


def line(source: Source, one: Definition) -> str:
    """Return a line such as `src/a.py:12  class Parser  class Parser(Base)`."""
    return f"{source.path}:{one.line}  {one.kind} {one.path}  {one.signature}"


def refuse(codebase: Codebase, symbol: str, where: str) -> NoReturn:
    """Report that a symbol does not exist, and name similar ones."""
    known = {one.name: f"{one.name} ({source.path}:{one.line})" for source, one in codebase.definitions()}
    *outer, last = names_in(symbol)
    near = get_close_matches(last, known, _MOST_CLOSE)
    close = f" Close: {', '.join(known[name] for name in near)}." if near else ""
    if outer:
        close += f" Pass '{last}' alone, or as path the folder that holds the package or file of '{'.'.join(outer)}'."
    place = "the working directory" if where == "." else where
    raise ToolFailure(f"There is no symbol '{symbol}' in {place}.{close}{codebase.note}", code=SYMBOL_NOT_FOUND)


def read(workspace: Workspace, path: str, deadline: Deadline, having: Having = Having()) -> Codebase:
    """Read the code of a folder or of one file, as far as `having` needs it."""
    codebase = Codebase()
    batch: list[_File] = []
    with closing(HostIndex(REACH.get().cache)) as index, workspace.open(path) as target:
        for one in _files(workspace, target, deadline, codebase):
            batch.append(one)
            if len(batch) == _BATCH:
                _take(batch, codebase, index, having, deadline)
                batch = []
            if deadline.is_over:
                codebase.is_partial = True
                break
        _take(batch, codebase, index, having, deadline)
    return codebase


def read_file(workspace: Workspace, path: str, deadline: Deadline) -> Source:
    """Read one file; refuse a folder, and a file that is skipped."""
    codebase = read(workspace, path, deadline)
    if len(codebase.sources) != 1:
        why = next(iter(codebase.skipped.values()), "a folder; name one file")
        raise SandboxError(f"{path} cannot be read as code: it is {why}", UNSUPPORTED_LANGUAGE)
    [source] = codebase.sources.values()
    return source


def _files(workspace: Workspace, target: Handle, deadline: Deadline, codebase: Codebase) -> Iterator[_File]:
    if not target.is_folder:
        language = language_of(target.name)
        if language is None:
            what = f"{target.name} is in a language that the code tools do not know; Grep can search it"
            raise SandboxError(what, UNSUPPORTED_LANGUAGE)
        shown = workspace.shown(workspace.inside(target), target.root)
        yield _File(shown, language, workspace.open_file(target.name))
        return
    walk = Walk(workspace, target, deadline)
    for level in walk.levels():
        for name in sorted(level.files):
            path = level.path + name
            if (language := language_of(name)) is None or (handle := walk.open(path)) is None:
                continue
            shown = walk.shown(path)
            if handle.stat.st_size > MAX_BYTES:
                codebase.skipped[shown] = "larger than 1 MiB"
                handle.close()
                continue
            yield _File(shown, language, handle)
    codebase.is_partial = codebase.is_partial or walk.is_partial


def _take(batch: Sequence[_File], codebase: Codebase, index: HostIndex, having: Having, deadline: Deadline) -> None:
    for one, digest in zip(batch, index.digests([one.handle.stat for one in batch]), strict=True):
        one.digest = digest or ""
    known = _known(index, [one.digest for one in batch], having)
    read, new = list[tuple[Seen, str]](), dict[str, Kept]()
    for one in batch:
        if deadline.is_over:
            codebase.is_partial = True
            break
        codebase.seen[one.language.name] += 1
        if one.digest not in known and _load(one, codebase):
            known |= _known(index, [one.digest], having)
            read.append((one.handle.stat, one.digest))
            is_needed = one.digest not in known and having.may_need(one.text, one.language.name)
            if is_needed and (facts := _parsed(one, codebase, index)):
                known[one.digest], new[one.digest] = facts, facts.kept()
        if (found := known.get(one.digest)) is not None:
            codebase.sources[one.path] = Source(one.path, one.language, found, one.digest)
        one.handle.close()
    index.keep(read, new)


def _known(index: HostIndex, digests: Sequence[str], having: Having) -> dict[str, Facts | None]:
    """Return the indexed facts by digest; None for files that this answer does not need."""
    found: dict[str, Facts | None] = {}
    for digest, kept in index.facts(digests, having.column, having.needs).items():
        with suppress(TypeError, ValueError):  # an unreadable entry: the file is parsed again
            found[digest] = Facts.of_kept(kept) if kept else None
    return found


def _load(one: _File, codebase: Codebase) -> bool:
    """Read the bytes; return False if the file is skipped."""
    data = os.pread(one.handle.fd, MAX_BYTES + 1, 0)
    if (why := unread(data)) is not None:
        codebase.skipped[one.path] = why
        return False
    one.digest, one.text = _digest(data, one.language), _decoded(data)
    return True


def _digest(data: bytes, language: Language) -> str:
    return blake2b(data, digest_size=16, person=f"{SHAPE}{language.name}".encode()).hexdigest()


def _decoded(data: bytes) -> str:
    return data.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace")


def _parsed(one: _File, codebase: Codebase, index: HostIndex) -> Facts | None:
    """Parse a file, unless it took too long before or its parser had to be killed: a running parser cannot be interrupted."""
    is_large = len(one.text) >= _LARGE
    if is_large and not index.is_skipped(one.digest):
        index.skip(one.digest, after=2 * SLOW_SECONDS)  # others may be parsing it right now
    elif is_large:
        codebase.skipped[one.path] = _TOO_SLOW
        return None
    started = time.thread_time()
    facts = facts_of(one.text, one.language)
    codebase.parsed += 1
    if time.thread_time() - started > SLOW_SECONDS:
        index.skip(one.digest)
        codebase.skipped[one.path] = _TOO_SLOW
        return None
    if is_large:
        index.keep([], {one.digest: facts.kept()})
    return facts


def texts_of(workspace: Workspace, sources: Iterable[Source]) -> Iterator[tuple[Source, str]]:
    """Yield sources with their current texts; one that has changed meanwhile has new facts, one that is gone is omitted."""
    for source in sources:
        try:
            with workspace.open_file(source.path) as handle:
                data = os.pread(handle.fd, MAX_BYTES + 1, 0)
        except SandboxError:
            continue
        text = _decoded(data)
        if source.digest == (digest := _digest(data, source.language)):
            yield source, text
        elif unread(data) is None:
            yield replace(source, facts=facts_of(text, source.language), digest=digest), text
