"""Edit: parts of a text file replaced, and not a byte besides."""

from typing import Any

from forge_tools.base import BaseTool
from forge_tools.records import Capabilities, ExecutionContext, ToolCategory, ToolParameter, ToolResult
from forge_tools.sandbox.paths.names import MAX_PATH_CHARS
from forge_tools.tools.file.changes import Changing
from forge_tools.tools.file.editing import Editing

_OLD = {"type": "string", "minLength": 1, "maxLength": 1_000_000, "description": "Text to replace."}
_NEW = {"type": "string", "maxLength": 1_000_000, "description": "Text to put in its place."}
_ALL = {"type": "boolean", "description": "Replace every occurrence."}
_EXPECTED = {"type": "integer", "minimum": 1, "maximum": 100_000, "description": "Replace exactly so many."}


class Edit(BaseTool):
    """Replace exact text in a file of the workspace; everything else in it stays byte for byte as it was.

    Nothing is matched by likeness. Line ends may differ from the file's; what is put in gets those of its place.
    """

    name = "Edit"
    aliases = ("edit_file",)
    category = ToolCategory.FILE
    capabilities = Capabilities(writes_files=True, idempotent=True, retryable=True)
    lane = "async"
    parameters = (
        ToolParameter(
            name="file_path",
            type="string",
            description="Text file to change, relative to the working directory or absolute.",
            min_length=1,
            max_length=MAX_PATH_CHARS,
            aliases=("path",),
        ),
        ToolParameter(
            name="old_string",
            type="string",
            description="Text to replace, as it stands in the file, with enough to be the only one. Empty: make it.",
            required=False,
            max_length=1_000_000,
        ),
        ToolParameter(
            name="new_string",
            type="string",
            description="Text to put in its place.",
            required=False,
            max_length=1_000_000,
        ),
        ToolParameter(
            name="replace_all",
            type="boolean",
            description="Replace every occurrence.",
            required=False,
            default=False,
        ),
        ToolParameter(
            name="expected_replacements",
            type="integer",
            description="Replace every occurrence if there are exactly so many, else none.",
            required=False,
            minimum=1,
            maximum=100_000,
        ),
        ToolParameter(
            name="edits",
            type="array",
            description="Several replacements instead, one after the other, all or none: {old_string, new_string, ...}.",
            required=False,
            items={
                "type": "object",
                "properties": {
                    "old_string": _OLD,
                    "new_string": _NEW,
                    "replace_all": _ALL,
                    "expected_replacements": _EXPECTED,
                },
                "required": ["old_string", "new_string"],
                "additionalProperties": False,
            },
        ),
        ToolParameter(
            name="match",
            type="string",
            description="exact; whitespace: lines may also differ in blanks at their ends and in one common indentation.",
            required=False,
            default="exact",
            enum=["exact", "whitespace"],
        ),
        ToolParameter(
            name="near_line",
            type="integer",
            description="Of several occurrences, replace the one nearest to this line.",
            required=False,
            minimum=1,
        ),
        ToolParameter(
            name="if_match",
            type="string",
            description="Edit only if the file still has this etag, which Read and the last write returned.",
            required=False,
            max_length=64,
        ),
        ToolParameter(
            name="encoding",
            type="string",
            description="Text encoding, such as latin-1 or shift_jis. By default it is detected.",
            required=False,
            max_length=64,
        ),
    )

    async def _execute(self, context: ExecutionContext, file_path: str, **options: Any) -> ToolResult:
        return await self._changing(context, file_path, options).apply(file_path, Editing(**options).plan)

    async def _dry_run(self, context: ExecutionContext, file_path: str, **options: Any) -> ToolResult:
        return await self._changing(context, file_path, options).preview(file_path, Editing(**options).plan)

    def _takes_extra(self) -> bool:
        return False  # `**options` only keeps the names from being written three times

    def _changing(self, context: ExecutionContext, file_path: str, options: dict[str, Any]) -> Changing:
        return Changing(context, self.workspace(context), self.name, {"file_path": file_path, **options})
