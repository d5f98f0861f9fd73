"""The languages that are known by the ends of names; of those with a grammar, which of its nodes define, import and name things."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Language:
    """`title` is what people call it, `definitions` are kinds of nodes with what people call them, `leaves` those of names; `scopes` hold others without being defined there."""

    name: str
    title: str
    suffixes: tuple[str, ...]
    definitions: Mapping[str, str]
    imports: tuple[str, ...]
    leaves: tuple[str, ...]
    scopes: tuple[str, ...] = ()


_LEAVES = ("identifier", "type_identifier", "field_identifier")
_SCRIPT = {
    "function_declaration": "function",
    "generator_function_declaration": "function",
    "class_declaration": "class",
    "method_definition": "method",
    "variable_declarator": "variable",
    "assignment_expression": "function",
}
_TYPED = {
    **_SCRIPT,
    "abstract_class_declaration": "class",
    "interface_declaration": "interface",
    "type_alias_declaration": "type",
    "enum_declaration": "enum",
    "internal_module": "namespace",
    "abstract_method_signature": "method",
    "method_signature": "method",
    "function_signature": "function",
}
_SCRIPT_LEAVES = ("identifier", "property_identifier", "shorthand_property_identifier")
_TYPED_LEAVES = (*_SCRIPT_LEAVES, "type_identifier")
_SCRIPT_IMPORTS = ("import_statement", "export_statement", "call_expression")
_C = {
    "function_definition": "function",
    "struct_specifier": "struct",
    "union_specifier": "union",
    "enum_specifier": "enum",
    "type_definition": "type",
    "preproc_def": "macro",
    "preproc_function_def": "macro",
}

_CPP = {**_C, "class_specifier": "class", "namespace_definition": "namespace", "alias_declaration": "type"}
_PYTHON = {"function_definition": "function", "class_definition": "class", "assignment": "variable"}
_GO = {
    "function_declaration": "function",
    "method_declaration": "method",
    "type_spec": "type",
    "type_alias": "type",
    "const_spec": "constant",
    "var_spec": "variable",
}
_RUST = {
    "function_item": "function",
    "function_signature_item": "function",
    "struct_item": "struct",
    "union_item": "union",
    "enum_item": "enum",
    "trait_item": "trait",
    "type_item": "type",
    "const_item": "constant",
    "static_item": "variable",
    "macro_definition": "macro",
    "mod_item": "module",
}
_JAVA = {
    "class_declaration": "class",
    "interface_declaration": "interface",
    "enum_declaration": "enum",
    "record_declaration": "record",
    "annotation_type_declaration": "annotation",
    "method_declaration": "method",
    "constructor_declaration": "constructor",
}
_PYTHON_IMPORTS = ("import_statement", "import_from_statement")
_CPP_ENDS = (".cc", ".cpp", ".cxx", ".hpp", ".hh", ".hxx", ".h")

LANGUAGES = (
    Language("python", "Python", (".py", ".pyi"), _PYTHON, _PYTHON_IMPORTS, ("identifier",)),
    Language("typescript", "TypeScript", (".ts", ".mts", ".cts"), _TYPED, _SCRIPT_IMPORTS, _TYPED_LEAVES),
    Language("tsx", "TypeScript", (".tsx",), _TYPED, _SCRIPT_IMPORTS, _TYPED_LEAVES),
    Language("javascript", "JavaScript", (".js", ".mjs", ".cjs", ".jsx"), _SCRIPT, _SCRIPT_IMPORTS, _SCRIPT_LEAVES),
    Language("go", "Go", (".go",), _GO, ("import_spec",), _LEAVES),
    Language("rust", "Rust", (".rs",), _RUST, ("use_declaration", "mod_item"), _LEAVES, ("impl_item",)),
    Language("java", "Java", (".java",), _JAVA, ("import_declaration",), ("identifier", "type_identifier")),
    Language("c", "C", (".c",), _C, ("preproc_include",), _LEAVES),
    Language("cpp", "C++", _CPP_ENDS, _CPP, ("preproc_include",), (*_LEAVES, "namespace_identifier")),
)

BY_NAME = {one.name: one for one in LANGUAGES}
_BY_SUFFIX = {suffix: one for one in LANGUAGES for suffix in one.suffixes}
_TITLES = {suffix: one.title for suffix, one in _BY_SUFFIX.items()} | {
    ".h": "C",  # read as C++, which has nearly all of C; it says of neither which it is
    ".kt": "Kotlin", ".cs": "C#", ".rb": "Ruby", ".php": "PHP", ".swift": "Swift", ".scala": "Scala", ".ex": "Elixir",
    ".exs": "Elixir", ".hs": "Haskell", ".lua": "Lua", ".r": "R", ".jl": "Julia", ".dart": "Dart", ".sh": "Shell",
    ".sql": "SQL", ".html": "HTML", ".css": "CSS", ".scss": "CSS", ".vue": "Vue", ".ipynb": "Jupyter", ".md": "Markdown",
}  # fmt: skip
TITLES = frozenset(_TITLES.values())


def language_of(path: str) -> Language | None:
    """The language of a file with a grammar that is known."""
    return _BY_SUFFIX.get(_suffix(path))


def is_of(path: str, name: str) -> bool:
    """Whether a file is of the language of that name; a header may be of C and of C++."""
    found = language_of(path)
    return found is not None and (name == found.name or (name, _suffix(path)) == ("c", ".h"))


def title_of(path: str) -> str | None:
    """What people call the language of a file."""
    return _TITLES.get(_suffix(path))


def _suffix(path: str) -> str:
    return "." + path.rpartition("/")[2].rpartition(".")[2].lower() if "." in path.rpartition("/")[2] else ""
