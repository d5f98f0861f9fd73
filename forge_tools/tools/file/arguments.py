"""Texts of a caller on their way into patterns and command lines."""

from forge_tools.errors import InvalidCallError


def check_text(name: str, text: str) -> None:
    """Refuse what no argument of a process and no name of a file can hold.

    Raises:
        InvalidCallError: saying what it holds.
    """
    if "\0" in text:
        raise InvalidCallError(rf"{name} holds a NUL character; in a pattern write it as \x00")
    if text.encode(errors="replace").decode() != text:
        raise InvalidCallError(f"{name} holds half a surrogate pair, which is no character")
