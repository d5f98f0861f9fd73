"""ListDirectory: what is in a folder."""

from typing import Any

from forge_tools.base import BaseTool
from forge_tools.records import Capabilities, ExecutionContext, ToolCategory, ToolParameter, ToolResult
from forge_tools.sandbox.paths.names import MAX_PATH_CHARS
from forge_tools.tools.file.effort import Effort
from forge_tools.tools.file.listing import Listing, Wish


class ListDirectory(BaseTool):
    """List the entries of a folder in the workspace, folders first; with a depth, as a tree."""

    name = "ListDirectory"
    aliases = ("list_directory", "LS")
    category = ToolCategory.FILE
    capabilities = Capabilities(idempotent=True, retryable=True)
    lane = "async"
    parameters = (
        ToolParameter(
            name="path",
            type="string",
            description="Folder to list, by default the working directory.",
            required=False,
            default=".",
            min_length=1,
            max_length=MAX_PATH_CHARS,
            aliases=("file_path",),
        ),
        ToolParameter(
            name="depth",
            type="integer",
            description="How many levels of folders to list.",
            required=False,
            default=1,
            minimum=1,
            maximum=10,
        ),
        ToolParameter(
            name="ignore",
            type="array",
            description="Globs of what to leave out, relative to path: node_modules, *.pyc (in every folder), docs/*.html.",
            required=False,
            items={"type": "string", "minLength": 1, "maxLength": 1024},
        ),
        ToolParameter(
            name="hidden",
            type="boolean",
            description="List names that start with a dot too.",
            required=False,
            default=True,
        ),
        ToolParameter(
            name="details",
            type="boolean",
            description="Show mode, size in bytes and time of the last change.",
            required=False,
            default=False,
        ),
        ToolParameter(
            name="sort",
            type="string",
            description="name: folders first; size: largest first; mtime: newest first.",
            required=False,
            default="name",
            enum=["name", "size", "mtime"],
        ),
        ToolParameter(
            name="limit",
            type="integer",
            description="How many entries to list at most.",
            required=False,
            default=1000,
            minimum=1,
            maximum=10_000,
        ),
    )

    async def _execute(self, context: ExecutionContext, **options: Any) -> ToolResult:
        effort, workspace = Effort(context), self.workspace(context)
        listing = Listing(Wish(**options), effort, context.max_output_size)
        return await effort.run(lambda: listing.run(workspace))

    async def _dry_run(self, context: ExecutionContext, **options: Any) -> ToolResult:
        result = await self._execute(context, **options)
        return result.model_copy(update={"output": f"[Dry Run] {result.output}"})

    def _takes_extra(self) -> bool:
        return False  # `**options` only keeps the names from being written three times
