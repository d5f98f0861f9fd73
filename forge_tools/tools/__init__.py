"""The built-in tools, a folder for each category. A tool touches files and processes through `forge_tools.sandbox` alone.

Whatever keeps a tool from answering is a SandboxError, an InvalidCallError or a ToolFailure, from which the executor makes a
failed result; the docstrings below do not repeat that.
"""

from forge_tools.tools.code.graph import CodebaseMap, DependencyGraph
from forge_tools.tools.code.search import FindReferences, SearchCode
from forge_tools.tools.code.symbols import ImportsExports, ResolveSymbol, SymbolInfo
from forge_tools.tools.execution.bash import Bash
from forge_tools.tools.execution.bash_output import BashOutput
from forge_tools.tools.execution.shells import KillShell, ListShells
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
from forge_tools.tools.task.memory import Memory
from forge_tools.tools.task.todos import TodoRead, TodoWrite
from forge_tools.tools.web.web_fetch import WebFetch
from forge_tools.tools.web.web_search import WebSearch

BUILTINS = (
    *(Read, Write, Edit, Delete, ListDirectory, Glob, Grep, Bash, BashOutput, KillShell, ListShells),
    *(TodoRead, TodoWrite, Memory, WebFetch, WebSearch),
    *(SearchCode, CodebaseMap, SymbolInfo, ImportsExports, DependencyGraph, ResolveSymbol, FindReferences),
    *(NotebookRead, NotebookEdit, DetectProjectType, ExtractConventions, ProjectOverview),
)

__all__ = [
    "BUILTINS",
    "Bash",
    "BashOutput",
    "CodebaseMap",
    "Delete",
    "DependencyGraph",
    "DetectProjectType",
    "Edit",
    "ExtractConventions",
    "FindReferences",
    "Glob",
    "Grep",
    "ImportsExports",
    "KillShell",
    "ListDirectory",
    "ListShells",
    "Memory",
    "NotebookEdit",
    "NotebookRead",
    "ProjectOverview",
    "Read",
    "ResolveSymbol",
    "SearchCode",
    "SymbolInfo",
    "TodoRead",
    "TodoWrite",
    "WebFetch",
    "WebSearch",
    "Write",
]
