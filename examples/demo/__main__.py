"""`python -m examples.demo`: runs a real stack on the files of this folder and asserts what it prints."""

import sys

from examples.demo.command import app
from forge_tools.cli.main import main

if __name__ == "__main__":
    sys.exit(main(of=app, name="python -m examples.demo"))
