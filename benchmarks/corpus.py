"""A generated tree of source files like those that agents search, the same in every run."""

import random
from pathlib import Path

SEED = 7
FOLDERS_OF_100 = 8
WORDS = (
    "import", "return", "self", "value", "config", "client", "result", "error", "path", "name", "async", "await", "None", "data",
    "index", "request", "response", "handler", "session", "total", "count", "match", "token", "state", "queue", "worker",
)  # fmt: skip


def make_corpus(root: Path, files: int) -> Path:
    """Create the tree, unless an earlier turn did. A third is Python; some of it is ignored, in a repository without commits."""
    if (root / ".gitignore").exists():
        return root
    chooser = random.Random(SEED)
    folders = [root]
    for number in range(files * FOLDERS_OF_100 // 100):
        folder = chooser.choice(folders[-40:]) / f"part_{number}"
        folder.mkdir(parents=True)
        folders.append(folder)
    for number in range(files):
        ending = ("py", "py", "txt", "js", "md", "json")[number % 6]
        (chooser.choice(folders) / f"module_{number}.{ending}").write_text(_text(chooser))
    (root / "node_modules/left").mkdir(parents=True)
    for number in range(files // 5):
        (root / f"node_modules/left/{number}.py").write_text("import left\n" * 20)
    (root / ".git").mkdir()
    (root / ".gitignore").write_text("node_modules/\n*.pyc\n/dist/\n!keep.pyc\n")
    return root


def _text(chooser: random.Random) -> str:
    lines = []
    for number in range(chooser.randrange(60, 400)):
        if number % 17 == 0:
            lines.append(f"def step_{number}(self, {chooser.choice(WORDS)}):")
        else:
            lines.append("    " + " ".join(chooser.choices(WORDS, k=7)))
    return "\n".join(lines) + "\n"
