"""The changes that mutants are made of, and which of them a seed chooses."""

import ast
import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, groupby, islice
from pathlib import Path

OTHER = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr,
}  # fmt: skip
LOGS = {"debug", "info", "warning", "error", "exception", "critical"}
TYPE_ONLY = {"TypeVar", "ParamSpec", "NewType", "cast", "TYPE_CHECKING"}
ANY_ORDER = {"and_", "or_", "where", "min", "max", "gather"}
"""Functions whose first two arguments may change places without a difference."""
SWITCHED = ast.Compare | ast.BoolOp | ast.UnaryOp | ast.Constant
"""Conditions that have changes of their own."""


@dataclass(frozen=True)
class Mutant:
    """One change at one place, given in bytes of the file; `lines` are those whose execution reaches it."""

    file: str
    line: int
    lines: range
    function: str
    start: int
    before: str
    after: str

    @property
    def runs_at_import(self) -> bool:
        return self.function == "module" or self.function.startswith("class ")

    def applied(self, source: bytes) -> bytes:
        return source[: self.start] + self.after.encode() + source[self.start + len(self.before.encode()) :]

    def __str__(self) -> str:
        before, after = _short(self.before), _short(self.after)
        return f"`{self.file}:{self.line}` {self.function}: `{before}` → `{after}`"


def choose(root: Path, package: str, count: int, seed: int) -> list[Mutant]:
    """Lines at random, and one change of each.

    The seed meets the text of a line and the name of its function, not its place: code that only moved keeps its mutants.
    """
    ranked: dict[str, tuple[bytes, list[Mutant]]] = {}
    seen = Counter[tuple[str, str]]()
    for path in sorted((root / package).rglob("*.py")):
        source = path.read_bytes()
        lines = source.decode().splitlines()
        mutants = mutants_of(source, path.relative_to(root).as_posix())
        for line, group in groupby(sorted(mutants, key=lambda each: each.line), key=lambda each: each.line):
            changes = sorted(group, key=lambda each: _hash(seed, each.before, each.after))
            text = (changes[0].function, lines[line - 1].strip())
            ranked[_hash(seed, text, seen[text])] = source, changes
            seen[text] += 1
    firsts = (
        next(filter(partial(_compiles, source), changes), None) for _, (source, changes) in sorted(ranked.items())
    )
    return list(islice(filter(None, firsts), count))


def mutants_of(source: bytes, file: str) -> Iterator[Mutant]:
    """Every change of this file."""
    starts = [0, *accumulate(len(line) for line in source.splitlines(keepends=True))]
    for node, new, lines, function in _changes(ast.parse(source), range(0), "module"):
        start, end = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
        after = ast.unparse(new) if isinstance(new, ast.stmt | ast.Constant) else f"({ast.unparse(new)})"
        yield Mutant(file, node.lineno, lines, function, start, source[start:end].decode(), after)


def _compiles(source: bytes, mutant: Mutant) -> bool:
    try:
        compile(mutant.applied(source), "mutant", "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return True


def _changes(node: ast.AST, lines: range, function: str) -> Iterator[tuple[ast.AST, ast.AST, range, str]]:
    """What may be replaced below `node`, by what, in which lines of which function."""
    if _is_without_effect(node):
        return
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        function = f"class {node.name}" if isinstance(node, ast.ClassDef) else node.name
    if isinstance(node, ast.stmt):
        last = node.body[0].lineno - 1 if getattr(node, "body", None) else node.end_lineno
        lines = range(node.lineno, max(last, node.lineno) + 1)
    for old, new in _replacements(node):
        yield old, new, lines, function
    if isinstance(node, ast.Raise):  # the words of errors are for people
        return
    for field, value in ast.iter_fields(node):
        if field not in {"annotation", "returns", "decorator_list", "type_params"}:
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _changes(child, lines, function)


def _is_without_effect(node: ast.AST) -> bool:
    """Docstrings, types, logs and names of exports: no test can or should mind. Of f-strings no places are known."""
    match node:
        case ast.Expr(ast.Constant()) | ast.JoinedStr() | ast.Import() | ast.ImportFrom():
            return True
        case ast.Assign(targets=[ast.Name(id)]) if id.startswith("__"):
            return True
        case ast.Call(ast.Name(name)) | ast.If(ast.Name(name)):
            return name in TYPE_ONLY
        case ast.Expr(ast.Call(ast.Attribute(ast.Name(name), method))):
            return "log" in name and method in LOGS
    return False


def _replacements(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    match node:
        case ast.If(test) | ast.While(test) | ast.IfExp(test) if not isinstance(test, SWITCHED):
            yield test, ast.UnaryOp(ast.Not(), test)
        case ast.Return(value) if value is not None and ast.unparse(value) != "None":
            yield node, ast.Return(ast.Constant(None))
        case ast.Break() | ast.Continue():
            yield node, ast.Continue() if isinstance(node, ast.Break) else ast.Break()
        case ast.Expr(ast.Call() | ast.Await()) | ast.AugAssign() | ast.Raise() | ast.Delete():
            yield node, ast.Pass()
        case ast.Assign([ast.Attribute() | ast.Subscript()]):
            yield node, ast.Pass()
        case ast.Constant(value):
            yield from _other_constants(node, value)
        case ast.expr():
            yield from _other_expressions(node)


def _other_expressions(node: ast.expr) -> Iterator[tuple[ast.AST, ast.AST]]:
    match node:
        case ast.Compare(left, [operator], [right]) if type(operator) in OTHER:
            yield node, ast.Compare(left, [OTHER[type(operator)]()], [right])
        case ast.BoolOp(operator, values):
            yield node, ast.BoolOp(OTHER[type(operator)](), values)
        case ast.BinOp(left, operator, right) if type(operator) in OTHER:
            yield node, ast.BinOp(left, OTHER[type(operator)](), right)
        case ast.UnaryOp(ast.Not(), operand):
            yield node, operand
        case ast.Call(function, [first, second, *others], keywords):
            any_order = ast.unparse(function).rpartition(".")[2] in ANY_ORDER
            if not any_order and not isinstance(first, ast.Starred) and not isinstance(second, ast.Starred):
                yield node, ast.Call(function, [second, first, *others], keywords)


def _other_constants(node: ast.Constant, value: object) -> Iterator[tuple[ast.AST, ast.AST]]:
    match value:
        case bool():
            yield node, ast.Constant(not value)
        case int() | float():
            yield node, ast.Constant(value + 1)
        case str():
            yield node, ast.Constant(f"{value} mutant")


def _hash(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _short(text: str) -> str:
    text = " ".join(text.replace("`", "'").split())
    return text if len(text) <= 90 else f"{text[:60]} … {text[-25:]}"
