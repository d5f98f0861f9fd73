"""`python -m workers` runs the program `workers.program`, with garbage collection off during its imports."""

import gc
from importlib import import_module

from forge_tools import programs

if __name__ == "__main__":
    gc.disable()  # what is imported stays; `run_worker` enables collection when everything is loaded
    programs.run(import_module("workers.program").main)
