"""Read: lines of a text file, of any size, in any encoding."""

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from forge_tools.base import BaseTool
from forge_tools.errors import InvalidCallError
from forge_tools.records import Capabilities, ExecutionContext, ToolCategory, ToolParameter, ToolResult
from forge_tools.sandbox.artifacts import is_handle, open_artifact
from forge_tools.sandbox.paths.confinement import Handle, meet
from forge_tools.sandbox.paths.names import MAX_PATH_CHARS
from forge_tools.sandbox.paths.workspace import Workspace
from forge_tools.tools.deadline import Deadline
from forge_tools.tools.file.reading import Reading, Wish

MAX_LINES = 20_000
_DEFAULT_LINES = 2000
_GLANCED_BYTES = 64 << 10  # take half a millisecond, and two if they are nothing but line ends


class Read(BaseTool):
    """Read lines of a text file in the workspace, by default the first 2,000, numbered.

    Files of more than 64 MiB are not counted or hashed: `lines` and `etag` are None, and a tail has no line numbers.
    """

    name = "Read"
    aliases = ("read_file",)
    category = ToolCategory.FILE
    capabilities = Capabilities(idempotent=True, retryable=True)
    lane = "async"
    parameters = (
        ToolParameter(
            name="file_path",
            type="string",
            description="Text file to read, relative to the working directory or absolute; or artifact://..., a long output.",
            min_length=1,
            max_length=MAX_PATH_CHARS,
            aliases=("path",),
        ),
        ToolParameter(
            name="offset",
            type="integer",
            description="Number of the first line to read; the first line of a file is 1, which is the default.",
            required=False,
            minimum=1,
        ),
        ToolParameter(
            name="limit",
            type="integer",
            description="How many lines to read at most.",
            required=False,
            default=_DEFAULT_LINES,
            minimum=1,
            maximum=MAX_LINES,
        ),
        ToolParameter(
            name="tail",
            type="integer",
            description="Read this many lines from the end instead. Not together with offset.",
            required=False,
            minimum=1,
            maximum=MAX_LINES,
        ),
        ToolParameter(
            name="column",
            type="integer",
            description="Skip this many characters of the first line read, to page through a very long line.",
            required=False,
            default=0,
            minimum=0,
        ),
        ToolParameter(
            name="encoding",
            type="string",
            description="Name of the text encoding, such as latin-1 or utf-16-le. By default it is detected.",
            required=False,
        ),
        ToolParameter(
            name="line_numbers",
            type="boolean",
            description="Put its number and a tab before each line.",
            required=False,
            default=True,
        ),
    )

    async def _execute(
        self,
        context: ExecutionContext,
        file_path: str,
        *,
        offset: int | None = None,
        limit: int = _DEFAULT_LINES,
        tail: int | None = None,
        column: int = 0,
        encoding: str | None = None,
        line_numbers: bool = True,
    ) -> ToolResult:
        if offset is not None and tail is not None:
            raise InvalidCallError("Pass offset or tail, not both")
        wish = Wish(
            offset=offset or 1,
            count=tail or limit,
            is_tail=tail is not None,
            column=column,
            encoding=encoding,
            is_numbered=line_numbers,
        )
        workspace, is_cancelled = self.workspace(context), threading.Event()
        reading = partial(
            Reading,
            wish=wish,
            deadline=Deadline(context),
            is_cancelled=is_cancelled,
            max_chars=context.max_output_size,
        )
        kept = await open_artifact(file_path, context, workspace) if is_handle(file_path) else None
        seen = None if kept or wish.count > _DEFAULT_LINES else _glance(workspace, file_path, reading)
        if seen is not None:
            return seen

        def read() -> ToolResult:
            with kept or workspace.open_file(file_path) as file:
                meet(file.fd, file.stat.st_dev)
                return reading(file).run()

        try:
            return await asyncio.to_thread(read)
        finally:
            is_cancelled.set()

    async def _dry_run(self, context: ExecutionContext, file_path: str, **options: Any) -> ToolResult:
        result = await self._execute(context, file_path, **options)
        if result.success:
            result.output = f"[Dry Run] {result.output}"
        return result


def _glance(workspace: Workspace, path: str, reading: Callable[[Handle], Reading]) -> ToolResult | None:
    """Read a small file that the kernel has in memory right here: to go to a thread and back takes longer than that.

    None where any step might wait, or the file needs a longer look.
    """
    file = workspace.open_cached(path)
    if file is None:
        return None
    with file:
        whole = file.read_at_once(_GLANCED_BYTES)
        return reading(file).glance(whole) if whole else None
