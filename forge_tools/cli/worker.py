"""`forge-tools worker`: becomes the worker, with the same process id; its options are those of `workers`."""

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import NoReturn

import typer

import forge_tools
from forge_tools.cli.face import App, standard_output
from forge_tools.errors import ConfigurationError

app = App()


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []})
def worker(context: typer.Context) -> NoReturn:
    argv = worker_argv(context.args)
    standard_output().flush()  # exec drops what is buffered
    os.execv(sys.executable, argv)  # noqa: S606 no shell is the point: one process id, clean signals


def worker_argv(arguments: Sequence[str]) -> list[str]:
    require_own_workers()
    # -P: else a folder `workers` of the user's own would be imported from the current folder.
    return [sys.executable, "-P", "-m", "workers", *arguments]


def require_own_workers() -> None:
    """Check what `python -P -m workers` imports: the package that came with this one, or a namesake before it."""
    ours = Path(forge_tools.__file__).resolve().parents[1] / "workers"
    found = _found()
    if found is None:
        raise ConfigurationError(
            f"Python finds no package `workers`; it belongs beside {ours.parent / 'forge_tools'}. "
            "Install forge-tools again (in a checkout: pip install -e .)."
        )
    place = _place(found)
    if place != ours:
        raise ConfigurationError(
            f"The name `workers` is taken by {place}, which comes before {ours} on sys.path. Rename it, remove its "
            "folder from PYTHONPATH, or uninstall the package that it came with."
        )


def _found() -> ModuleSpec | None:
    # -P leaves out the folder that Python puts first: the script's, or the current one for `python -m`.
    path = sys.path if sys.flags.safe_path else sys.path[1:]
    # Editable installs of some tools are not a path but a finder.
    others = [one for one in sys.meta_path if one is not PathFinder and hasattr(one, "find_spec")]
    found = (one.find_spec("workers", None) for one in others)
    return PathFinder.find_spec("workers", path) or next(filter(None, found), None)


def _place(found: ModuleSpec) -> Path:
    if found.origin is not None:
        file = Path(found.origin).resolve()
        return file.parent if file.name == "__init__.py" else file
    # A folder without an __init__.py has no origin.
    return Path(next(iter(found.submodule_search_locations or ["an unknown place"]))).resolve()
