"""Delete: a file, a link or a folder, and never what a link leads to."""

from typing import Any

from forge_tools.base import BaseTool
from forge_tools.records import Capabilities, ExecutionContext, ToolCategory, ToolParameter, ToolResult
from forge_tools.sandbox.paths.names import MAX_PATH_CHARS
from forge_tools.tools.file.deleting import Deleting
from forge_tools.tools.file.effort import Effort


class Delete(BaseTool):
    """Delete a file, a symbolic link (not what it leads to) or, with recursive, a folder in the workspace, for good."""

    name = "Delete"
    aliases = ("delete_file",)
    category = ToolCategory.FILE
    capabilities = Capabilities(writes_files=True, idempotent=True)
    lane = "async"
    parameters = (
        ToolParameter(
            name="file_path",
            type="string",
            description="What to delete, relative to the working directory or absolute.",
            min_length=1,
            max_length=MAX_PATH_CHARS,
            aliases=("path",),
        ),
        ToolParameter(
            name="recursive",
            type="boolean",
            description="Delete a folder with all that is in it.",
            required=False,
            default=False,
        ),
        ToolParameter(
            name="missing_ok",
            type="boolean",
            description="Succeed where there is nothing to delete.",
            required=False,
            default=False,
        ),
        ToolParameter(
            name="if_match",
            type="string",
            description="Delete a file only if it still has this etag, which Read and the last write returned.",
            required=False,
            max_length=64,
        ),
    )

    async def _execute(self, context: ExecutionContext, file_path: str, **options: Any) -> ToolResult:
        effort, deleting = Effort(context), self._deleting(context, file_path, options)
        return await effort.run(lambda: deleting.apply(effort.check))

    async def _dry_run(self, context: ExecutionContext, file_path: str, **options: Any) -> ToolResult:
        effort, deleting = Effort(context), self._deleting(context, file_path, options)
        return await effort.run(lambda: deleting.preview(effort.check))

    def _takes_extra(self) -> bool:
        return False  # `**options` only keeps the names from being written three times

    def _deleting(self, context: ExecutionContext, file_path: str, options: dict[str, Any]) -> Deleting:
        return Deleting(context=context, workspace=self.workspace(context), file_path=file_path, **options)
