"""`forge-tools artifact`: write all of a long output that was kept, or a page of it."""

import base64
import codecs
import os
import sys
from typing import Annotated, Any

from typer import Argument, Option

from forge_tools.cli.database import with_store
from forge_tools.cli.face import App, Face
from forge_tools.cli.text import printable
from forge_tools.model import ArtifactPage, PageWish
from forge_tools.model.artifacts import PAGE_BYTES, PAGE_LINES
from forge_tools.storage import Store

app = App()


@app.command()
def artifact(
    face: Face,
    handle: Annotated[str, Argument(metavar="HANDLE", help="artifact://..., as a shortened output names it.")],
    *,
    offset: Annotated[int | None, Option(min=1, help="Begin with this line; the first is 1.")] = None,
    limit: Annotated[int | None, Option(min=1, help="How many lines at most.", show_default=f"{PAGE_LINES:,}")] = None,
    byte: Annotated[int | None, Option(min=0, help="Begin with this byte instead; the first is 0.")] = None,
    max_bytes: Annotated[
        int | None, Option(min=1, help="How many bytes at most.", show_default=f"{PAGE_BYTES:,}")
    ] = None,
) -> None:
    """Write an artifact to standard output: its bytes as they were kept, to a terminal without what could harm it.

    All of it, or with any of the options a page; then the error stream says where to go on. As JSON always a page.
    """
    is_paged = face.is_json or any(given is not None for given in (offset, limit, byte, max_bytes))
    wish = PageWish(offset=offset, byte=byte, limit=limit, max_bytes=max_bytes)

    async def page(store: Store) -> ArtifactPage:
        return await store.artifacts.page(await store.artifacts.named(handle), wish)

    try:
        if is_paged:
            _show(face, with_store(page))
        else:
            with_store(lambda store: _copy(store, handle, is_terminal=face.out.is_terminal))
    except BrokenPipeError:  # whoever reads it has seen enough; nothing may be written at exit either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


async def _copy(store: Store, handle: str, *, is_terminal: bool) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    async for chunk in store.artifacts.contents(handle):
        if is_terminal:
            sys.stdout.write(printable(decoder.decode(chunk)))
        else:
            sys.stdout.buffer.write(chunk)
    sys.stdout.write(decoder.decode(b"", final=True))  # half a character at the end
    sys.stdout.flush()


def _show(face: Face, page: ArtifactPage) -> None:
    if face.is_json:
        face.document(_document(page))
        return
    if face.out.is_terminal:
        sys.stdout.write(printable(page.text))
    else:
        sys.stdout.buffer.write(page.data)
    sys.stdout.flush()
    if page.next:
        ((name, value),) = page.next.items()
        face.note(f"[bytes {page.start:,}-{page.end:,} of {page.size:,}; go on with --{name} {value}]")


def _document(page: ArtifactPage) -> dict[str, Any]:
    names = ("handle", "size", "start", "end", "first_line", "lines", "next")
    facts = {name: getattr(page, name) for name in names}
    try:
        return facts | {"text": page.data.decode()}
    except UnicodeDecodeError:
        return facts | {"base64": base64.b64encode(page.data).decode()}
