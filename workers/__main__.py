"""`python -m workers` is the program `workers.program`, imported and ended without looking for garbage."""

import gc
import sys
from importlib import import_module

if __name__ == "__main__":
    gc.disable()  # what is imported stays; `run_worker` begins to collect when all of that is there
    try:
        sys.exit(import_module("workers.program").main())
    finally:
        gc.freeze()  # the last look takes as long as the imports did
