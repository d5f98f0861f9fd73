"""The built-in tools, a folder for each category. A tool touches files and processes through `forge_tools.sandbox` alone."""

from forge_tools.tools.execution.bash import Bash
from forge_tools.tools.file.grep import Grep
from forge_tools.tools.file.read import Read

BUILTINS = (Read, Grep, Bash)

__all__ = ["BUILTINS", "Bash", "Grep", "Read"]
