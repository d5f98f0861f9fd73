"""Functions that cannot be described to a model are refused when decorated, with the way out."""

import functools
import threading
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

import forge_tools.tool
from forge_tools.errors import InvalidToolError
from forge_tools.tool import tool


class Place(BaseModel):
    city: str


@tool
def describe(place: Place) -> str:
    """Describe a place."""
    return place.city


def no_docstring(x: int) -> int:
    return x


def star(*names: str) -> str:
    """Take any."""
    return ",".join(names)


def double_star(**options: str) -> str:
    """Take any."""
    return str(options)


def bare(x) -> None:
    """Take anything."""


def method(self, x: int) -> None:
    """Be a method."""


def callback(then: type[Any], x: threading.Thread) -> None:
    """Take a thread."""


class Tree(BaseModel):
    children: "list[Tree]" = []


def grow(tree: Tree) -> None:
    """Grow."""


def misspelt(x: "functools.Nowhere") -> None:  # type: ignore[name-defined]  # what is tested
    """Misspell a type."""


def unresolved(x: "Nowhere") -> None:  # noqa: F821  what is tested
    """Take what is not there."""


def no_type(x: "1 +") -> None:  # noqa: F722  what is tested
    """Take what is no type."""


def aliased(x: Annotated[int, Field(alias="y")]) -> None:
    """Take y."""


def may_be_none(limit: int | None = 100) -> None:
    """Take a limit."""


def none_is_a_choice(tone: Literal["calm", None] = "calm") -> None:
    """Take a tone."""


def wrong_default(x: int = "many") -> None:
    """Take a number."""


class Mark(Enum):
    ONE = object()


class Pair(Enum):
    ONE = (1, 2)


def marked(x: Mark) -> None:
    """Take a mark."""


def paired(x: Pair) -> None:
    """Take a pair."""


def chosen(x: Literal[b"raw"]) -> None:
    """Take bytes."""


def wrong_pattern(x: Annotated[str, Field(pattern="(")]) -> None:
    """Take what matches."""


def yields() -> Any:
    """Yield."""
    yield 1


def ünicode(x: int) -> None:  # noqa: PLC2401  what is tested
    """Be named oddly."""


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (no_docstring, "no_docstring has no docstring. Write one that says what it does, or pass description=."),
        (star, "parameter '*names' of {here}.star has no schema. Take one parameter of type `list[str]`."),
        (double_star, "parameter '**options' of {here}.double_star has no schema. Take one parameter of type `dict"),
        (bare, "parameter 'x' of {here}.bare has no annotation. Annotate it, as in `x: str`."),
        (method, "parameter 'self' of {here}.method has no annotation. Decorate a function, or pass a bound method"),
        (callback, "of {here}.callback cannot be described as JSON Schema: "),
        (
            grow,
            "parameter 'tree' of {here}.grow has the type Tree, which contains itself; schemas for models are written",
        ),
        (
            misspelt,
            "parameter 'x' of {here}.misspelt has an annotation that cannot be resolved (module 'functools' has no",
        ),
        (unresolved, "parameter 'x' of {here}.unresolved has an annotation that cannot be resolved (name 'Nowhere'"),
        (no_type, "parameter 'x' of {here}.no_type has no type for an annotation: "),
        (aliased, "parameter 'x' of {here}.aliased has an alias. Give the parameter the name that callers should use."),
        (may_be_none, "parameter 'limit' of {here}.may_be_none may be None, but its default is 100; null in a call"),
        (
            none_is_a_choice,
            "parameter 'tone' of {here}.none_is_a_choice may be None, but its default is 'calm'; null in",
        ),
        (wrong_default, "parameter 'x' of {here}.wrong_default has a default that its own annotation refuses: 'many'."),
        (marked, "parameter 'x' of {here}.marked cannot be described as JSON Schema: Unable to serialize unknown type"),
        (paired, "parameter 'x' of {here}.paired has a choice that no call can make: its JSON form, [1, 2], is"),
        (chosen, "parameter 'x' of {here}.chosen has a choice that no call can make: its JSON form, 'raw', is"),
        (wrong_pattern, "parameter 'x' of {here}.wrong_pattern cannot be described as JSON Schema: Error building"),
        (yields, "{here}.yields yields, but a call has one result. Return a list or the whole text, and report"),
        (ünicode, "the name 'ünicode' must be 1 to 64 letters, digits"),
        (lambda: None, "<lambda> has no docstring"),
        (Place, "@tool takes a function or a bound method, not the class Place. Write `def`, or subclass BaseTool."),
        (describe, "@tool takes a function or a bound method, not a FunctionTool."),
        (functools.partial(no_docstring), "@tool takes a function or a bound method, not a partial."),
    ],
)
def test_what_cannot_be_told_to_a_model_is_refused_at_once(function: Any, message: str) -> None:
    with pytest.raises(InvalidToolError) as caught:
        tool(function)

    assert message.replace("{here}", __name__) in str(caught.value)


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"nam": "x"}, "@tool takes no 'nam' (did you mean 'name'?)"),
        ({"category": "files"}, "category: Input should be 'file'"),
        ({"timeout": 0}, "timeout is 0.0; it must be"),
        ({"version": "1"}, "the version '1' must look like 1.0.0"),
        ({"sensitive": ["tokn"]}, "is declared sensitive, but does not exist (did you mean 'token'?)"),
        ({"sensitive": "tokn"}, "parameter 'tokn' of"),
        (
            {"lane": "async"},
            'is a `def`, which would block the async lane. Write `async def`, or leave out lane="async".',
        ),
        ({"name": "no spaces"}, "the name 'no spaces' must be"),
    ],
)
def test_what_the_decorator_is_told_is_checked_at_once(declared: dict[str, Any], message: str) -> None:
    def login(token: str) -> None:
        """Log in."""

    with pytest.raises(InvalidToolError) as caught:
        tool(**declared)(login)

    assert message in str(caught.value)


def test_the_package_around_the_decorator_is_not_taken_for_it() -> None:
    decorate: Any = forge_tools.tool  # what `from forge_tools import tool` binds
    with pytest.raises(TypeError, match=r"from forge_tools\.tool import tool"):
        decorate(describe)


def test_what_is_returned_may_be_known_only_to_type_checkers() -> None:
    def returned(x: int) -> "functools.Nowhere":  # type: ignore[name-defined]  # what is tested
        """Return it."""

    assert tool(returned).output_schema is None
