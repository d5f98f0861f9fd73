"""The program `forge-tools`, also as `python -m forge_tools.cli`."""

import gc
from typing import NoReturn

from forge_tools import programs
from forge_tools.cli.main import main

COLLECT_EVERY = 100_000
"""New objects between two garbage collections: most commands import much, and end before any garbage exists."""


def program() -> NoReturn:
    gc.set_threshold(COLLECT_EVERY)
    programs.run(main)


if __name__ == "__main__":
    program()
