"""How long tests wait."""

import os

PATIENCE = float(os.environ.get("FORGE_TESTS_PATIENCE", "1"))
"""How much slower this machine is than one with two cores of its own; every limit is multiplied by it."""
