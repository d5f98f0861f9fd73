"""What one source file defines, imports and names. Pure: bytes in, facts out."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from forge_tools.errors import ErrorCode, SandboxError
from forge_tools.sandbox.index import Kept
from forge_tools.tools.languages import Language

SHAPE = 6
"""Increased whenever the facts read from a file change, so that files indexed before are parsed again."""

MAX_BYTES = 1 << 20
_LONGEST_LINE = 20_000
_SIGNATURE = 200
WORD = re.compile(r"(?:[^\W\d]|\$)[\w$]*")
_SPACES = re.compile(r"\s+")
_BODIES = frozenset({"struct_specifier", "enum_specifier", "class_specifier"})
"""Nodes that define nothing if they have no body."""
_TYPES = frozenset({"class_definition", "class_specifier", "impl_item", "trait_item"})
_ERROR = "ERROR"
_VARIABLES = frozenset({"assignment", "variable_declarator"})
_FUNCTIONS = frozenset({"function_expression", "generator_function", "arrow_function", "class"})


class Definition(NamedTuple):
    """`line` and `column` locate the name, from 1; `start_line` may be that of an annotation. `container` is the path of the enclosing names: `Class/method`."""

    name: str
    kind: str
    line: int
    end_line: int
    column: int
    container: str
    signature: str
    is_public: bool
    start_line: int

    @property
    def path(self) -> str:
        return f"{self.container}/{self.name}" if self.container else self.name


class Import(NamedTuple):
    """`names` are pairs: a name in the module and its local name. `*` stands for all names, "" for the module itself."""

    module: str
    names: tuple[tuple[str, str], ...]
    line: int
    is_export: bool = False


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts of one file. `words` includes those in comments, each between two line ends.

    `starts` are the lines, from 0, at which the file can be cut into parts that parse by themselves; empty if it has syntax errors.
    """

    definitions: tuple[Definition, ...]
    imports: tuple[Import, ...]
    words: str
    starts: tuple[int, ...]

    def has(self, word: str) -> bool:
        return f"\n{word}\n" in self.words

    def kept(self) -> Kept:
        """Return the form that the index stores."""
        said = json.dumps([self.definitions, self.imports, self.starts], ensure_ascii=False, separators=(",", ":"))
        return Kept(_set({one.name for one in self.definitions}), self.words, said)

    @classmethod
    def of_kept(cls, kept: Kept) -> Self:
        """Parse the stored form; an invalid one raises TypeError or ValueError."""
        definitions, imports, starts = json.loads(kept.facts)
        taken = tuple(
            Import(module, tuple((a, b) for a, b in names), line, is_export)
            for module, names, line, is_export in imports
        )
        return cls(tuple(map(Definition._make, definitions)), taken, kept.words, tuple(starts))


def unread(data: bytes) -> str | None:
    """Return why a file is skipped; None if it looks like code written by hand."""
    if len(data) > MAX_BYTES:
        return "larger than 1 MiB"
    if b"\0" in data[:8192]:
        return "binary"
    at = 0
    while len(data) - at > _LONGEST_LINE:
        if (end := data.rfind(b"\n", at, at + _LONGEST_LINE + 1)) < 0:
            return "minified"
        at = end + 1
    return None


def parsed(text: str, language: Language) -> Any:
    """Return the syntax tree of a text."""
    try:
        from ast_grep_py import SgRoot
    except ImportError as error:
        lacks = "This worker lacks packages of the code tools. Run pip install 'forge-tools[code]'"
        raise SandboxError(lacks, ErrorCode.ENGINE_NOT_AVAILABLE) from error
    return SgRoot(text, language.name).root()


def facts_of(text: str, language: Language) -> Facts:
    """Read the facts of a file; parts with syntax errors are skipped."""
    root = parsed(text, language)
    kinds = [*language.definitions, *language.imports, _ERROR]
    nodes = root.find_all({"rule": {"any": [{"kind": kind} for kind in dict.fromkeys(kinds)]}})
    definitions, imports, starts = list[Definition](), list[Import](), tuple(_starts(root))
    for node in nodes:
        kind = node.kind()
        if kind == _ERROR:
            starts = ()
        if kind in language.definitions and (found := _definition(node, language)):
            definitions.append(found)
        if kind in language.imports:
            imports += _imports(node, kind)
    declared = _declared(root) if language.name == "python" else None
    if declared is not None:
        definitions = [one._replace(is_public=not one.container and one.name in declared) for one in definitions]
    return Facts(tuple(definitions), tuple(imports), _set(set(WORD.findall(text))), starts)


