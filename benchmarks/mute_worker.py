"""`python -m benchmarks.mute_worker`: the worker without capturing of what bodies print and log."""

import sys
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

from workers import pool, program
from workers.lanes import child
from workers.log_redaction import RedactedStream


class NoPipes:
    """Replaces the pipes of a process of the pool, which keeps its own descriptors."""

    threads = frozenset[Any]()
    catch_up = None

    def __init__(self, *_: object) -> None: ...

    def begin(self, *_: object) -> None: ...

    def end(self, *, are_left: bool) -> None: ...

    def let_go(self) -> None: ...


class NoOutput:
    """Replaces the output capturing of a new process of the pool."""

    numbers = ()

    def born(self) -> None: ...

    def last_words(self) -> tuple[()]:
        return ()

    def follow(self) -> None: ...

    def close(self) -> None: ...


def main() -> int:
    with ExitStack() as swapped:
        swapped.enter_context(patch.object(program, "capture", lambda: RedactedStream(sys.stderr)))
        swapped.enter_context(patch.object(program, "capture_logs", lambda: None))
        swapped.enter_context(patch.object(child, "Pipes", NoPipes))
        swapped.enter_context(patch.object(child, "descendants", lambda _: ()))
        swapped.enter_context(patch.object(pool, "ChildOutput", NoOutput))
        return program.main()


if __name__ == "__main__":
    sys.exit(main())
