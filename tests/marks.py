"""What a body leaves in a file when it starts, so that tests count starts outside SQL."""

from pathlib import Path
from tempfile import NamedTemporaryFile


def leave_mark(mark: str, what: object) -> int:
    """Add a line, and return how many there are. The file appears with its first: whoever sees it may kill us at once."""
    path, line = Path(mark), f"{what}\n"
    with NamedTemporaryFile("w", dir=path.parent) as first:
        first.write(line)
        first.flush()
        try:
            path.hardlink_to(first.name)
        except FileExistsError:
            with path.open("a") as file:
                file.write(line)
    return len(path.read_text().splitlines())
