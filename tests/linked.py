"""Distributions of this environment in another one, as links to files that are compiled already: much faster than an installation.

`python -m tests.linked ENVIRONMENT CONSTRAINTS` links those of the file that are here in just that version.
"""

import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def link(found: Distribution, site: Path) -> None:
    """Have a distribution of this environment in that folder of packages; its programs only if they need no Python."""
    for file in found.files or ():
        source, place = Path(str(found.locate_file(file))), site / file
        is_wanted = "__pycache__" not in file.parts if ".." not in file.parts else _is_program(source)
        if is_wanted and not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(source)
            compiled = source.with_name("__pycache__")
            if compiled.is_dir() and not (place.parent / "__pycache__").exists():
                (place.parent / "__pycache__").symlink_to(compiled)


def _is_program(file: Path) -> bool:
    """Whether it runs without the Python that its first line names, as ripgrep does."""
    return file.parent.name == "bin" and not file.read_bytes().startswith(b"#!")


def main(environment: Path, constraints: Path) -> None:
    """Link what both have in the same version."""
    here = {canonicalize_name(one.name): one for one in distributions()}
    [site] = environment.glob("lib/*/site-packages")
    lines = [line for line in constraints.read_text().splitlines() if line and not line.startswith("#")]
    for wanted in map(Requirement, lines):
        found = here.get(canonicalize_name(wanted.name))
        if found and wanted.specifier.contains(found.version) and (not wanted.marker or wanted.marker.evaluate()):
            link(found, site)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
