"""A tool that asks for walls, for workers of whom some live on a kernel without Landlock: `FORGE_WITHOUT_LANDLOCK` makes it one."""

import errno
import os

from forge_tools.sandbox.walls import seccomp
from forge_tools.sandbox.walls.privileges import gain_nothing
from forge_tools.sandbox.walls.probe import given
from forge_tools.tool import tool

if os.environ.get("FORGE_WITHOUT_LANDLOCK"):
    gain_nothing()
    seccomp.refuse(["landlock_create_ruleset"], error=errno.ENOSYS)
    given.cache_clear()


@tool(walls="landlock")
def guarded() -> str:
    """Say something behind walls."""
    return "said"
