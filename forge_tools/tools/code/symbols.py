"""What a name refers to, by each language's rules for imports: SymbolInfo, ResolveSymbol and ImportsExports."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from forge_tools.model import ToolResult
from forge_tools.sandbox.paths.workspace import Workspace
from forge_tools.tools.builtin import PATH, Deadline, option
from forge_tools.tools.code.codebase import (
    SYMBOL,
    Codebase,
    CodeTool,
    Having,
    Source,
    below,
    line,
    names_in,
    place,
    read,
    read_file,
    refuse,
    texts_of,
)
from forge_tools.tools.code.facts import Definition, Import

Confidence = Literal["exact", "likely", "guess"]

_SCRIPT = ("typescript", "tsx", "javascript")
_SCRIPT_ENDS = ("", ".ts", ".tsx", ".d.ts", ".js", ".jsx", ".mjs", ".cjs", "/index.ts", "/index.tsx", "/index.js")
_MOST_HOPS = 8
_WHOLE = {"python": "/__init__", "rust": "/mod"}
"""The ends of files that stand for their folder; elsewhere `/index`."""

_HERE = frozenset({"", "crate", "self", "super"})
MAX_BODY = 400
_MOST = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _SymbolInfoWish:
    symbol: str = option(
        "Name, or path of names: parse, Registry/get, Registry.get, package.module.Registry.", **SYMBOL
    )
    file: str | None = option("File that defines it; by default all files below path are searched.", None, **PATH)
    path: str = below()
    include_body: bool = option("Show its code.", default=True)


class SymbolInfo(CodeTool):
    """Show a definition: kind, signature, where it is, its code, and others of the same name."""

    name = "SymbolInfo"
    aliases = ("get_symbol_info", "symbol_info")
    options = _SymbolInfoWish

    def _answer(self, wish: _SymbolInfoWish, workspace: Workspace, deadline: Deadline, max_chars: int) -> ToolResult:
        where = wish.file or wish.path
        codebase = read(workspace, where, deadline, Having.name(names_in(wish.symbol)[-1], defined=True))
        if not (found := codebase.named(wish.symbol)):
            codebase = read(workspace, where, deadline)
            found = codebase.named(wish.symbol) or Modules(codebase).below(names_in(wish.symbol))
        if not found:
            refuse(codebase, wish.symbol, where)
        source, one = found[0]
        parts = [line(source, one)]
        if wish.include_body:
            parts.append(_body(workspace, source, one))
        if others := found[1:]:
            same = "\n".join(line(*other) for other in others[:_MOST])
            parts.append(f"{len(others)} more have this name; give file, or a longer name:\n{same}")
        if members := [inner for inner in source.facts.definitions if inner.container == one.path]:
            said = [f"  {inner.line}: {inner.signature}" for inner in members[: _MOST * 3]]
            parts.append("\n".join(["Members:", *said]))
        facts = {**place(source, one), "end_line": one.end_line, "is_public": one.is_public}
        return codebase.answer(["\n\n".join(parts)], symbol=facts, others=[place(*other) for other in others[:_MOST]])


def _body(workspace: Workspace, source: Source, one: Definition) -> str:
    text = next((text for _, text in texts_of(workspace, [source])), "")
    body = text.split("\n")[one.start_line - 1 : one.end_line]
    numbered = [f"{number:>6}  {said}" for number, said in enumerate(body[:MAX_BODY], one.start_line)]
    if (left := len(body) - MAX_BODY) > 0:
        numbered.append(f"... {left} more lines; Read {source.path} with offset {one.start_line + MAX_BODY}")
    return "\n".join(numbered)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ResolveSymbolWish:
    symbol: str = option("The name as the file writes it: Registry, or registry.Registry.", **SYMBOL)
    file: str = option("The file that uses it.", **PATH)
    path: str = below("Folder in which to look for the definition, by default the working directory.")


class ResolveSymbol(CodeTool):
    """Find where a name that a file uses is defined, following imports and re-exports.

    `exact`: the imports lead there. `likely`: they lead to one of several. `guess`: something of that name is defined there.
    """

    name = "ResolveSymbol"
    aliases = ("resolve_symbol",)
    options = _ResolveSymbolWish

    def _answer(self, wish: _ResolveSymbolWish, workspace: Workspace, deadline: Deadline, max_chars: int) -> ToolResult:
        using = read_file(workspace, wish.file, deadline)
        codebase = read(workspace, wish.path, deadline)
        first, *rest = names_in(wish.symbol)
        found = Modules(codebase).resolve(first, using)
        if found and rest:
            found = found.member(rest)
        if found and found.definition and found.source:
            via = [f"via {' -> '.join(found.via)}"] if found.via else []
            facts = {**place(found.source, found.definition), "confidence": found.confidence, "via": list(found.via)}
            said = f"{line(found.source, found.definition)}  [{found.confidence}]"
            return codebase.answer([said, *via], definitions=[facts])
        if found:
            said = f"{wish.symbol} comes from {found.module}, which is not below {wish.path}"
            return codebase.answer([said], definitions=[], external=found.module)
        candidates = codebase.named(wish.symbol) or codebase.named(names_in(wish.symbol)[-1])
        if not candidates:
            refuse(codebase, wish.symbol, wish.path)
        guesses = [{**place(*one), "confidence": "guess", "via": []} for one in candidates[:_MOST]]
        return codebase.answer((f"{line(*one)}  [guess]" for one in candidates[:_MOST]), definitions=guesses)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ImportsExportsWish:
    file: str = option("The file.", **PATH)
    path: str = below("Folder in which to look for what it imports, by default the working directory.")


class ImportsExports(CodeTool):
    """List what a file imports, from where, and what it exports."""

    name = "ImportsExports"
    aliases = ("get_imports_exports", "imports_exports")
    options = _ImportsExportsWish

    def _answer(
        self, wish: _ImportsExportsWish, workspace: Workspace, deadline: Deadline, max_chars: int
    ) -> ToolResult:
        source = read_file(workspace, wish.file, deadline)
        codebase = read(workspace, wish.path, deadline)
        modules = Modules(codebase)
        imports: list[dict[str, Any]] = [
            {
                "module": one.module,
                "names": [
                    called if taken in {called, ""} else f"{taken} as {called}" for taken, called in one.names if called
                ],
                "line": one.line,
                "resolved": next(iter(modules.of(one, source)), None),
            }
            for one in source.facts.imports
        ]
        exports: list[dict[str, Any]] = [
            {"name": one.path, "kind": one.kind, "line": one.line}
            for one in source.facts.definitions
            if one.is_public and not one.container
        ]
        exports += [
            {"name": called, "kind": f"from {one.module}", "line": one.line}
            for one in source.facts.imports
            if one.is_export
            for _, called in one.names
        ]
        said = []
        for one in imports:
            taken = f"{source.path}:{one['line']}  {one['module']}  {', '.join(one['names'])}".rstrip()
            said.append(f"{taken}  -> {one['resolved'] or 'external'}")
        offered = [f"{source.path}:{one['line']}  {one['kind']} {one['name']}" for one in exports]
        said = [f"Imports of {source.path}: {len(imports)}", *said, "", f"Exports: {len(exports)}", *offered]
        return codebase.answer(said, imports=imports, exports=exports)


@dataclass(frozen=True, slots=True)
class Found:
    """Where a name is defined, through which files it was imported, and how sure that is. Without a definition it is external."""

    source: Source | None
    definition: Definition | None
    via: tuple[str, ...]
    confidence: Confidence
    module: str = ""

    def member(self, names: Sequence[str]) -> "Found | None":
        """Return what has this path of names inside the definition; None if nothing there has. An external name is returned as it is."""
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
        self._by_last: dict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
        for path, source in codebase.sources.items():
            for name in _names_of(path, source.language.name):
                self._by_last[_family(source.language.name), name.rpartition("/")[2]].append((f"/{name}", path))

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
        """Return what a path of names means if it begins with a package or module, likeliest first."""
        languages = sorted({_family(source.language.name) for source in self._codebase.sources.values()})
        for count in range(len(names) - 1, 0, -1):
            homes = [home for language in languages for home in self._at(names[:count], language)]
            found = [self.resolve(names[count], self._codebase.sources[home]) for home in homes]
            inner = [one.member(names[count + 1 :]) if names[count + 1 :] else one for one in found if one]
            known = [(one.source, one.definition) for one in inner if one and one.source and one.definition]
            if known:
                return list({(source.path, one.line): (source, one) for source, one in known}.values())
        return []

    def _at(self, names: Sequence[str], language: str) -> list[str]:
        """Return the files that a path of names may stand for, the shortest path first: root folders are not known."""
        end, known = f"/{'/'.join(names)}", self._by_last.get((_family(language), names[-1]), ())
        return sorted((path for name, path in known if name.endswith(end)), key=len)

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
        is_external = not paths and name != "*" and one.names[0][0] != "*"
        return Found(None, None, hops, "likely", one.module) if is_external else None

    def _of_python(self, module: str, path: str) -> list[str]:
        name = module.lstrip(".")
        if level := len(module) - len(name):
            folder = path
            for _ in range(level):
                folder = folder_of(folder)
            base = f"{folder}/{name.replace('.', '/')}".strip("/") if name else folder
            files = (f"{base}.py", f"{base}/__init__.py", f"{base}.pyi")
            return [one for one in files if one in self._codebase.sources]
        names = name.split(".")
        found = self._at(names, "python")
        return found if len(names) > 1 else [one for one in found if not self._is_inner(one)]

    def _is_inner(self, path: str) -> bool:
        """Whether a Python module is in a package, so that its name alone does not mean it."""
        above = folder_of(path.removesuffix("/__init__.py").removesuffix("/__init__.pyi"))
        return any(f"{above}/__init__{end}" in self._codebase.sources for end in (".py", ".pyi"))

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
        return [beside] if beside in self._codebase.sources else self._at(name.split("/"), "c")

    def _by_tail(self, one: Import, language: str) -> list[str]:
        parts = [part for part in one.module.replace("::", "/").replace(".", "/").split("/") if part not in _HERE]
        parts += [one.names[0][0]] if language == "java" else []
        least = {"go": 1, "rust": 2}.get(language, len(parts))
        return self._at(parts[-least:], language) if parts else []


def _names_of(path: str, language: str) -> set[str]:
    """Return the paths by which imports name a file: without its ending, by its folder, or as it is."""
    name = path.rpartition(".")[0]
    if language == "go":
        return {folder_of(path)}
    return {name, path} if language in {"c", "cpp"} else {name, name.removesuffix(_WHOLE.get(language, "/index"))}


def _family(language: str) -> str:
    """C and C++ include each other's files."""
    return "c" if language == "cpp" else language


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
