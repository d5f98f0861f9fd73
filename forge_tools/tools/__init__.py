"""The built-in tools, a folder for each category. A tool touches files and processes through `forge_tools.sandbox` alone."""

from forge_tools.tools.execution.bash import Bash
from forge_tools.tools.execution.bash_output import BashOutput
from forge_tools.tools.execution.kill_shell import KillShell
from forge_tools.tools.execution.list_shells import ListShells
from forge_tools.tools.file.delete import Delete
from forge_tools.tools.file.edit import Edit
from forge_tools.tools.file.glob import Glob
from forge_tools.tools.file.grep import Grep
from forge_tools.tools.file.list_directory import ListDirectory
from forge_tools.tools.file.read import Read
from forge_tools.tools.file.write import Write
from forge_tools.tools.notebook.edit import NotebookEdit
from forge_tools.tools.notebook.read import NotebookRead
from forge_tools.tools.project.conventions import ExtractConventions
from forge_tools.tools.project.detect import DetectProjectType
from forge_tools.tools.project.overview import ProjectOverview

BUILTINS = (
    Read,
    Write,
    Edit,
    Delete,
    ListDirectory,
    Glob,
    Grep,
    Bash,
    BashOutput,
    KillShell,
    ListShells,
    NotebookRead,
    NotebookEdit,
    DetectProjectType,
    ExtractConventions,
    ProjectOverview,
)

__all__ = [
    "BUILTINS",
    "Bash",
    "BashOutput",
    "Delete",
    "DetectProjectType",
    "Edit",
    "ExtractConventions",
    "Glob",
    "Grep",
    "KillShell",
    "ListDirectory",
    "ListShells",
    "NotebookEdit",
    "NotebookRead",
    "ProjectOverview",
    "Read",
    "Write",
]
