"""One look as a picture: for a report, or a page that shows what the command shows."""

import io
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme

from forge_tools.cli.top.screen import Screen
from forge_tools.errors import ConfigurationError

WIDTH = 100

_THEME = TerminalTheme(
    (22, 27, 34),
    (216, 222, 233),
    [(72, 79, 88), (255, 123, 114), (126, 200, 120), (227, 179, 65), (121, 172, 255), (210, 168, 255), (86, 196, 205), (216, 222, 233)],
)  # fmt: skip

_SVG = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">
<style>
.{unique_id}-matrix {{ font: {char_height}px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; }}
.{unique_id}-title {{ font: bold 18px sans-serif; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal"><rect width="{terminal_width}" height="{terminal_height}"/></clipPath>{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix" xml:space="preserve">
{matrix}
</g>
</g>
</svg>
"""
"""It names only fonts that are there: a page that fetches nothing shows it too."""


def save(screen: Screen, path: Path) -> None:
    """Write it as SVG.

    Raises:
        ConfigurationError: the file cannot be written.
    """
    console = Console(
        file=io.StringIO(), record=True, width=WIDTH, force_terminal=True, color_system="truecolor", highlight=False
    )
    console.print(screen, "")  # the last line is cut where its letters go below it
    svg = console.export_svg(title="forge-tools top", theme=_THEME, code_format=_SVG, unique_id="top")
    try:
        path.write_text("".join(f"{line.rstrip()}\n" for line in svg.splitlines()), encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}. Give --svg another file.") from error
