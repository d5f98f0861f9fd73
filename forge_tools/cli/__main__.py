"""The program `forge-tools`, also as `python -m forge_tools.cli`."""

import gc
import sys

from forge_tools.cli.main import main

COLLECT_EVERY = 100_000
"""New objects between two searches for garbage: most commands import much, and end before there is any."""


def program() -> int:
    """Run one command and have the process end without a last search for garbage, which takes as long as the imports."""
    gc.set_threshold(COLLECT_EVERY)
    try:
        return main()
    finally:
        gc.freeze()


if __name__ == "__main__":
    sys.exit(program())
