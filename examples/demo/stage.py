"""How the demo tells its story: numbered sections of facts, and claims that must hold."""

from collections.abc import Iterable
from typing import Any

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from forge_tools.cli.face import Face
from forge_tools.cli.text import facts, one_line, printable
from forge_tools.errors import ForgeError

_INDENT = 3


class BrokenPromiseError(ForgeError):
    """Something was not as the demo promises."""

    code = "BROKEN_PROMISE"


class Stage:
    """Shows sections as they happen, or collects them for one JSON document."""

    def __init__(self, face: Face) -> None:
        self._face = face
        self.sections: list[dict[str, Any]] = []

    def section(self, title: str) -> None:
        """Begin the next section."""
        self.sections.append({"title": title, "claims": []})
        if not self._face.is_json:
            number = str(len(self.sections)).rjust(_INDENT - 1)
            self._face.out.print(Text.assemble(("\n" + number + " ", "dim"), (title, "bold")))

    def facts(self, pairs: Iterable[tuple[str, object]]) -> None:
        """Show names with their values."""
        self.show(facts(pairs))

    def text(self, text: str, style: str = "dim") -> None:
        """Show lines unchanged, with space around them."""
        self.show(Text(printable(text), style=style))

    def gap(self) -> None:
        """Print an empty line."""
        if not self._face.is_json:
            self._face.say()

    def show(self, what: RenderableType) -> None:
        """Show a table or a text below the section's title."""
        if not self._face.is_json:
            self._face.out.print(Padding(what, (0, 0, 0, _INDENT), expand=False))

    def claim(self, holds: bool, claim: str, found: object = "") -> None:
        """State what must be true.

        Raises:
            BrokenPromiseError: it is not; says what was found instead.
        """
        if not holds:
            raise BrokenPromiseError(f"Not as promised: {claim}. Found: {one_line(found) or 'nothing of the kind'}")
        self.sections[-1]["claims"].append(claim)
        self.show(Text.assemble(("✓ ", "green"), printable(claim)))