def _set(words: set[str]) -> str:
    return "\n".join(["", *sorted(words), ""])


def _starts(root: Any) -> Iterator[int]:
    """Yield the lines that begin with a statement of the top level and hold no part of another one."""
    before = (0, 0)
    for node in root.children():
        place = node.range()
        if before <= (place.start.line, 0):
            yield place.start.line
        before = max(before, (place.end.line, place.end.column))


def _definition(node: Any, language: Language) -> Definition | None:
    named = _named(node)
    name = _said(named)
    if name is None or (node.kind() in _BODIES and not node.field("body")):
        return None
    if node.kind() in _VARIABLES and not _is_kept(node, language):
        return None
    holders, is_method = _holders(node, language)
    *outer, last = re.split(r"::|\.", name) if language.name == "cpp" else [name]
    kind = language.definitions[node.kind()]
    place, extent = named.range().start, node.range()
    return Definition(
        last, "method" if kind == "function" and is_method else kind, place.line + 1, extent.end.line + 1, place.column + 1,
        "/".join([*holders, *outer]), _signature(node), _is_public(node, language, last, is_inner=bool(holders)),
        extent.start.line + 1,
    )  # fmt: skip


def _holders(node: Any, language: Language) -> tuple[list[str], bool]:
    """Return the names that enclose a definition, outermost first, and whether the innermost is a type."""
    around = [one for one in node.ancestors() if one.kind() in language.definitions or one.kind() in language.scopes]
    holders = [found for one in reversed(around) if (found := _said(_named(one)))]
    receiver = node.field("receiver") if language.name == "go" else None  # `(s *Store[K])` names the type of a method
    if receiver is not None and (words := receiver.text().strip("()").split()):
        holders.append(words[-1].lstrip("*").partition("[")[0])
    return holders, bool(around) and around[0].kind() in _TYPES


def _named(node: Any) -> Any:
    """Return the node of a definition's name; None if it has no name to record."""
    if node.kind() == "assignment":
        left = node.field("left")
        return left if left is not None and left.kind() == "identifier" else None
    if node.kind() == "assignment_expression":  # exports.name = function () {}, Type.prototype.name = () => {}
        left, right = node.field("left"), node.field("right")
        is_function = right is not None and right.kind() in _FUNCTIONS
        is_member = left is not None and left.kind() == "member_expression"
        return left.field("property") if is_function and is_member else None
    if node.kind() == "impl_item":
        return node.field("type")
    found = node.field("name") or node.field("declarator")
    while found is not None and (inner := _inside(found)) is not None:
        found = inner
    return found


def _inside(declarator: Any) -> Any:
    """Return what a C declarator declares: `*name`, `&name`, `name(...)`."""
    if declarator.kind() == "reference_declarator":
        return next((one for one in declarator.children() if one.is_named()), None)
    return declarator.field("declarator")


def _said(named: Any) -> str | None:
    text = named.text().strip() if named is not None else ""
    if named is not None and named.kind() == "generic_type":
        text = text.partition("<")[0]
    return text if 0 < len(text) <= _SIGNATURE and "\n" not in text else None


def _is_kept(node: Any, language: Language) -> bool:
    """Whether a variable belongs to its module or class and not to a function body."""
    above = [one.kind() for one in node.ancestors()]
    if language.name == "python":
        return above[0] == "expression_statement" and "function_definition" not in above and "lambda" not in above
    return not {"statement_block", "function_declaration", "arrow_function", "method_definition"} & set(above)


def _is_public(node: Any, language: Language, name: str, *, is_inner: bool) -> bool:
    if language.name == "python":
        return not is_inner and not name.startswith("_")
    if language.name == "go":
        return name[:1].isupper()
    if language.name in {"typescript", "tsx", "javascript"}:
        is_exported = node.text().startswith(("exports.", "module.exports."))
        return is_exported or any(one.kind() == "export_statement" for one in node.ancestors())
    said = node.text()[:_SIGNATURE].split()
    return "static" not in said[:2] if language.name in {"c", "cpp"} else said[:1] != [] and said[0].startswith("pub")


