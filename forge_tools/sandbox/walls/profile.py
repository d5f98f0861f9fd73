"""What is open behind walls: to one process, which puts them on once, for good; and to the commands that tools start."""

import os
import site
import sys
import sysconfig
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from forge_tools.sandbox.walls import landlock

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc", "/opt", "/nix/store", "/proc", "/sys")
"""What programs need to run, and may read."""

LINKED = ("/etc/resolv.conf", "/etc/localtime", "/var/lib/ca-certificates", "/home/linuxbrew/.linuxbrew")
"""The same, which lies elsewhere on some systems."""

SHARED_MEMORY = "/dev/shm"  # noqa: S108  the system's, by which processes of one program share memory

TOOLCHAINS = (
    ".asdf", ".bun", ".cargo/bin", ".config/git/config", ".deno", ".gitconfig", ".local/bin", ".local/lib", ".local/pipx",
    ".local/share/mise", ".local/share/pipx", ".local/share/uv", ".nvm", ".pyenv", ".rbenv", ".rustup", ".sdkman", ".volta",
    "anaconda3", "go/bin", "miniconda3",
)  # fmt: skip
"""What commands see of the user's home, if it exists: programs, what they need to run, and the configuration of git."""

_OURS = Path(__file__).parents[2]
_OWN = {"proc", "dev"}  # of namespaces

_applied: "Profile | None" = None


@dataclass(frozen=True, slots=True)
class Profile:
    """What is open in addition to the devices, and whether the network is."""

    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    network: bool = False

    def apply(self, scratch: str) -> None:
        """Wall this thread, and what it starts from then on; below `scratch` it may write, too."""
        global _applied  # noqa: PLW0603  it is the process that is walled, once
        with closing(landlock.Ruleset(network=self.network)) as rules:
            rules.allow(self.read, (*landlock.DEVICES, *self.write, scratch))
            rules.enclose()
        _applied = self


def applied() -> Profile | None:
    """The walls of this process."""
    return _applied


def needed_to_run(closed: Iterable[str]) -> tuple[str, ...]:
    """Return what every program here reads: the system except what is `closed`, Python, and where it imports from.

    A folder on the import path in which something closed lies is not opened at all: nothing more can be imported from it.
    """
    shut = _real(closed)
    system = [part for folder in (*SYSTEM, *LINKED) for part in parts(os.path.realpath(folder), shut)]
    imports = [path for path in _real(_import_paths()) if not _holds_any(path, shut)]
    return tuple(_outermost(dict.fromkeys((*system, *imports))))


def parts(folder: str, shut: tuple[str, ...]) -> Iterator[str]:
    """Yield the folder, or what lies in it except what is `shut`; all are real paths."""
    if not _holds_any(folder, shut):
        yield folder
    elif folder not in shut and os.path.isdir(folder):
        for name in os.listdir(folder):
            yield from parts(f"{folder}/{name}", shut)


def shared_memory(closed: Iterable[str]) -> tuple[str, ...]:
    """Return where it is, unless something closed lies there, too."""
    return () if _holds_any(SHARED_MEMORY, _real(closed)) else (SHARED_MEMORY,)


def of_machine(environment: dict[str, str], closed: Iterable[str], opened: Iterable[str]) -> list[str]:
    """List what every command sees, in the form that `namespaces` reads; `closed` is covered, `opened` has paths like `/data:ro`.

    `environment` is that of the commands: their `HOME` is an empty folder with the toolchains in it, and the folders on their
    `PATH` are visible.
    """
    shut, home = _real(closed), os.path.realpath(environment["HOME"])
    wanted = [*(path for path in SYSTEM if path[1:] not in _OWN), *LINKED, sys.prefix, sys.base_prefix]
    wanted += _programs(environment)
    whole = [path for path in _real(wanted) if path in SYSTEM or not _holds_any(path, (home, *shut))]
    shown = [("ro", path) for path in _outermost(whole)]
    shown += [("hide", path) for path in shut]
    if home != "/":
        shown.append(("own", home))
    asked = [(path[-2:], os.path.realpath(path[:-3])) for path in opened]
    links = [link for path in (*wanted, environment["HOME"]) for link in _links_to(path)]
    return [*_in_order(shown), *_in_order(asked), *(f"ln:{link}" for link in dict.fromkeys(links))]


