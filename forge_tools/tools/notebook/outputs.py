"""What a cell has put out: bounded text of streams, errors, tables, and the names of what is no text; and its images."""

import base64
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from forge_tools.artifacts.media import IMAGES, media_type
from forge_tools.model import Image
from forge_tools.tools.file.text import visible

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_TEXTS = ("text/plain", "text/markdown", "text/latex", "text/html", "application/json")
_WIDGET = "application/vnd.jupyter.widget-view+json"
_KB = 1024


def render_outputs(outputs: Any, limit: int) -> str:
    """Render the outputs of a cell within `limit` characters: the head, the tail, and how much is left out between."""
    if not isinstance(outputs, list):
        return ""
    texts = [text.rstrip("\n") for output in outputs for text in _texts(output)]
    return visible(clip("\n".join(text for text in texts if text), limit))


def images_of(outputs: Any, cell: int) -> list[Image]:
    """The images among the outputs of a cell that are what they are said to be."""
    data = [one.get("data") for one in outputs if isinstance(one, dict)] if isinstance(outputs, list) else []
    found = [_bytes(one[mime]) for one in data if isinstance(one, dict) for mime in one if mime in IMAGES]
    shown = [(one, media_type(one)) for one in found if media_type(one) in IMAGES]
    return [Image(one, f"cell-{cell}-{n}.{kind.rpartition('/')[2]}") for n, (one, kind) in enumerate(shown, 1)]


def media_part(mime: str, data: Any) -> str:
    """Stand for media in an output: their type and size."""
    text = _joined(data)
    size = len(text) * 3 // 4 if mime != "image/svg+xml" else len(text)
    return f"[{mime} {f'{round(size / _KB):,} KB' if size >= _KB else f'{size} bytes'}]"


def clip(text: str, limit: int) -> str:
    """Keep 40 % of the limit from the head and 60 % from the tail."""
    if len(text) <= limit:
        return text
    head = limit * 2 // 5
    tail = limit - head
    omitted = len(text) - limit
    return f"{text[:head]}\n[... {omitted:,} characters left out; pass a larger max_output_chars ...]\n{text[-tail:]}"


def plain(text: str) -> str:
    """Text as a terminal would leave it: no colours, and of a line that was written over the last state."""
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    if "\r" not in text:
        return text
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))


def _texts(output: Any) -> Iterator[str]:
    kind = output.get("output_type") if isinstance(output, dict) else None
    if kind == "stream":
        yield plain(_joined(output.get("text")))
    elif kind == "error":
        trace = plain("\n".join(map(_joined, output.get("traceback") or ())))
        yield trace or plain(f"{output.get('ename')}: {output.get('evalue')}")
    elif kind in ("display_data", "execute_result") and isinstance(output.get("data"), dict):
        yield from _data(output["data"])
    else:
        yield f"[output of unknown type {str(kind)[:40]}]"


def _data(data: Mapping[str, Any]) -> Iterator[str]:
    """One output in several types: all its media, and of its texts the plainest."""
    if isinstance(widget := data.get(_WIDGET), dict):
        yield f"[widget {str(widget.get('model_id'))[:64]}]"
    for mime, value in data.items():
        if mime not in _TEXTS and mime != _WIDGET:
            yield media_part(mime, value)
    for mime in [one for one in _TEXTS if one in data][:1]:
        value = data[mime]
        yield json.dumps(value, ensure_ascii=False) if mime == "application/json" else plain(_joined(value))


def _joined(value: Any) -> str:
    if isinstance(value, list):
        return "".join(map(str, value))
    return value if isinstance(value, str) else "" if value is None else json.dumps(value)


def _bytes(data: Any) -> bytes:
    try:
        return base64.b64decode(_joined(data))
    except ValueError:
        return b""
