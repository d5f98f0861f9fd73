"""The program that decodes images and documents: each in its own process, with little memory and little time.

Started like the launcher, as `python -I -S decoder.py KIND 0`, it takes requests and forks for each: importing the
libraries takes longer than decoding most files. The fork reads one file from its standard input, which may be crafted to
break it, and writes a line of JSON and then any bytes.
"""

import io
import json
import os
import resource
import site
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from importlib import import_module
from typing import IO, Any
from urllib.parse import urljoin

if __name__ == "__main__":  # -I and -S omit our own package and what is installed
    sys.path.append(__file__.rpartition("/forge_tools/")[0])
    site.main()

from forge_tools.sandbox.processes.launcher import prepare_child, serve
from forge_tools.sandbox.walls.privileges import harden

MEMORY_BYTES = 1 << 30
CPU_SECONDS = 20
MOST_PIXELS = 64_000_000
RENDERED_SIDE = 1400
UNSEEN = (
    "script, style, template, noscript, iframe, svg, nav, aside, form, [hidden], [aria-hidden=true], [style*='display:none' i], "
    "[style*='display: none' i]"
)
"""What a page contains but does not show, or repeats on every page of its kind."""


def start(kind: str, command: Sequence[bytes], _: Mapping[bytes, bytes], streams: Sequence[int]) -> int:
    """Fork a process that decodes its standard input; return its pid. `command` ends with what it is told, as JSON."""
    supervisor, child = os.getpid(), os.fork()
    if child == 0:
        code = 1
        try:
            prepare_child(supervisor)
            for target, stream in enumerate(streams):
                os.dup2(stream, target)
            os.closerange(3, 1 << 20)
            decode(kind, json.loads(command[-1]))
            code = 0
        finally:
            os._exit(code)
    return child


def decode(kind: str, told: dict[str, Any]) -> None:
    """Decode the standard input. Errors are answers, too."""
    try:
        limit()
        with os.fdopen(0, "rb") as file:
            file.seek(0)
            facts, data = KINDS[kind](file, **told)
    except ModuleNotFoundError as error:
        facts, data = {"missing": error.name}, b""
    except MemoryError:
        facts, data = {"error": f"decoding it takes more than {MEMORY_BYTES >> 20:,} MiB of memory"}, b""
    except Exception as error:  # noqa: BLE001  libraries raise anything for bytes that are not what they seem
        said = str(error).partition(" <")[0]  # without the repr of the file, which Pillow quotes
        facts, data = {"error": f"{type(error).__name__}: {said}"[:300]}, b""
    with os.fdopen(1, "wb") as output:
        output.write(json.dumps(facts).encode() + b"\n" + data)


def limit() -> None:
    """Limit the resources for decoding; exceeding them ends in a MemoryError, or ends this process."""
    for what, most in (
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_CPU, CPU_SECONDS),
        (resource.RLIMIT_FSIZE, 0),
    ):
        resource.setrlimit(what, (most, most))


def image(file: IO[bytes], side: int, most_bytes: int) -> tuple[dict[str, Any], bytes]:
    """Decode an image; one that exceeds a square of `side`, or the byte limit, is scaled down."""
    from PIL import Image

    Image.MAX_IMAGE_PIXELS = None  # checked right here
    size = os.fstat(file.fileno()).st_size
    with Image.open(file, formats=("PNG", "JPEG", "GIF", "WEBP")) as picture:
        width, height = picture.size
        if width * height > MOST_PIXELS:
            return {"error": f"it has {width:,} x {height:,} pixels; the limit is {MOST_PIXELS:,}"}, b""
        facts: dict[str, Any] = {"width": width, "height": height, "frames": getattr(picture, "n_frames", 1)}
        picture.load()
        if max(width, height) <= side and size <= most_bytes:
            return facts, b""
        has_colours = picture.mode in {"RGBA", "LA", "P", "PA"}
        smaller = picture.convert("RGBA" if has_colours else "RGB")
        smaller.thumbnail((side, side))
        data = packed(smaller, "PNG" if has_colours or picture.format == "PNG" else "JPEG")
        if len(data) > most_bytes:
            data = packed(smaller.convert("RGB"), "JPEG")
    return facts | {"shown": smaller.size}, data


def packed(picture: Any, form: str) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, form)
    return buffer.getvalue()