def behind_landlock(environment: dict[str, str], closed: Iterable[str], opened: Iterable[str]) -> list[str]:
    """List what every command reaches where nothing can be covered: the same without what has something `closed` in it.

    The toolchains, and what of the home is `opened`, are linked into the home of each command.
    """
    shut, home = tuple(closed), environment["HOME"]
    programs = [path for path in _programs(environment) if not _holds_any(os.path.realpath(path), _real((home, *shut)))]
    asked = [(path[-2:], os.path.normpath(path[:-3])) for path in opened]
    shown = [f"ro:{path}" for path in (*needed_to_run(shut), *programs)] + [f"{how}:{path}" for how, path in asked]
    shown += [f"rw:{path}" for path in shared_memory(shut)]
    if home == "/":
        return shown
    below = {os.path.relpath(path, home) for path in (*programs, *(path for _, path in asked)) if _is_below(path, home)}
    return [*shown, f"home:{home}", *(f"ln:{path}" for path in sorted(below))]


def of_workspace(roots: Sequence[tuple[str, bool]], hidden: Iterable[str], cache: str) -> list[str]:
    """List what one command sees in addition: its workspace's roots (path, is read-only) except what is `hidden`, and its cache."""
    places = [place for path, is_read_only in roots for place in _root(os.path.realpath(path), is_read_only)]
    covered: list[tuple[str, str]] = []
    for path in _real(hidden):
        if around := [place for place in places if _is_below(path, place[1])]:
            word, root = max(around, key=lambda place: len(place[1]))
            # A mount point cannot be moved. Without one, a command could move the folder, and a later command find what was covered.
            above = [str(folder) for folder in Path(path).parents if _is_below(str(folder), root)]
            covered += [("rw", folder) for folder in above if word == "rw"]
            covered.append(("hide", path))
    links = [f"ln:{link}" for path, _ in roots for link in _links_to(path)]
    return [*links, *_in_order([*places, *covered]), *([f"rw:{cache}"] if cache else [])]


def _import_paths() -> Iterator[str]:
    """Ours are named apart: the folder in which they lie may hold workspaces, too."""
    yield from (sys.prefix, sys.base_prefix, sys.exec_prefix, os.path.dirname(os.path.realpath(sys.executable)))
    yield from (*site.getsitepackages(), sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"))
    yield from (str(_OURS), str(_OURS.parent / "workers"))
    yield from (path for path in sys.path if path)  # an empty one is the current folder, which is not the interpreter's


def _programs(environment: dict[str, str]) -> list[str]:
    folders = [path for path in environment["PATH"].split(":") if path.startswith("/")]
    return [*(os.path.join(environment["HOME"], name) for name in TOOLCHAINS), *folders]


def _root(path: str, is_read_only: bool) -> Iterator[tuple[str, str]]:
    """Show that root; if it is `/`, everything in it except what namespaces have of their own."""
    word = "ro" if is_read_only else "rw"
    if path != "/":
        yield word, path
        return
    for name in os.listdir("/"):
        if name not in _OWN and not os.path.islink(f"/{name}"):
            yield word, f"/{name}"


def _links_to(path: str) -> Iterator[str]:
    here = "/"
    for part in os.path.abspath(path).strip("/").split("/"):
        step = os.path.join(here, part)
        if os.path.islink(step):
            yield step
            yield from _links_to(os.path.join(here, os.readlink(step)))
            step = os.path.realpath(step)
        here = step


def _in_order(places: Iterable[tuple[str, str]]) -> list[str]:
    """Sort them so that a path comes after the folders in which it lies."""
    return [f"{word}:{path}" for word, path in sorted(dict.fromkeys(places), key=lambda place: place[1].count("/"))]


def _real(paths: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(map(os.path.realpath, paths)))


def _holds_any(folder: str, others: Iterable[str]) -> bool:
    """Whether one of the others is that folder, or lies in it."""
    return folder == "/" or any(f"{other}/".startswith(f"{folder}/") for other in others)


def _outermost(paths: Collection[str]) -> list[str]:
    return [path for path in paths if not any(_is_below(path, other) for other in paths)]


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(f"{folder.rstrip('/')}/")
