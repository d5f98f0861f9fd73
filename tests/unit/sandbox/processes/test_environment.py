"""The environment of a tool's process holds what programs need and no secret."""

import pytest

from forge_tools.errors import SandboxError
from forge_tools.sandbox.processes.environment import child_environment


def test_secrets_are_not_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORGE_DATABASE_URL", "DATABASE_URL", "AWS_SECRET_ACCESS_KEY", "OPENAI_API_KEY", "PYTHONPATH"):
        monkeypatch.setenv(name, "canary")
    assert "canary" not in child_environment().values()


def test_what_programs_need_is_there_and_the_same_on_every_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "de_DE")
    monkeypatch.delenv("PATH")
    environment = child_environment()
    assert environment["LC_ALL"] == "C.UTF-8"
    assert "/usr/bin" in environment["PATH"]


def test_the_caller_may_add_variables() -> None:
    assert child_environment({"CI": "1", "EMPTY": ""})["CI"] == "1"


@pytest.mark.parametrize(
    "name", ["PATH", "LD_PRELOAD", "DYLD_INSERT_LIBRARIES", "BASH_ENV", "FORGE_HOME", "BASH_FUNC_ls%%", "IFS"]
)
def test_the_caller_may_not_change_which_programs_run(name: str) -> None:
    with pytest.raises(SandboxError, match="changes which programs run"):
        child_environment({name: "x"})


@pytest.mark.parametrize(("name", "value"), [("", "x"), ("a=b", "x"), ("a\0", "x"), ("a", "x\0"), ("a\n", "x")])
def test_variables_that_no_process_can_have_are_refused(name: str, value: str) -> None:
    with pytest.raises(SandboxError, match="cannot be passed to a process"):
        child_environment({name: value})


def test_there_is_a_limit_to_variables() -> None:
    with pytest.raises(SandboxError, match="65 variables; the limit is 64"):
        child_environment({f"v{number}": "" for number in range(65)})
