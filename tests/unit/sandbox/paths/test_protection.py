"""What inside a workspace is not for tools."""

from pathlib import Path

import pytest

from forge_tools.errors import SandboxError
from forge_tools.sandbox.paths.confinement import Root
from forge_tools.sandbox.paths.refusals import Protection
from forge_tools.sandbox.paths.workspace import Workspace

SECRET = [
    ".env",
    "a/.env",
    ".env.local",
    ".ENV",
    "deploy/id_rsa",
    "server.pem",
    "tls.KEY",
    ".ssh/config",
    ".forge-journal/entry",
]


def refused(workspace: Workspace, path: str, *, is_write: bool) -> str:
    with pytest.raises(SandboxError) as error:
        (workspace.place if is_write else workspace.open)(path).close()
    return error.value.code


@pytest.fixture
def filled(ws: Path) -> Path:
    for name in [*SECRET, ".git/config", "sub/.git/HEAD", ".env.example"]:
        (ws / name).parent.mkdir(parents=True, exist_ok=True)
        (ws / name).write_text("x")
    return ws


@pytest.mark.parametrize("path", SECRET)
def test_secrets_are_neither_read_nor_written(way: str, filled: Path, path: str) -> None:
    workspace = Workspace(filled)
    assert refused(workspace, path, is_write=False) == "PATH_PROTECTED"
    assert refused(workspace, path, is_write=True) == "PATH_PROTECTED"


@pytest.mark.parametrize("path", [".git", ".git/config", ".git/hooks/new/file", "sub/.git/HEAD", "src/../.git/config"])
def test_the_insides_of_a_repository_are_only_read(way: str, filled: Path, path: str) -> None:
    workspace = Workspace(filled)
    assert refused(workspace, path, is_write=True) == "PATH_PROTECTED"
    if "new" not in path:
        workspace.open(path).close()


def test_an_example_of_a_secret_is_an_ordinary_file(way: str, filled: Path) -> None:
    workspace = Workspace(filled)
    workspace.open(".env.example").close()
    workspace.place(".env.example").close()


@pytest.mark.parametrize("target", [".env", ".git/config", ".git"])
def test_a_link_to_what_is_protected_is_protected(way: str, filled: Path, target: str) -> None:
    (filled / "notes").symlink_to(target)
    path = "notes" if target != ".git" else "notes/config"
    workspace = Workspace(filled)
    assert refused(workspace, path, is_write=True) == "PATH_PROTECTED"
    if target == ".env":
        assert refused(workspace, path, is_write=False) == "PATH_PROTECTED"


def test_a_refusal_says_why_and_what_to_do(filled: Path) -> None:
    with pytest.raises(
        SandboxError, match=r"^Path is protected by policy: \.env: \.env may hold secrets.*\.env\.example"
    ):
        Workspace(filled).open(".env")
    with pytest.raises(SandboxError, match=r"by its own commands.*Run that command with Bash$"):
        Workspace(filled).place(".git/config")


def test_patterns_are_the_operators_choice(filled: Path) -> None:
    ours = Protection(secrets=("*.TXT", "*.dist"))
    workspace = Workspace([Root(filled, protection=ours)])
    workspace.open(".env").close()
    workspace.place(".env.dist").close()
    assert refused(workspace, "new.txt", is_write=True) == "PATH_PROTECTED"
    assert ours.hidden_of(["a.txt", ".env.dist", "b"]) == {"a.txt"}
