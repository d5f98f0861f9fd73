"""Which file an import means, by the rules of its language as far as they work on names only."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from forge_tools.tools.code.codebase import Codebase, Source
from forge_tools.tools.code.facts import Definition, Import

Confidence = Literal["exact", "likely", "guess"]

_SCRIPT = ("typescript", "tsx", "javascript")
_SCRIPT_ENDS = ("", ".ts", ".tsx", ".d.ts", ".js", ".jsx", ".mjs", ".cjs", "/index.ts", "/index.tsx", "/index.js")
_MOST_HOPS = 8
_WHOLE = re.compile(r"/(?:__init__|mod|index)$")
"""The name of a file that stands for its folder."""


@dataclass(frozen=True, slots=True)
class Found:
    """Where a name is defined, through which files it was imported, and how sure that is. Without a definition it is external."""

    source: Source | None
    definition: Definition | None
    via: tuple[str, ...]
    confidence: Confidence
    module: str = ""

    def member(self, names: Sequence[str]) -> "Found | None":
        """Return what has this path of names inside the definition; None if nothing there has. External stays so."""
        if self.source is None or self.definition is None:
            return self
        above = [] if self.definition.kind == "module" else [self.definition.path]
        wanted = "/".join([*above, *names])
        inner = next((one for one in self.source.facts.definitions if one.path == wanted), None)
        return replace(self, definition=inner) if inner else None


class Modules:
    """The files of a code base by the names that imports use for them."""

    def __init__(self, codebase: Codebase) -> None:
        self._codebase = codebase
        self._python: dict[str, list[str]] = {}
        self._ends: dict[tuple[str, str], list[str]] = {}
        for path, source in codebase.sources.items():
            language = source.language.name
            end = folder_of(path) if language == "go" else path
            self._ends.setdefault((_family(language), end.rpartition("/")[2]), []).append(path)
            if language == "python":
                for name in self._names(path.rpartition(".")[0].removesuffix("/__init__")):
                    self._python.setdefault(name, []).append(path)

    def of(self, one: Import, source: Source) -> list[str]:
        """Return the files that an import in `source` may mean, likeliest first; none if it is external."""
        language = source.language.name
        if language == "python":
            return self._of_python(one.module, source.path)
        if language in _SCRIPT:
            return self._of_script(one.module, source.path)
        if language in {"c", "cpp"}:
            return self._of_include(one.module, source.path)
        return self._by_tail(one, language)

    def submodule(self, one: Import, name: str, source: Source) -> list[str]:
        """Return the files that a name imported from a Python package may be, if it is a submodule."""
        dots = one.module if one.module.endswith(".") else f"{one.module}."
        return self._of_python(f"{dots}{name}", source.path) if source.language.name == "python" else []

    def resolve(self, name: str, source: Source, hops: tuple[str, ...] = ()) -> Found | None:
        """Find the definition of a name in the top-level scope of a file: in that file or where it is imported from."""
        own = [one for one in source.facts.definitions if one.name == name and not one.container]
        if own:
            return Found(source, own[0], hops, "exact")
        if source.path in hops or len(hops) >= _MOST_HOPS:
            return None
        for one in source.facts.imports:
            for taken, called in one.names:
                if called == name or taken == "*":
                    found = self._taken(name if taken == "*" else taken, one, source, (*hops, source.path))
                    if found is not None:
                        return found
        return None

    def below(self, names: Sequence[str]) -> list[tuple[Source, Definition]]:
        """Return what a path of names means whose first ones are those of a package or module; the likeliest first."""
        for count in range(len(names) - 1, 0, -1):
            found = [self.resolve(names[count], home) for home in self._homes(names[:count])]
            inner = [one.member(names[count + 1 :]) if names[count + 1 :] else one for one in found if one]
            if known := [(one.source, one.definition) for one in inner if one and one.source and one.definition]:
                return known
        return []

    def _homes(self, names: Sequence[str]) -> list[Source]:
        """Return the files that a path of names may stand for, directly or by their folder, the shortest path first."""
        end, found = f"/{'/'.join(names)}", list[Source]()
        for path, source in self._codebase.sources.items():
            whole = f"/{path.rpartition('.')[0]}"
            folder = f"/{folder_of(path)}" if source.language.name == "go" else _WHOLE.sub("", whole)
            found += [source] if whole.endswith(end) or folder.endswith(end) else []
        return sorted(found, key=lambda source: len(source.path))

    def _taken(self, name: str, one: Import, source: Source, hops: tuple[str, ...]) -> Found | None:
        paths = self.of(one, source)
        confidence: Confidence = "exact" if len(paths) == 1 else "likely"
        for path in paths:
            found = self.resolve(name, self._codebase.sources[path], hops)
            if found is not None:
                return Found(found.source, found.definition, found.via, confidence, one.module)
        for path in self.submodule(one, name, source) or (paths if name in {"", "default"} else ()):
            whole = Definition(path, "module", 1, 1, 1, "", one.module, is_public=True, start_line=1)
            return Found(self._codebase.sources[path], whole, hops, confidence, one.module)
        return (
            Found(None, None, hops, "likely", one.module)
            if not paths and name != "*" and one.names[0][0] != "*"
            else None
        )

    def _of_python(self, module: str, path: str) -> list[str]:
        name = module.lstrip(".")
        if level := len(module) - len(name):
            folder = path
            for _ in range(level):
                folder = folder_of(folder)
            base = f"{folder}/{name.replace('.', '/')}".strip("/") if name else folder
            return [
                one for one in (f"{base}.py", f"{base}/__init__.py", f"{base}.pyi") if one in self._codebase.sources
            ]
        return sorted(self._python.get(name, ()), key=len)

    def _of_script(self, module: str, path: str) -> list[str]:
        if not module.startswith("."):
            return []
        base = _from(path, module)
        without = base.rpartition(".")[0] if base.endswith((".js", ".jsx", ".mjs")) else base
        tried = dict.fromkeys([f"{one}{end}" for one in (base, without) for end in _SCRIPT_ENDS])
        return [one for one in tried if one in self._codebase.sources][:1]

    def _of_include(self, module: str, path: str) -> list[str]:
        name = module.strip('"<>')
        beside = _from(path, name)
        if beside in self._codebase.sources:
            return [beside]
        return self._ending("c", name)

    def _by_tail(self, one: Import, language: str) -> list[str]:
        parts = [part for part in one.module.replace("::", "/").replace(".", "/").split("/") if part not in _HERE]
        if language == "go":
            return self._ends.get((language, parts[-1]), []) if parts else []
        if language == "java":
            return self._ending(language, "/".join([*parts, f"{one.names[0][0]}.java"]))
        wanted = "/".join(parts[-2:])
        return [*self._ending(language, f"{wanted}.rs"), *self._ending(language, f"{wanted}/mod.rs")] if wanted else []

    def _ending(self, language: str, end: str) -> list[str]:
        named = self._ends.get((_family(language), end.rpartition("/")[2]), ())
        return [path for path in named if f"/{path}".endswith(f"/{end}")]

    def _names(self, path: str) -> Iterator[str]:
        """Yield a module's possible names: a.b.c, b.c, c, since root folders are not known; but not c if b is a package."""
        parts = path.split("/")
        is_inner = any(f"{folder_of(path)}/__init__{end}" in self._codebase.sources for end in (".py", ".pyi"))
        return (".".join(parts[at:]) for at in range(len(parts) - is_inner))


def _family(language: str) -> str:
    """C and C++ include each other's files."""
    return "c" if language == "cpp" else language


_HERE = frozenset({"", "crate", "self", "super"})


def folder_of(path: str) -> str:
    """Return the folder of a path; "" if it has none."""
    return path.rpartition("/")[0]


def _from(path: str, target: str) -> str:
    """Resolve a relative path written in the file `path`."""
    parts: list[str] = []
    for part in f"{folder_of(path)}/{target}".split("/"):
        if part == ".." and parts:
            parts.pop()
        elif part not in {"", ".", ".."}:
            parts.append(part)
    return "/".join(parts)
