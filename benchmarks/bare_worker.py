"""`python -m benchmarks.bare_worker`: the worker, on the bare queue."""

import sys

from benchmarks.bare_queue import swapped
from workers.program import main

if __name__ == "__main__":
    with swapped():
        sys.exit(main())
