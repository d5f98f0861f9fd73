"""Grep: lines, files or counts that match a pattern, searched by ripgrep."""

from pathlib import Path
from typing import Any

from forge_tools.base import BaseTool
from forge_tools.records import Capabilities, ExecutionContext, ToolCategory, ToolParameter, ToolResult
from forge_tools.sandbox.paths.names import MAX_PATH_CHARS
from forge_tools.tools.file.arguments import check_text
from forge_tools.tools.file.ripgrep import Ripgrep, Search
from forge_tools.tools.file.searching import Searching


def _flag(name: str, description: str, *, default: bool = False, aliases: tuple[str, ...] = ()) -> ToolParameter:
    return ToolParameter(
        name=name, type="boolean", description=description, required=False, default=default, aliases=aliases
    )


def _count(
    name: str, description: str, *, low: int = 0, high: int | None = None, default: int | None = 0,
    aliases: tuple[str, ...] = (),
) -> ToolParameter:  # fmt: skip
    return ToolParameter(
        name=name,
        type="integer",
        description=description,
        required=False,
        default=default,
        minimum=low,
        maximum=high,
        aliases=aliases,
    )


class Grep(BaseTool):
    """Search files in the workspace for a regular expression (Rust syntax); .gitignore is honoured, binary files are skipped.

    Results are sorted by path, so that pages fit together.
    """

    name = "Grep"
    aliases = ("grep",)
    category = ToolCategory.FILE
    capabilities = Capabilities(idempotent=True, retryable=True)
    lane = "async"
    parameters = (
        ToolParameter(
            name="pattern",
            type="string",
            description="Regular expression to search for.",
            min_length=1,
            max_length=4096,
        ),
        ToolParameter(
            name="path",
            type="string",
            description="File or folder to search, by default the working directory; or artifact://..., a long output.",
            required=False,
            default=".",
            min_length=1,
            max_length=MAX_PATH_CHARS,
            aliases=("file_path",),
        ),
        ToolParameter(
            name="glob",
            type="string",
            description="Only files that match, relative to path: *.py (in every folder), src/**/*.{ts,tsx}.",
            required=False,
            min_length=1,
            max_length=1024,
        ),
        ToolParameter(
            name="type",
            type="string",
            description="Only files of this ripgrep type: py, ts, rust, ...",
            required=False,
            min_length=1,
            max_length=64,
        ),
        ToolParameter(
            name="output_mode",
            type="string",
            description="content: path:line:text; files_with_matches: paths; count: path:matching lines.",
            required=False,
            default="files_with_matches",
            enum=["content", "files_with_matches", "count"],
        ),
        _flag("ignore_case", "Let letters match in either case.", aliases=("-i",)),
        _count("before", "Lines shown before each match (content).", high=50, aliases=("-B",)),
        _count("after", "Lines shown after each match (content).", high=50, aliases=("-A",)),
        _count("context_lines", "Lines shown around each match (content).", high=50, aliases=("-C", "context")),
        _flag("line_numbers", "Show line numbers (content).", default=True, aliases=("-n",)),
        _flag("multiline", "Let patterns span lines, and the dot match line ends."),
        _flag("fixed_strings", "Search for the pattern as plain text.", aliases=("-F",)),
        _flag("word", "Match whole words only.", aliases=("-w",)),
        ToolParameter(
            name="engine",
            type="string",
            description="auto: rust, or pcre2 where the pattern needs look-around or back-references.",
            required=False,
            default="auto",
            enum=["auto", "rust", "pcre2"],
        ),
        _count(
            "max_per_file", "Matching lines per file at most.", low=1, high=1_000_000_000, default=None, aliases=("-m",)
        ),
        _count("head_limit", "Records (lines or files) shown at most.", low=1, high=5000, default=250),
        _count("offset", "Records to skip, to see the next page."),
        _flag("respect_ignore", "Leave out what .gitignore and .ignore files name.", default=True),
        _flag("hidden", "Search hidden files too; .git is always left out.", default=True),
        _count("max_columns", "Longer lines are cut around the match.", low=20, high=10_000, default=500),
    )

    def __init__(self, ripgrep: Path | None = None) -> None:
        self._ripgrep = str(ripgrep) if ripgrep else None

    async def _execute(self, context: ExecutionContext, **options: Any) -> ToolResult:
        search = Search(**options)
        for name in ("pattern", "glob", "type"):
            check_text(name, getattr(search, name) or "")
        return await Searching(Ripgrep.find(self._ripgrep), self.workspace(context), context).run(search)

    async def _dry_run(self, context: ExecutionContext, **options: Any) -> ToolResult:
        result = await self._execute(context, **options)
        if result.success:
            result.output = f"[Dry Run] {result.output}"
        return result

    def _takes_extra(self) -> bool:
        return False  # `**options` only keeps the twenty names from being written twice
