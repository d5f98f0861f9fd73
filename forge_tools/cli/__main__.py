"""`python -m forge_tools.cli` is `forge-tools`."""

import sys

from forge_tools.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
