"""`forge-tools mcp` before it serves: what it requires, and its message without the SDK."""

import sys

import pytest

from forge_tools.cli import main
from forge_tools.cli.face import CONFIGURATION, USAGE


def test_without_the_sdk_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)

    assert main(["mcp", "--local"]) == CONFIGURATION
    assert "pip install 'forge-tools[mcp]'" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--local", "--background-tools"], "not recorded"),
        (["--tools", "a:b"], "--local"),
        (["--categories", "file,fiel"], "fiel"),
        (["--task-after", "-1"], "task-after"),
    ],
)
def test_what_does_not_fit_together_is_a_usage_error(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["mcp", *words])

    assert caught.value.code == USAGE
    assert said in capsys.readouterr().err
