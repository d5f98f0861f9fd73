"""What no call leaves behind, reveals or reaches: processes, handles and files; the worker's secrets; the network."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

CANARY = "canary-51d8"
SECRETS = (
    "DATABASE_URL", "FORGE_DATABASE_URL", "FORGE_BROKER_URL", "FORGE_SECRET_KEY", "AWS_SECRET_ACCESS_KEY", "OPENAI_API_KEY",
    "GITHUB_TOKEN", "MY_PASSWORD", "SSH_AUTH_SOCK", "SOME_SETTING", "PYTHONPATH_EXTRA",
)  # fmt: skip
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Every call, made by a process whose environment holds secrets, and what of it can be seen afterwards."""
    folder = tmp_path_factory.mktemp("hygiene")
    (folder / "tmp").mkdir()
    (folder / "all").mkdir()
    secrets = {name: f"{CANARY}-{name}" for name in SECRETS}
    environment = {**os.environ, **secrets, "TMPDIR": str(folder / "tmp"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.unit.tools.every_tool_driver", str(folder / "all")]
    done = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    seen: dict[str, Any] = json.loads(done.stdout)
    return seen | {"folder": folder, "stderr": done.stderr}


def test_the_calls_were_made(run: dict[str, Any]) -> None:
    assert {True, False} == {result["success"] for result in run["told"]}
    assert {result["tool"] for result in run["told"]} >= {"Read", "Write", "Edit", "Delete", "Grep", "Glob", "Bash"}
    assert any("PATH=" in str(result["output"]) for result in run["told"]), "Bash was to print its environment"


def test_nothing_is_left_behind(run: dict[str, Any]) -> None:
    assert run["left"] == {"handles": [], "children": [], "files": []}


def test_no_secret_of_the_worker_is_told_logged_or_kept(run: dict[str, Any]) -> None:
    assert CANARY not in json.dumps(run["told"])
    assert CANARY not in run["stderr"]
    files = [path for path in run["folder"].rglob("*") if path.is_file() and not path.is_symlink()]
    assert any("kept" in path.parts for path in files), "no output was long enough to be kept"
    assert [path for path in files if CANARY.encode() in path.read_bytes()] == []


def test_no_tool_that_claims_no_network_reaches_for_one(run: dict[str, Any]) -> None:
    assert run["attempts"] == []
    assert not any(claims for name, claims in run["claims"].items() if name not in {"Bash", "WebFetch", "WebSearch"})
