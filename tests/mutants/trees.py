"""Copies of the work tree, each with a virtual environment that imports it, in which mutants live and die."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from tests.mutants.changes import Mutant
from tests.mutants.reach import SUITES
from tests.mutants.tracing import FOLDER, UNTRACED

HERE = Path(__file__).resolve().parents[2]
MEASURED = ("forge_tools", "workers", *SUITES)
KILLED, SURVIVED, TIMED_OUT = "killed", "survived", "timed out"
LEAST_SECONDS, USUAL_TIMES = 40.0, 4.0
TRIES = 4


class Tree:
    """One copy. Its environment links to the packages of the one that runs this, and imports the copy."""

    def __init__(self, root: Path, folder: Path, patience: float) -> None:
        self.folder, self._patience = folder, patience
        shutil.rmtree(folder, ignore_errors=True)
        for file in files_of(root):
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / file, folder / file)
        self._link_environment()

    def _link_environment(self) -> None:
        here, there = Path(sys.prefix), self.folder / ".venv"
        for place in (here, here / "bin", Path(sysconfig.get_path("purelib"))):
            (folder := there / place.relative_to(here)).mkdir(parents=True, exist_ok=True)
            for path in place.iterdir():
                if path.suffix == ".pth" or (path.is_file() and path.read_bytes()[:2] == b"#!"):
                    (folder / path.name).write_text(path.read_text().replace(str(HERE), str(self.folder)))
                    shutil.copymode(path, folder / path.name)
                elif path.name not in {"bin", "lib", "lib64"}:
                    (folder / path.name).symlink_to(path)

    def measure(self, files: Sequence[str], traces: Path, untraced: str) -> None:
        """Run these files of tests, traced; what is among the traces afterwards is whole."""
        unfinished = self.folder / "measured"
        unfinished.mkdir(exist_ok=True)
        options = ("-q", "--processes", "2", "-p", "tests.mutants.tracing")
        code = self._run([*options, *files], 3600, {FOLDER: str(unfinished), UNTRACED: untraced})
        if code not in {0, 1}:
            raise RuntimeError(f"The tests were not run to their end: see {self.folder}/log")
        traces.mkdir(parents=True, exist_ok=True)
        for file in unfinished.iterdir():
            shutil.move(file, traces / file.name)

    def compile(self) -> None:
        """Have all tests imported once: runs of mutants keep no compiled code, which would be that of a mutant."""
        self._run(["-q", "--collect-only", *SUITES], 600, {})

    def judge(self, mutant: Mutant, tests: list[str], usual_seconds: float) -> tuple[str, list[str]]:
        """What becomes of the mutant, and which tests killed it. A test that fails once and not again is left out."""
        path = self.folder / mutant.file
        source, status = path.read_bytes(), path.stat()
        path.write_bytes(mutant.applied(source))
        try:
            for _ in range(TRIES):
                ended, failed = self.run_tests(tests, usual_seconds, "-x")
                tests = [test for test in tests if test not in failed]
                if ended != SURVIVED or not failed or not tests:
                    break
            return ended, [] if ended == SURVIVED else failed or tests[
                :1
            ]  # where nothing can be imported, none of them fails
        finally:
            path.write_bytes(source)
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    def run_tests(self, tests: Sequence[str], usual_seconds: float, *options: str) -> tuple[str, list[str]]:
        """How the run ended, and which tests failed, be it only at first."""
        names, traces = self.folder / "chosen", self.folder / "traces"
        names.write_text("".join(f"{test}\n" for test in tests))
        shutil.rmtree(traces, ignore_errors=True)
        traces.mkdir()
        plugins = ("-p", "no:randomly", "-p", "no:cacheprovider", "-p", "tests.mutants.tracing")
        environment = {FOLDER: str(traces), UNTRACED: "tests/", "PYTHONDONTWRITEBYTECODE": "1"}
        code = self._run(
            ["-q", *options, *plugins, f"@{names}"], LEAST_SECONDS + USUAL_TIMES * usual_seconds, environment
        )
        ends = [json.loads(line) for file in traces.glob("*.jsonl") for line in file.read_text().splitlines()]
        return {0: SURVIVED, 124: TIMED_OUT}.get(code, KILLED), sorted(end["test"] for end in ends if end["failed"])

    def _run(self, arguments: Sequence[str], seconds: float, environment: dict[str, str]) -> int:
        limits = ("--patience", f"{self._patience:.2f}", "--minutes", f"{seconds / 60 / self._patience:.3f}")
        command = [str(self.folder / ".venv/bin/python"), "-m", "tests", *limits, *arguments]
        with (self.folder / "log").open("wb") as log:
            return subprocess.run(
                command, cwd=self.folder, env=os.environ | environment, stdout=log, stderr=log, check=False
            ).returncode


def files_of(root: Path) -> list[str]:
    listed = subprocess.check_output(["git", "ls-files", "-coz", "--exclude-standard"], cwd=root, text=True)
    return [file for file in listed.split("\0") if (root / file).is_file()]


def state_of(root: Path) -> str:
    """What the measured lines depend on."""
    digest = hashlib.sha256()
    for file in files_of(root):
        if file.startswith(MEASURED):
            digest.update(f"{file}\0".encode() + (root / file).read_bytes())
    return digest.hexdigest()[:12]
