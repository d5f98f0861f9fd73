"""What the code tools find in real Python, beside what Python's own parser finds there."""

import ast
import random
from dataclasses import replace
from pathlib import Path

import pydantic
import pytest

from forge_tools.sandbox.paths.workspace import Workspace
from forge_tools.tools.builtin import Deadline
from forge_tools.tools.code.codebase import Codebase, read
from forge_tools.tools.code.facts import facts_of
from forge_tools.tools.code.search import Target
from forge_tools.tools.code.symbols import Modules
from forge_tools.tools.languages import BY_NAME

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


def test_a_file_is_searched_by_parts_as_if_it_were_parsed_whole(corpus: Codebase) -> None:
    chance, modules, cut = random.Random(1), Modules(corpus), 0
    for found in corpus.sources.values():
        lines = (CORPUS.parent / found.path).read_text().split("\n")
        for _ in range(chance.randrange(min(3, len(lines)))):  # a line or two gone: some files are no longer valid code
            lines.pop(chance.randrange(len(lines)))
        text = "\n".join(lines)
        source = replace(found, facts=facts_of(text, found.language))
        cut += len(source.facts.starts) > 1
        for name in chance.sample(words := source.facts.words.split(), min(5, len(words))):
            target = Target(name, corpus.named(name), is_only=True, modules=modules)
            whole = replace(source, facts=replace(source.facts, starts=()))
            assert list(target.uses(source, text)) == list(target.uses(whole, text)), (source.path, name)
    assert cut > len(corpus.sources) / 2


@pytest.mark.parametrize(
    ("text", "starts"),
    [
        ("x = 1\n# 2\n\n@x\ndef f():\n    x\n", (0, 1, 3)),
        ('a = """\nb\n"""; b = 1\n\nb\n', (0, 4)),
        ("def f(\n    b,\nclass b:\n    b()\n", ()),
    ],
    ids=["statements", "two on a line", "an error"],
)
def test_a_file_is_cut_only_where_a_statement_begins_a_line(text: str, starts: tuple[int, ...]) -> None:
    assert facts_of(text, BY_NAME["python"]).starts == starts
