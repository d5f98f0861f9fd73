"""Migrations as they will follow one another after a release; CONTRIBUTING.md explains them step by step.

They go on from the newest of the product, and are none of it: `known` is the configuration that has both.
"""

import os
from pathlib import Path

from alembic.config import Config

from forge_tools.storage import migrate
from forge_tools.storage.tables import SCHEMA_REVISION

OURS = SCHEMA_REVISION.partition("_")[0]
"""The code that is released: it knows nothing of these."""

ADDED, INDEXED, VALIDATED, REMOVED = f"9001_from_{OURS}", f"9002_from_{OURS}", f"9003_from_{OURS}", "9004_from_9003"

_product = migrate.configuration


def known() -> Config:
    config = _product()
    folders = (f"{config.get_main_option('script_location')}/versions", Path(__file__).parent)
    config.set_main_option("path_separator", "os")
    config.set_main_option("version_locations", os.pathsep.join(str(folder).replace("%", "%%") for folder in folders))
    return config
