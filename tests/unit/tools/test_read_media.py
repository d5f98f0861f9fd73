"""Read shows images and PDF files, decoded in a process with limited resources."""

import base64
import io
from collections.abc import Callable, Iterator
from pathlib import Path

import pypdf
import pytest
from PIL import Image as Pillow

from forge_tools.artifacts.media import find
from forge_tools.model import ToolResult
from forge_tools.sandbox import decoding
from forge_tools.sandbox.processes.spawner import Spawner
from forge_tools.sandbox.reach import Reach
from forge_tools.tool.executor import ToolExecutor
from forge_tools.tool.registry import ScopedRegistry
from forge_tools.tools.file.read import Read
from tests.part_tools import bomb, png
from tests.unit.tools.notebook.notebooks import code, notebook, written

Show = Callable[..., ToolResult]


@pytest.fixture
def executor(tmp_path: Path) -> ToolExecutor:
    registry = ScopedRegistry()
    registry.register(Read())
    return ToolExecutor(registry, reach=Reach(root=tmp_path))


def pdf(pages: int) -> bytes:
    """A document of blank pages, and a text on the first."""
    writer, buffer = pypdf.PdfWriter(), io.BytesIO()
    for _ in range(pages):
        writer.add_blank_page(100, 100)
    writer.write(buffer)
    return buffer.getvalue()


@pytest.mark.parametrize("form", ["PNG", "JPEG", "GIF", "WEBP"])
async def test_an_image_is_shown_as_it_is(executor: ToolExecutor, tmp_path: Path, form: str) -> None:
    path = tmp_path / f"a.{form.lower()}"
    Pillow.new("RGB", (30, 20), "red").save(path, form)

    result = await executor.call("Read", {"file_path": path.name})

    [image] = result.images
    assert (image.width, image.height, await image.bytes()) == (30, 20, path.read_bytes())
    assert result.output.startswith(f"{path.name}: image/{form.lower()}, 30 x 20 pixels, ")


async def test_a_large_image_is_shown_smaller_and_its_size_said(executor: ToolExecutor, tmp_path: Path) -> None:
    Pillow.new("RGB", (3200, 1600), "red").save(tmp_path / "a.webp")

    result = await executor.call("Read", {"file_path": "a.webp"})

    [image] = result.images
    assert (image.name, image.width, image.height) == ("a.jpg", 1568, 784)
    assert "3,200 x 1,600 pixels" in result.output
    assert "shown at 1,568 x 784" in result.output


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (bomb(), "it has 30,000 x 30,000 pixels; the limit is 64,000,000"),
        (png(300)[:-80], "image file is truncated"),
        (b"\x89PNG\r\n\x1a\n" + b"\0" * 99, "cannot identify image file"),
        (b"%PDF-1.4\nnothing more", "Stream has ended unexpectedly"),
    ],
)
async def test_what_cannot_be_decoded_says_why(executor: ToolExecutor, tmp_path: Path, data: bytes, why: str) -> None:
    (tmp_path / "a").write_bytes(data)

    result = await executor.call("Read", {"file_path": "a"})

    assert (result.success, result.error_code) == (False, "UNDECODABLE")
    assert why in str(result.error)


async def test_garbage_between_the_ends_of_an_image_is_found_by_who_decodes(
    executor: ToolExecutor, tmp_path: Path
) -> None:
    data = png()[:33] + bytes(range(256)) * 4 + png()[-12:]
    (tmp_path / "a.png").write_bytes(data)

    assert find(data, data[-64:], len(data)).kind == "image"
    assert not (await executor.call("Read", {"file_path": "a.png"})).success


async def test_svg_is_shown_as_text(executor: ToolExecutor, tmp_path: Path) -> None:
    (tmp_path / "a.svg").write_text("<svg onload='alert(1)'/>")

    result = await executor.call("Read", {"file_path": "a.svg"})

    assert (result.output.strip(), result.images) == ("1\t<svg onload='alert(1)'/>", ())


async def test_pages_of_a_pdf_are_read_a_few_at_a_time(executor: ToolExecutor, tmp_path: Path) -> None:
    (tmp_path / "a.pdf").write_bytes(pdf(30))

    begin = await executor.call("Read", {"file_path": "a.pdf"})
    end = await executor.call("Read", {"file_path": "a.pdf", "pages": "21-40"})

    assert begin.output.endswith("[pages 1-20 of 30; continue with pages=21-30]")
    assert end.output.endswith("[pages 21-30 of 30]")
    assert begin.metadata["pages"] == 30


async def test_of_a_pdf_of_thousands_of_pages_the_last_are_read_as_well(executor: ToolExecutor, tmp_path: Path) -> None:
    (tmp_path / "a.pdf").write_bytes(pdf(5_000))

    end = await executor.call("Read", {"file_path": "a.pdf", "pages": "4999-9000"})

    assert end.output.endswith("[page 5,000]\n\n\n[pages 4,999-5,000 of 5,000]"), end


