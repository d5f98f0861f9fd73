"""Clients in processes of their own take turns, and say why they cannot."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.pairs import BACK_TO_BACK, lone_calls
from benchmarks.processes import Client, cpu_of

NOTING = """
import json, sys
for line in sys.stdin:
    calls = json.loads(line)[1]["calls"]
    open(sys.argv[1], "a").write(f"{sys.argv[2]}{calls} ")
    print(json.dumps({"answer": [1.0] * calls}), flush=True)
"""
FAILING = "import json, sys\nfor line in sys.stdin: print(json.dumps({'error': 'no such thing'}), flush=True)"


@contextmanager
def client(name: str, folder: Path, *program: str) -> Iterator[Client]:
    started = Client(name, [sys.executable, "-c", *program], folder=folder, environment=os.environ)
    try:
        yield started
    finally:
        started.stop()


def test_back_to_back_calls_take_turns_by_the_handful_and_others_one_by_one(tmp_path: Path) -> None:
    order = tmp_path / "order"
    with client("a", tmp_path, NOTING, str(order), "a") as a, client("b", tmp_path, NOTING, str(order), "b") as b:
        took = lone_calls([a, b], BACK_TO_BACK + 3)
        lone_calls([a, b], 2, 0.01)

    assert {name: len(times) for name, times in took.items()} == {"a": BACK_TO_BACK + 3, "b": BACK_TO_BACK + 3}
    assert order.read_text() == f"a{BACK_TO_BACK} b{BACK_TO_BACK} a3 b3 a1 b1 a1 b1 "


@pytest.mark.parametrize(
    ("program", "reason"), [(FAILING, "no such thing"), ("raise SystemExit('bad luck')", "bad luck")]
)
def test_a_client_that_fails_or_is_gone_says_why(tmp_path: Path, program: str, reason: str) -> None:
    with client("a", tmp_path, program) as a, pytest.raises(RuntimeError, match=reason):
        a.ask("lone", calls=1)


def test_processor_time_is_that_of_the_program_alone() -> None:
    busy = "import time; end = time.process_time() + 0.3\nwhile time.process_time() < end: pass"

    assert 290 <= cpu_of([sys.executable, "-c", busy], os.environ) < 3_000
    with pytest.raises(RuntimeError, match="bad luck"):
        cpu_of([sys.executable, "-c", "raise SystemExit('bad luck')"], os.environ)
