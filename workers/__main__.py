"""`python -m workers` is the program `workers.program`, imported without looking for garbage."""

import gc
import sys
from importlib import import_module

if __name__ == "__main__":
    gc.disable()  # what is imported stays; `run_worker` begins to collect when all of that is there
    sys.exit(import_module("workers.program").main())
