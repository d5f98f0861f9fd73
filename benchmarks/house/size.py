"""How many lines and files each package has, and in how many files one fact appears."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOMES = ("forge_tools", "workers", "migrations")
KINDS = (".py", ".sql")


@dataclass(frozen=True, slots=True)
class Size:
    """A package, or the modules beside packages; blank lines and comments count."""

    name: str
    lines: int
    files: int

    def __add__(self, other: "Size") -> "Size":
        return Size(self.name, self.lines + other.lines, self.files + other.files)


PLACES = {
    "a column (`timeout_source`)": r"\btimeout_source\b",
    "a status (`awaiting_approval`)": r"(?i)\bawaiting_approval\b",
    "the retry rule (`max_attempts`)": r"\bmax_attempts\b",
    "the timeout ladder (`kill_grace`)": r"\bkill_grace\b",
    "a worker's duty (retention)": r"(?i)\bretention\b.*(?:step|keep|Service|for_ever)|import Retention\b",
    "a provider's format (Ollama)": r"(?i)\bollama",
}
"""What marks a file in which the fact would have to be changed, too."""


def sources() -> Iterator[Path]:
    for home in HOMES:
        yield from (path for path in sorted((ROOT / home).rglob("*")) if path.suffix in KINDS)


def sizes() -> list[Size]:
    """Packages from the largest to the smallest, then the total."""
    found: dict[str, Size] = {}
    for path in sources():
        inside = path.relative_to(ROOT).parts
        name = "/".join(inside[:2]) if len(inside) > 2 else inside[0]
        one = Size(name, len(path.read_text().splitlines()), 1)
        found[name] = found[name] + one if name in found else one
    total = sum(found.values(), Size("in all", 0, 0))
    return [*sorted(found.values(), key=lambda size: -size.lines), total]


def places(pattern: str) -> list[str]:
    """Return the files in which it appears."""
    return [str(path.relative_to(ROOT)) for path in sources() if re.search(pattern, path.read_text())]
