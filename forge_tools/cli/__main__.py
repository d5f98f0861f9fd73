"""The program `forge-tools`, also as `python -m forge_tools.cli`."""

import gc
import sys

from forge_tools.cli.main import main

COLLECT_EVERY = 100_000
"""New objects between two garbage collections: most commands import much, and end before any garbage exists."""


def program() -> int:
    """Run one command and end the process without a final garbage collection, which takes as long as the imports."""
    gc.set_threshold(COLLECT_EVERY)
    try:
        return main()
    finally:
        gc.freeze()


if __name__ == "__main__":
    sys.exit(program())
