"""What the code tools find in real Python, beside what Python's own parser finds there."""

import ast
from pathlib import Path

import pydantic
import pytest

from forge_tools.sandbox.paths.workspace import Workspace
from forge_tools.tools.code.codebase import Codebase, read
from forge_tools.tools.code.modules import Modules
from forge_tools.tools.deadline import Deadline

CORPUS = Path(pydantic.__file__).parent


@pytest.fixture(scope="module")
def corpus() -> Codebase:
    return read(Workspace(CORPUS.parent), "pydantic", Deadline(100))


def test_every_function_and_class_is_found_and_no_other(corpus: Codebase) -> None:
    found = {(source.path, one.line, one.name) for source, one in corpus.definitions() if one.kind != "variable"}
    true = set()
    for path in corpus.sources:
        for node in ast.walk(ast.parse((CORPUS.parent / path).read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                true.add((path, node.lineno, node.name))
    assert len(true) > 2_000
    assert found == true


def test_nearly_all_imports_of_its_own_are_resolved(corpus: Codebase) -> None:
    modules = Modules(corpus)
    own = [
        (source, one)
        for source in corpus.sources.values()
        for one in source.facts.imports
        if one.module.lstrip(".") and (one.module.startswith(".") or one.module.split(".")[0] == "pydantic")
    ]
    resolved = [one for source, one in own if modules.of(one, source)]
    assert len(own) > 200
    assert len(resolved) / len(own) > 0.98
