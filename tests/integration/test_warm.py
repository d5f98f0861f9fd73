"""A process forked by a warm interpreter is like any other, and ends with the process that started it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fleet import ROOT
from tests.waiting import is_alive, wait_until
from tests.warm import WarmInterpreter

SESSION = """
import os, sys
from tests.warm import WarmInterpreter
warm = WarmInterpreter("json")
print(warm._process.pid, flush=True)
os.read(0, 1)
"""


@pytest.fixture
def warm() -> Iterator[WarmInterpreter]:
    made = WarmInterpreter("json.decoder", "logging.handlers")
    yield made
    made.close()


def once(statement: str) -> list[str]:
    return ["timeit", "-n", "1", "-r", "1", statement]


def test_it_has_its_own_folder_environment_streams_and_exit_code(warm: WarmInterpreter, tmp_path: Path) -> None:
    said, complaints = tmp_path / "said", tmp_path / "complaints"
    statement = "import os, sys; print(os.getcwd(), dict(os.environ), file=sys.stderr, flush=True); os._exit(7)"
    with said.open("w") as output, complaints.open("w") as errors:
        asked = warm.start(once(statement), cwd=tmp_path, env={"ONLY": "this"}, stdout=output, stderr=errors)
        assert asked.wait(60) == asked.returncode == 7
        fine = warm.start(once("import json; print('fine')"), cwd=tmp_path, env={}, stdout=output, stderr=errors)
        assert fine.wait(60) == 0
    assert complaints.read_text() == f"{tmp_path} {{'ONLY': 'this'}}\n"
    assert said.read_text().startswith("fine\n")


def test_signals_end_it_and_waiting_has_an_end(warm: WarmInterpreter, tmp_path: Path) -> None:
    with Path(os.devnull).open("wb") as nothing:
        asleep = warm.start(once("import time; time.sleep(600)"), cwd=tmp_path, env={}, stdout=nothing, stderr=nothing)
    with pytest.raises(subprocess.TimeoutExpired):
        asleep.wait(0.05)
    assert asleep.poll() is None
    asleep.terminate()
    assert asleep.wait(60) == -signal.SIGTERM
    assert not is_alive(asleep.pid)


def test_what_forks_ends_with_the_process_that_started_it() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    argv = [sys.executable, "-c", SESSION]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as session:
        assert session.stdout is not None
        pid = int(session.stdout.readline())
        session.kill()
    wait_until(lambda: not is_alive(pid), 30, "it goes on")


def test_its_environment_is_what_the_system_says_of_it(warm: WarmInterpreter, tmp_path: Path) -> None:
    said = "print(open('/proc/self/environ').read().strip(chr(0)).split(chr(0)))"
    done = warm.run(["-c", said], cwd=tmp_path, env={"ONE": "1", "TWO": "and 2"})
    assert (done.stdout, done.returncode) == ("['ONE=1', 'TWO=and 2']\n", 0)


def test_code_has_its_words_and_imports_from_its_folder(warm: WarmInterpreter, tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("FOUND = 'found'")
    code = "import sys, beside; print(sys.argv, beside.FOUND, __name__); sys.exit(4)"
    done = warm.run(["-c", code, "word"], cwd=tmp_path, env={})
    assert (done.stdout, done.stderr, done.returncode) == ("['-c', 'word'] found __main__\n", "", 4)


@pytest.mark.parametrize(
    ("code", "said", "complaint", "ends_with"),
    [
        ("import atexit; print('one', end=' '); atexit.register(print, 'two')", "one two\n", "", 0),
        ("from threading import Timer; Timer(0.2, print, ['late']).start()", "late\n", "", 0),
        ("import logging.handlers as h, logging; m = h.MemoryHandler(9, target=logging.StreamHandler()); "
         "logging.getLogger().addHandler(m); logging.error('kept')", "", "kept", 0),
        ("import sys; sys.exit('a sentence')", "", "a sentence", 1),
        ("raise ValueError('bad luck')", "", "ValueError: bad luck", 1),
        ("import sys; sys.stdout = open('/dev/full', 'w'); print('lost')", "", "OSError: [Errno 28] No space left on device", 120),
    ],
)  # fmt: skip
def test_it_ends_as_a_program_does_that_nothing_forked(
    warm: WarmInterpreter, tmp_path: Path, code: str, said: str, complaint: str, ends_with: int
) -> None:
    forked = warm.run(["-c", code], cwd=tmp_path, env={})
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    for done in (forked, other):
        assert (done.stdout, "".join(done.stderr.splitlines()[-1:]), done.returncode) == (said, complaint, ends_with)
