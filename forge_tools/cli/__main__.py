"""The program `forge-tools`, also as `python -m forge_tools.cli`."""

import gc
from typing import NoReturn

from forge_tools import programs
from forge_tools.cli.main import main


def program() -> NoReturn:
    gc.set_threshold(100_000)  # most commands import much, and end before any garbage exists
    programs.run(main)


if __name__ == "__main__":
    program()
