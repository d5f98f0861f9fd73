"""`python -m examples.demo`: a real stack at work on the files of this folder. It asserts what it prints."""

import sys

from examples.demo.command import app
from forge_tools.cli.main import main

if __name__ == "__main__":
    sys.exit(main(of=app, name="python -m examples.demo"))