@pytest.mark.parametrize("pages", ["0", "x", "3-2", "9-10"])
async def test_pages_that_are_not_there_are_refused(executor: ToolExecutor, tmp_path: Path, pages: str) -> None:
    (tmp_path / "a.pdf").write_bytes(pdf(2))

    assert (await executor.call("Read", {"file_path": "a.pdf", "pages": pages})).error_code == "VALIDATION_ERROR"


async def test_pages_are_shown_as_images_on_request(executor: ToolExecutor, tmp_path: Path) -> None:
    (tmp_path / "a.pdf").write_bytes(pdf(7))

    result = await executor.call("Read", {"file_path": "a.pdf", "pages": "2-7", "page_images": True})

    assert [(image.name, image.width) for image in result.images] == [(f"page-{n}.png", 200) for n in range(2, 7)]


@pytest.fixture
def change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Change the decoder: code to run in it before it decodes."""
    program, changed = Path(decoding.DECODER), tmp_path / "decoder.py"
    decoder = Spawner(program=(str(changed), "image"))

    def to(code: str) -> None:
        root = program.parents[2]
        text = program.read_text().replace("        limit()\n", f"        {code}\n        limit()\n")
        changed.write_text(f"import sys\nsys.path.append({str(root)!r})\n{text}")
        monkeypatch.setattr(decoding, "decoder", lambda what: decoder)

    yield to
    decoder.close()


async def test_without_its_library_read_says_which(
    executor: ToolExecutor, tmp_path: Path, change: Callable[[str], None]
) -> None:
    (tmp_path / "a.png").write_bytes(png())
    change("sys.modules['PIL'] = None")

    result = await executor.call("Read", {"file_path": "a.png"})

    assert result.error == "a.png cannot be shown: this worker lacks PIL. pip install 'forge-tools[media]'"


async def test_a_decoder_that_does_not_end_is_ended(
    executor: ToolExecutor, tmp_path: Path, change: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.png").write_bytes(png())
    (tmp_path / "b.png").write_bytes(png(900))
    hang = f"os.symlink(str(os.getpid()), {str(tmp_path / 'pid')!r}); __import__('time').sleep(60)"
    change(f"if os.fstat(0).st_size > 200: {hang}")
    assert (await executor.call("Read", {"file_path": "a.png"})).success
    monkeypatch.setattr(decoding, "SECONDS", 1)

    result = await executor.call("Read", {"file_path": "b.png"})

    assert "decoding it took longer than 1s" in str(result.error)
    assert not Path("/proc", (tmp_path / "pid").readlink()).exists()


async def test_a_decoder_that_breaks_breaks_nothing_else(
    executor: ToolExecutor, tmp_path: Path, change: Callable[[str], None]
) -> None:
    (tmp_path / "a.png").write_bytes(png())
    (tmp_path / "b.png").write_bytes(png(900))
    change("if os.fstat(0).st_size > 200: os.kill(os.getpid(), 11)")

    results = [await executor.call("Read", {"file_path": name}) for name in ("b.png", "a.png")]

    assert "its decoder ended with signal 11" in str(results[0].error)
    assert results[1].success, results[1].error


async def test_what_decodes_has_no_handles_but_its_own(
    executor: ToolExecutor, tmp_path: Path, change: Callable[[str], None]
) -> None:
    (tmp_path / "a.png").write_bytes(png())
    change("raise OSError(sorted(os.listdir('/proc/self/fd')))")

    result = await executor.call("Read", {"file_path": "a.png"})

    assert "['0', '1', '2', '3']" in str(result.error)  # the last lists the folder


async def test_a_notebook_is_shown_as_its_cells_with_their_images(executor: ToolExecutor, tmp_path: Path) -> None:
    plot = {"output_type": "display_data", "data": {"image/png": base64.b64encode(png()).decode()}, "metadata": {}}
    (tmp_path / "n.ipynb").write_bytes(written(notebook(code("plot()", outputs=[plot]), code("2"))))

    result = await executor.call("Read", {"file_path": "n.ipynb"})
    lines = await executor.call("Read", {"file_path": "n.ipynb", "offset": 1})

    [image] = result.images
    assert (image.name, await image.bytes()) == ("cell-0-output-0.png", png())
    assert result.output.startswith('<cell id="c0de" index=0')
    assert result.metadata["files_accessed"] == ["n.ipynb"]
    assert lines.output.startswith("     1\t{")


async def test_what_only_has_the_name_of_a_notebook_is_text(executor: ToolExecutor, tmp_path: Path) -> None:
    (tmp_path / "n.ipynb").write_text("no notebook")

    assert (await executor.call("Read", {"file_path": "n.ipynb"})).output == "     1\tno notebook"
