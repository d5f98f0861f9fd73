"""Turns of benchmarks in forks of a process that has imported what they need: no figure means anything in tests."""

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver

import pytest

from benchmarks import runner


@contextmanager
def turns_forked(*modules: str) -> Iterator[None]:
    """Have turns begin with these modules, and with what every turn needs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "START", "forkserver")
        multiprocessing.set_forkserver_preload(["pytest", "benchmarks.runner", *modules])
        yield
        forkserver._forkserver._stop()  # noqa: SLF001  it would serve to the end of this process, and nothing else ends it
