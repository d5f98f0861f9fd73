"""Write: a whole file, made or replaced at once."""

from typing import Any

from forge_tools.base import BaseTool
from forge_tools.records import Capabilities, ExecutionContext, ToolCategory, ToolParameter, ToolResult
from forge_tools.sandbox.paths.names import MAX_PATH_CHARS
from forge_tools.tools.file.changes import Changing
from forge_tools.tools.file.writing import Writing

MAX_CHARS = 10_000_000


class Write(BaseTool):
    """Write a text file in the workspace, new or replaced as a whole; its encoding, line ends and mode stay.

    What is there can be read before, and its `etag` passed as `if_match`: then nothing that others wrote is lost.
    """

    name = "Write"
    aliases = ("write_file",)
    category = ToolCategory.FILE
    capabilities = Capabilities(writes_files=True, idempotent=True, retryable=True)
    lane = "async"
    parameters = (
        ToolParameter(
            name="file_path",
            type="string",
            description="File to write, relative to the working directory or absolute.",
            min_length=1,
            max_length=MAX_PATH_CHARS,
            aliases=("path",),
        ),
        ToolParameter(name="content", type="string", description="All that the file will hold.", max_length=MAX_CHARS),
        ToolParameter(
            name="if_match",
            type="string",
            description="Write only if the file still has this etag, which Read and the last write returned.",
            required=False,
            max_length=64,
        ),
        ToolParameter(
            name="if_none_match",
            type="string",
            description='Pass "*" to write only if there is no such file yet.',
            required=False,
            enum=["*"],
        ),
        ToolParameter(
            name="create_dirs",
            type="boolean",
            description="Make the folders that are missing on the way.",
            required=False,
            default=True,
        ),
        ToolParameter(
            name="line_endings",
            type="string",
            description="keep: those of the file that is replaced; lf; crlf; as_given: those of the content.",
            required=False,
            default="keep",
            enum=["keep", "lf", "crlf", "as_given"],
        ),
        ToolParameter(
            name="encoding",
            type="string",
            description="Text encoding, such as latin-1 or utf-8-sig. By default that of the old file, or UTF-8.",
            required=False,
            max_length=64,
        ),
        ToolParameter(
            name="executable",
            type="boolean",
            description="Whether the file can be run as a program. By default as before.",
            required=False,
        ),
    )

    async def _execute(self, context: ExecutionContext, file_path: str, **options: Any) -> ToolResult:
        return await self._changing(context, file_path, options).apply(file_path, Writing(**options).plan)

    async def _dry_run(self, context: ExecutionContext, file_path: str, **options: Any) -> ToolResult:
        return await self._changing(context, file_path, options).preview(file_path, Writing(**options).plan)

    def _takes_extra(self) -> bool:
        return False  # `**options` only keeps the names from being written three times

    def _changing(self, context: ExecutionContext, file_path: str, options: dict[str, Any]) -> Changing:
        return Changing(context, self.workspace(context), self.name, {"file_path": file_path, **options})
