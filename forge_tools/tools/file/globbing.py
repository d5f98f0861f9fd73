"""One glob on its way down a tree: which folders can hold matches, and which names in a folder are some."""

import re
from collections.abc import Iterable

from forge_tools.tools.file.globs import alternatives_of, invalid, name_expression

State = frozenset[tuple[int, int]]
"""How far each alternative has come: its number, and the index of the name that it wants next. Empty: nothing can match."""

_SPECIAL = re.compile(r"[\\*?\[{]")
_DEEP = "**"


class Pattern:
    """A glob relative to the folder that is searched. A path that is literally the glob matches too: `[id]/page.tsx`.

    Raises:
        SandboxError: on construction, what is wrong with it and where (INVALID_GLOB).
    """

    def __init__(self, glob: str, *, case_sensitive: bool = True) -> None:
        _check(glob)
        self._flags = re.DOTALL if case_sensitive else re.DOTALL | re.IGNORECASE
        self._wanted = [
            [name if name == _DEEP else name_expression(name, glob) for name in _names(one)]
            for one in alternatives_of(glob)
        ]
        if _SPECIAL.search(glob):
            self._wanted.append([re.escape(name) for name in _names(glob)])
        self._compiled: dict[str, re.Pattern[str]] = {}
        self._ends: dict[State, re.Pattern[str] | None] = {}
        for name in {name for one in self._wanted for name in one if name != _DEEP}:
            try:
                self._compiled[name] = re.compile(name, self._flags)
            except re.error as error:
                raise invalid(f"'{glob}': {error.msg}") from None

    @property
    def start(self) -> State:
        return self._reached((number, 0) for number in range(len(self._wanted)))

    def enter(self, state: State, name: str) -> State:
        """Return the state in a folder of that name."""
        stays = ((number, index) for number, index in state if self._wanted[number][index] == _DEEP)
        goes = ((number, index + 1) for number, index in state if self._is_inner(number, index, name))
        return self._reached([*stays, *goes])

    def match(self, state: State, names: list[str]) -> list[str]:
        """Choose the names that complete the glob."""
        if state not in self._ends:
            self._ends[state] = self._end(state)
        end = self._ends[state]
        return [] if end is None else end.findall("\0" + "\0".join(names) + "\0") if names else []

    def _is_inner(self, number: int, index: int, name: str) -> bool:
        wanted = self._wanted[number]
        if index + 1 == len(wanted) or wanted[index] == _DEEP:
            return False
        return self._compiled[wanted[index]].fullmatch(name) is not None

    def _end(self, state: State) -> re.Pattern[str] | None:
        """Build one expression for all names of a folder, each between zero characters, which no name holds."""
        last = {self._wanted[number][index] for number, index in state if index + 1 == len(self._wanted[number])}
        if not last:
            return None
        choices = "[^\0]+" if _DEEP in last else "|".join(sorted(last))
        return re.compile(f"\0({choices})(?=\0)", self._flags)

    def _reached(self, positions: Iterable[tuple[int, int]]) -> State:
        found = set()
        for number, position in positions:
            wanted, index = self._wanted[number], position
            found.add((number, index))
            while wanted[index] == _DEEP and index + 1 < len(wanted):  # `**` may stand for no folder at all
                index += 1
                found.add((number, index))
        return frozenset(found)


def _check(glob: str) -> None:
    if glob.startswith("!"):
        raise invalid(f"'{glob}': a leading '!' leaves nothing to find. Pass what to leave out as exclude")
    if ".." in glob.split("/"):
        raise invalid(f"'{glob}' goes up with '..'. Pass the folder to start from as path")
    if not _names(glob):
        raise invalid(f"'{glob}' names nothing. '*' finds the files of a folder, '**' all below it")
    if "\n" in glob:
        raise invalid("a glob holds no line break")


def _names(glob: str) -> list[str]:
    return [name for name in glob.split("/") if name not in ("", ".")]
