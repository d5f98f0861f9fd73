"""Small projects, one per language, with the expected findings written by hand."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Project:
    """`definitions` are (symbol, place, kind), `imports` (file, module, where it leads), `references` of one symbol."""

    files: Mapping[str, str]
    definitions: Sequence[tuple[str, str, str]]
    imports: Sequence[tuple[str, str, str | None]]
    references: tuple[str, list[str]]


def write(folder: Path, files: Mapping[str, str]) -> None:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


PROJECTS = {
    "python": Project(
        {
            "app/__init__.py": "from app.parsing import Parser as Parser\n",
            "app/parsing.py": "LIMIT = 3\n\n\nclass Parser:\n    @property\n    def rest(self) -> str:\n        return ''\n",
            "app/helpers.py": "def clean(text: str) -> str:\n    inner = text\n    return inner\n",
            "app/main.py": "from pathlib import Path\nfrom app import Parser\nfrom . import helpers\n\n"
            "# Parser in a comment\nnote = 'Parser'\n\n\ndef run() -> None:\n    Parser()\n    helpers.clean('x')\n",
        },
        [
            ("Parser", "app/parsing.py:4", "class"),
            ("Parser.rest", "app/parsing.py:6", "method"),
            ("clean", "app/helpers.py:1", "function"),
            ("LIMIT", "app/parsing.py:1", "variable"),
        ],
        [("app/main.py", "pathlib", None), ("app/main.py", "app", "app/__init__.py"), ("app/__init__.py", "app.parsing", "app/parsing.py")],
        ("Parser", ["app/__init__.py:1 import", "app/__init__.py:1 import", "app/main.py:2 import", "app/main.py:10 call"]),
    ),
    "typescript": Project(
        {
            "src/shape.ts": "export interface Shape { area(): number }\nexport class Square implements Shape {\n  area() { return 1 }\n}\n"
            "export const unit = () => new Square();\n",
            "src/index.ts": "export * from './shape';\n",
            "src/main.ts": "import { Square as S, unit } from './shape';\nimport fs from 'fs';\n// unit()\nconst a = unit();\nlet s = 'unit';\n",
        },
        [("Shape", "src/shape.ts:1", "interface"), ("Shape/area", "src/shape.ts:1", "method"), ("Square/area", "src/shape.ts:3", "method"), ("unit", "src/shape.ts:5", "variable")],
        [("src/main.ts", "./shape", "src/shape.ts"), ("src/main.ts", "fs", None), ("src/index.ts", "./shape", "src/shape.ts")],
        ("unit", ["src/main.ts:1 import", "src/main.ts:4 call"]),
    ),
    "javascript": Project(
        {
            "lib/a.js": "function helper() {}\nmodule.exports = { helper };\n",
            "main.js": "const { helper } = require('./lib/a');\nhelper();\n",
            "old.js": "exports.render = function () {};\nA.prototype.draw = () => {};\n",
        },
        [("helper", "lib/a.js:1", "function"), ("render", "old.js:1", "function"), ("draw", "old.js:2", "function")],
        [("main.js", "./lib/a", "lib/a.js")],
        ("helper", ["lib/a.js:2 use", "main.js:2 call"]),
    ),
    "go": Project(
        {
            "store/store.go": 'package store\n\ntype Store struct{}\n\nfunc (s *Store) Get() int { return 1 }\n\nconst Limit = 3\n\nfunc Open() *Store { return nil }\n',
            "main.go": 'package main\n\nimport (\n\t"fmt"\n\t"example.com/app/store"\n)\n\nfunc main() {\n\t// Open\n\tfmt.Println(store.Open(), "Open")\n}\n',
        },
        [("Store", "store/store.go:3", "type"), ("Store.Get", "store/store.go:5", "method"), ("Limit", "store/store.go:7", "constant"), ("Open", "store/store.go:9", "function")],
        [("main.go", "fmt", None), ("main.go", "example.com/app/store", "store/store.go")],
        ("Open", ["main.go:10 call"]),
    ),
    "rust": Project(
        {
            "src/shape.rs": "pub struct Square;\nimpl Square {\n    pub fn area(&self) -> i32 { 1 }\n}\npub trait Shape {}\n",
            "src/main.rs": "mod shape;\nuse crate::shape::{Shape, Square};\nfn main() {\n    // Square\n    let s = Square;\n}\n",
        },
        [("Square", "src/shape.rs:1", "struct"), ("Square::area", "src/shape.rs:3", "method"), ("Shape", "src/shape.rs:5", "trait"), ("main", "src/main.rs:3", "function")],
        [("src/main.rs", "self::shape", "src/shape.rs")],
        ("Square", ["src/main.rs:2 import", "src/main.rs:5 use", "src/shape.rs:2 use"]),
    ),
    "java": Project(
        {
            "com/acme/Shape.java": "package com.acme;\npublic class Shape {\n  public int area() { return 1; }\n  @Override\n  public String toString() { return null; }\n}\n",
            "com/acme/Main.java": 'package com.acme;\nimport com.acme.Shape;\nimport java.util.List;\nclass Main {\n  Shape shape = new Shape(); // Shape\n}\n',
        },
        [("Shape", "com/acme/Shape.java:2", "class"), ("Shape/area", "com/acme/Shape.java:3", "method"), ("toString", "com/acme/Shape.java:5", "method")],
        [("com/acme/Main.java", "com.acme", "com/acme/Shape.java"), ("com/acme/Main.java", "java.util", None)],
        ("Shape", ["com/acme/Main.java:2 import", "com/acme/Main.java:5 use", "com/acme/Main.java:5 call"]),
    ),
    "c": Project(
        {
            "list.h": "#define LIMIT 3\nstruct list { int size; };\ntypedef struct list list_t;\n",
            "list.c": '#include "list.h"\n#include <stdio.h>\nint *grow(struct list *one) {\n  return 0;\n}\nint main(void) { return !grow(0); /* grow */ }\n',
        },
        [("LIMIT", "list.h:1", "macro"), ("list", "list.h:2", "struct"), ("list_t", "list.h:3", "type"), ("grow", "list.c:3", "function")],
        [("list.c", '"list.h"', "list.h"), ("list.c", "<stdio.h>", None)],
        ("grow", ["list.c:6 call"]),
    ),
    "cpp": Project(
        {
            "shape.hpp": "namespace geo {\nclass Shape {\n public:\n  int area();\n  const Shape& self() const { return *this; }\n};\n}\n",
            "plain.h": "class Plain {};\n",
            "shape.cpp": '#include "shape.hpp"\nint geo::Shape::area() { return 1; }\n',
        },
        [
            ("Shape", "shape.hpp:2", "class"),
            ("geo::Shape::area", "shape.cpp:2", "function"),
            ("Shape::self", "shape.hpp:5", "method"),
            ("Plain", "plain.h:1", "class"),
        ],
        [("shape.cpp", '"shape.hpp"', "shape.hpp")],
        ("Shape", ["shape.cpp:2 use", "shape.hpp:5 use"]),
    ),
}  # fmt: skip
