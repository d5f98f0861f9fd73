"""`python -m workers` runs the program `workers.program`, with garbage collection off during its imports and end."""

import gc
import sys
from importlib import import_module

if __name__ == "__main__":
    gc.disable()  # what is imported stays; `run_worker` enables collection when everything is loaded
    try:
        sys.exit(import_module("workers.program").main())
    finally:
        gc.freeze()  # the final collection would take as long as the imports did