def _signature(node: Any) -> str:
    body, start = node.field("body"), node.range().start.index
    text = node.text()
    until = body.range().start.index - start if body is not None else (text.find("\n") + 1 or len(text))
    return _SPACES.sub(" ", text[:until]).strip().rstrip("{=").strip()[:_SIGNATURE]


def _declared(root: Any) -> set[str] | None:
    """Return the names in a literal `__all__`; None if there is none."""
    for node in root.find_all({"rule": {"kind": "assignment", "has": {"field": "left", "regex": "^__all__$"}}}):
        return set(re.findall(r"[\"']([^\"']+)[\"']", node.text()))
    return None


def _imports(node: Any, kind: str) -> Iterator[Import]:
    line = node.range().start.line + 1
    if kind == "import_from_statement":
        names = [one.text() for one in node.field_children("name")] or ["*"]
        yield Import(node.field("module_name").text(), tuple(map(_pair, names)), line)
    elif kind == "import_statement" and (named := node.field_children("name")):
        for one in named:
            module, called = _pair(one.text())
            yield Import(module, (("", called if called != module else ""),), line)
    elif kind in {"import_statement", "export_statement"} and (source := node.field("source")) is not None:
        yield Import(source.text().strip("\"'`"), _script_names(node), line, kind == "export_statement")
    elif kind == "call_expression":
        called, given = node.field("function"), node.field("arguments")
        found = re.fullmatch(r"\(\s*[\"'`]([^\"'`\n]+)[\"'`]\s*\)", given.text()) if given is not None else None
        if found and called is not None and called.text() in {"require", "import"}:
            yield Import(found[1], (), line)
    else:
        yield from _plain_imports(node, kind, line)


def _plain_imports(node: Any, kind: str, line: int) -> Iterator[Import]:
    if kind == "import_spec":
        name = node.field("name")
        yield Import(node.field("path").text().strip('"`'), (("", name.text() if name is not None else ""),), line)
    elif kind == "use_declaration":
        yield from (Import(module, names, line) for module, names in _uses(node.field("argument").text()))
    elif kind == "mod_item" and node.field("body") is None:
        yield Import(f"self::{node.field('name').text()}", (), line)
    elif kind == "import_declaration":
        said = _SPACES.sub(" ", node.text()).removeprefix("import ").removeprefix("static ").rstrip("; ")
        module, _, name = said.rpartition(".")
        yield Import(module, ((name, name),), line)
    elif kind == "preproc_include" and (path := node.field("path")) is not None:
        yield Import(path.text().strip(), (), line)


def _pair(said: str) -> tuple[str, str]:
    name, _, called = _SPACES.sub(" ", said).partition(" as ")
    return name, called or name


def _script_names(node: Any) -> tuple[tuple[str, str], ...]:
    names = [
        _pair(one.text().removeprefix("type ").strip())
        for one in node.find_all({"rule": {"any": [{"kind": "import_specifier"}, {"kind": "export_specifier"}]}})
    ]
    for one in node.find_all({"rule": {"kind": "import_clause"}}):
        names += [("default", child.text()) for child in one.children() if child.kind() == "identifier"]
    if re.search(r"^\s*(?:import|export)\s+(?:type\s+)?\*", node.text()):
        called = re.search(r"\*\s*as\s+(\w+)", node.text())
        names.append(("*", called[1] if called else "*"))
    return tuple(names)


def _uses(text: str, before: str = "") -> Iterator[tuple[str, tuple[tuple[str, str], ...]]]:
    """Yield the paths of a Rust `use` with its braces expanded."""
    text = _SPACES.sub(" ", text).strip()
    open_at = text.find("{")
    if open_at < 0:
        path, name = _pair(f"{before}{text}")
        module, _, last = path.rpartition("::")
        yield module, ((last, name.rpartition("::")[2] if name == path else name),)
        return
    head, depth, start = before + text[:open_at], 0, open_at + 1
    for at in range(open_at, len(text)):
        depth += (text[at] == "{") - (text[at] == "}")
        if (text[at] == "," and depth == 1) or depth == 0:
            if part := text[start:at].strip():
                yield from _uses(part, head)
            start = at + 1
        if depth == 0:
            return
