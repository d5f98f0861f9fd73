"""key=value on the command line, by the types that tools declare."""

import io
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from forge_tools.cli.parameters import GivenParameters, example_command
from forge_tools.model import ToolCategory, ToolParameter, ToolSpec
from forge_tools.schema import Validator


def parameter(name: str, type: str, **fields: object) -> ToolParameter:
    return ToolParameter(name=name, type=type, description="x", **fields)


SPEC = ToolSpec(
    name="Sample",
    description="Takes one of each.",
    category=ToolCategory.OTHER,
    parameters=(
        parameter("text", "string", aliases=("words",)),
        parameter("count", "integer", aliases=("n",)),
        parameter("ratio", "number"),
        parameter("flag", "boolean"),
        parameter("names", "array", items={"type": "string"}),
        parameter("sizes", "array", items={"type": "integer"}),
        parameter("env", "object"),
    ),
)


def parsed(words: list[str], whole: str | None, spec: ToolSpec | None) -> dict[str, Any]:
    return GivenParameters(words, whole, 1000).typed(spec)


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("text=12", "12"),
        ("text=", ""),
        ("text=a=b:=c", "a=b:=c"),
        ("words=true", "true"),
        ("count=-3", -3),
        ("n=7", 7),
        ("ratio=2", 2),
        ("ratio=1e-3", 0.001),
        ("flag=Yes", True),
        ("flag=0", False),
        ("names=a", ["a"]),
        ('names=["a", "b"]', ["a", "b"]),
        ("sizes=4", [4]),
        ('env={"A": 1}', {"A": 1}),
        ("text:=null", None),
        ('text:="@x"', "@x"),
        ("unknown=5", "5"),
        ("unknown:=5", 5),
    ],
)
def test_a_value_is_read_by_the_declared_type(word: str, value: object) -> None:
    assert list(parsed([word], None, SPEC).values()) == [value]


def test_an_array_is_built_from_repeated_keys() -> None:
    assert parsed(["names=a", "names=b,c", 'names=["d"]'], None, SPEC) == {"names": ["a", "b,c", "d"]}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["count=abc"], "count takes an integer"),
        (["count=1.5"], "count takes an integer"),
        (["count=١"], "count takes an integer"),
        (["ratio=fast"], "ratio takes a number"),
        (["flag=maybe"], "flag takes true or false"),
        (["sizes=x"], "sizes takes an integer"),
        (["env=A"], "env: not JSON"),
        (["text:=bare"], "Text needs quotes: text:="),
        (["text=a", "text=b"], "text is given twice"),
        (["nothing"], "'nothing' is not a parameter. Write key=value"),
        (["=value"], "is not a parameter"),
        (["text=@/no/such/file"], "'/no/such/file' cannot be read: No such file or directory"),
        (["text=@/dev/zero"], "'/dev/zero' has more than 1,000 bytes, which is all that parameters may have"),
        (["text:=" + "[" * 100_000], "text: not JSON"),
        (["count=" + "9" * 5000], "count takes an integer"),
    ],
)
def test_what_cannot_be_read_says_how_to_write_it(words: list[str], said: str) -> None:
    with pytest.raises(typer.BadParameter) as caught:
        parsed(words, None, SPEC)
    assert said in str(caught.value)


def test_a_file_stands_for_its_text(tmp_path: Path) -> None:
    file = tmp_path / "input"
    file.write_text("grüße\n", encoding="utf-8")
    assert parsed([f"text=@{file}"], None, SPEC) == {"text": "grüße\n"}


def test_a_file_may_hold_the_json_of_an_object(tmp_path: Path) -> None:
    file = tmp_path / "input.json"
    file.write_text('{"A": "1"}')
    assert parsed([f"env=@{file}"], None, SPEC) == {"env": {"A": "1"}}


def test_a_binary_file_is_no_text(tmp_path: Path) -> None:
    file = tmp_path / "input"
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(typer.BadParameter, match="is not UTF-8 text"):
        parsed([f"text=@{file}"], None, SPEC)


def test_the_standard_input_is_a_file_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("piped"))
    assert parsed(["text=@-"], None, SPEC) == {"text": "piped"}
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(typer.BadParameter, match=r"text: '-' cannot be read: standard input is closed\."):
        parsed(["text=@-"], None, SPEC)


def test_words_override_the_whole_object() -> None:
    assert parsed(["count=2"], '{"count": 1, "text": "a"}', SPEC) == {"count": 2, "text": "a"}


def test_a_file_of_all_parameters_that_is_not_there_is_told_without_how_to_write_a_text() -> None:
    with pytest.raises(typer.BadParameter) as caught:
        parsed([], "@/no/such/file", SPEC)
    assert str(caught.value) == "'/no/such/file' cannot be read: No such file or directory."


@pytest.mark.parametrize(
    ("whole", "kind"), [("[1]", "an array"), ('"a"', "a text"), ("null", "null"), ("3", "a number")]
)
def test_the_whole_must_be_an_object(whole: str, kind: str) -> None:
    with pytest.raises(typer.BadParameter, match=f"that is {kind}; it must be an object"):
        parsed([], whole, SPEC)


def test_without_a_definition_every_value_is_text() -> None:
    assert parsed(["count=1", "flag=true"], None, None) == {"count": "1", "flag": "true"}


@pytest.mark.parametrize(
    ("parameters", "command"),
    [
        ([parameter("text", "string")], "run T text=hello"),
        ([parameter("n", "integer", minimum=3), parameter("x", "number", maximum=0.5)], "run T n=3 x=0.5"),
        ([parameter("mode", "string", enum=["up", "down"])], "run T mode=up"),
        ([parameter("on", "boolean"), parameter("late", "string", required=False)], "run T on=true"),
        ([parameter("names", "array", items={"type": "string"})], """run T 'names=["hello"]'"""),
        (
            [parameter("env", "object", properties={"a": {"type": "integer"}}, required_properties=("a",))],
            """run T 'env={"a": 1}'""",
        ),
        ([], "run T"),
        ([parameter("code", "string", keywords={"pattern": "^[0-9]{5}$"})], "tools T"),
        ([parameter("image", "file")], "tools T"),
    ],
)
def test_an_example_of_a_call_is_valid_or_the_tool_is_shown(parameters: list[ToolParameter], command: str) -> None:
    spec = ToolSpec(name="T", description="x", category=ToolCategory.OTHER, parameters=tuple(parameters))
    assert example_command(spec) == command
    words = shlex.split(command)
    if words[0] == "run":
        assert Validator.for_spec(spec).all_errors(parsed(words[2:], None, spec)) == []