def text(file: IO[bytes], first: int, last: int, most_chars: int) -> tuple[dict[str, Any], bytes]:
    """Return the text of pages of a PDF, as far as it fits."""
    from pypdf import PdfReader

    found = PdfReader(file)
    total, said, used, shown = len(found.pages), list[str](), 0, first - 1
    for number in range(first, min(last, total) + 1):
        page = found.pages[number - 1].extract_text().strip()
        if said and used + len(page) > most_chars:
            break
        said.append(f"[page {number:,}]\n{page[:most_chars]}")
        used, shown = used + len(page), number
    return {"pages": total, "last": shown}, "\n\n".join(said).encode(errors="replace")


def pages(file: IO[bytes], first: int, last: int) -> tuple[dict[str, Any], bytes]:
    """Return pages of a PDF as images, one after the other; the facts hold their sizes."""
    import pypdfium2

    document, images = pypdfium2.PdfDocument(file), list[bytes]()
    for number in range(first - 1, min(last, len(document))):
        page = document[number]
        scale = min(2.0, RENDERED_SIDE / max(*page.get_size(), 1))  # whatever size the page claims
        images.append(packed(page.render(scale=scale).to_pil(), "PNG"))
    facts = {"pages": len(document), "last": first + len(images) - 1, "sizes": list(map(len, images))}
    return facts, b"".join(images)


def page(file: IO[bytes], url: str, charset: str, form: str, selector: str | None) -> tuple[dict[str, Any], bytes]:
    """Decode a page of HTML as Markdown, text or a list of links, without hidden content."""
    from selectolax.lexbor import LexborHTMLParser, SelectolaxError

    tree = LexborHTMLParser(file.read().decode(charset, "replace"))
    title = tree.css_first("title")
    facts: dict[str, Any] = {"title": " ".join(title.text().split()) if title else ""}
    base = tree.css_first("base[href]")
    root = joined(url, base.attributes["href"] or "") if base else url
    for hidden in tree.css(UNSEEN):
        hidden.decompose()
    resolved = cache(partial(joined, root))
    for attribute in ("href", "src"):
        for link in tree.css(f"[{attribute}]"):
            target = link.attributes[attribute] or ""
            link.attrs[attribute] = "" if target.startswith("data:") else resolved(target)
    try:
        parts = tree.css(selector) if selector else [tree.css_first("main, article") or tree.body]
    except SelectolaxError:
        return {"error": f"'{selector}' is not a CSS selector"}, b""
    found = [part for part in parts if part is not None]
    if form == "links":
        links = {link.attributes["href"]: link.text() for part in found for link in part.css("a[href]")}
        return facts, "\n".join(f"- [{' '.join(said.split())}]({to})" for to, said in links.items()).encode()
    text = "\n\n".join(part.text(separator="\n", strip=True) for part in found)
    if form == "text":
        return facts, text.encode()
    markdown = _markdown("".join(part.html or "" for part in found))
    return facts, (markdown if len(markdown) * 2 >= len(text) else text).encode()


def joined(base: str, target: str) -> str:
    """Return the URL of a link on a page of that base; one that is no URL stays as it is."""
    try:
        return urljoin(base, target)
    except ValueError:
        return target


def _markdown(html: str) -> str:
    from html_to_markdown import ConversionOptions, convert

    # Metadata that nobody reads, and marks that Markdown lacks, would each rule out its fast single pass. That pass
    # in turn cannot begin a list below 1.
    way = "tier2" if 'start="0"' in html or 'start="-' in html else "auto"
    options = ConversionOptions(extract_metadata=False, highlight_style="none", tier_strategy=way)
    try:
        return (convert(html, options).content or "").strip()
    except Exception:  # noqa: BLE001  what it cannot convert is shown as text
        return ""


KINDS: dict[str, Callable[..., tuple[dict[str, Any], bytes]]] = {
    one.__name__: one for one in (image, text, pages, page)
}
LIBRARIES = {
    "image": ("PIL.Image", "PIL.PngImagePlugin", "PIL.JpegImagePlugin", "PIL.GifImagePlugin", "PIL.WebPImagePlugin"),
    "text": ("pypdf",),
    "pages": ("pypdfium2", "PIL.Image", "PIL.PngImagePlugin"),
    "page": ("selectolax.lexbor", "html_to_markdown"),
}
"""What is imported before the first request; a fork says what is missing."""

if __name__ == "__main__":
    harden()
    for library in LIBRARIES[sys.argv[1]]:
        with suppress(ImportError):
            import_module(library)
    serve((), partial(start, sys.argv[1]))
