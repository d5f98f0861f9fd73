"""ImportsExports: what a file takes from others, and what it offers them."""

from dataclasses import dataclass
from typing import Any

from forge_tools.model import ToolResult
from forge_tools.sandbox.paths.workspace import Workspace
from forge_tools.tools.builtin import PATH, option, parameters_of
from forge_tools.tools.code.codebase import read, read_file
from forge_tools.tools.code.modules import Modules
from forge_tools.tools.code.tool import CodeTool, below
from forge_tools.tools.deadline import Deadline


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """Of which file."""

    file: str = option("The file.", **PATH)
    path: str = below("Folder in which what it imports is looked for, by default the working directory.")


class ImportsExports(CodeTool):
    """List what a file imports, from where, and what it defines for others."""

    name = "ImportsExports"
    aliases = ("get_imports_exports", "imports_exports")
    parameters = parameters_of(Wish)

    def _answer(self, workspace: Workspace, deadline: Deadline, options: dict[str, Any]) -> ToolResult:
        wish = Wish(**options)
        source = read_file(workspace, wish.file, deadline)
        codebase = read(workspace, wish.path, deadline)
        modules = Modules(codebase)
        imports: list[dict[str, Any]] = [
            {
                "module": one.module,
                "names": [
                    called if taken in {called, ""} else f"{taken} as {called}" for taken, called in one.names if called
                ],
                "line": one.line,
                "resolved": next(iter(modules.of(one, source)), None),
            }
            for one in source.facts.imports
        ]
        exports: list[dict[str, Any]] = [
            {"name": one.path, "kind": one.kind, "line": one.line}
            for one in source.facts.definitions
            if one.is_public and not one.container
        ]
        exports += [
            {"name": called, "kind": f"from {one.module}", "line": one.line}
            for one in source.facts.imports
            if one.is_export
            for _, called in one.names
        ]
        said = [
            f"{source.path}:{one['line']}  {one['module']}  {', '.join(one['names'])}".rstrip()
            + f"  -> {one['resolved'] or 'external'}"
            for one in imports
        ]
        offered = [f"{source.path}:{one['line']}  {one['kind']} {one['name']}" for one in exports]
        text = "\n".join([f"Imports of {source.path}: {len(imports)}", *said, "", f"Exports: {len(exports)}", *offered])
        return ToolResult.ok(text + codebase.note, imports=imports, exports=exports, index=codebase.index())
