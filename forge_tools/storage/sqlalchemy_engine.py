"""SQLAlchemy's asynchronous engine, without its ORM.

The package `sqlalchemy.ext.asyncio` imports sessions, and with them the ORM, which nothing here uses: it would take 8 MB of
each process, and a twentieth of the time in which a worker or a command starts. So the module `engine` is imported before its
package is executed. Whoever imports the package later gets all of it, with the same classes; only another thread that does so
within these few milliseconds fails.
"""

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec
from typing import cast

_PACKAGE = "sqlalchemy.ext.asyncio"

if _PACKAGE not in sys.modules:
    sys.modules[_PACKAGE] = module_from_spec(cast("ModuleSpec", find_spec(_PACKAGE)))
    try:
        import_module(f"{_PACKAGE}.engine")
    finally:
        del sys.modules[_PACKAGE]

from sqlalchemy.ext.asyncio.engine import (  # noqa: E402  it is to find the module above
    AsyncConnection,
    AsyncEngine,
    create_async_engine,
)

__all__ = ["AsyncConnection", "AsyncEngine", "create_async_engine"]
