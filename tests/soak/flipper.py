"""A process that swaps, at full speed, what tools are about to touch: `python flipper.py WORKSPACE OUTSIDE`, until it is killed."""

import contextlib
import itertools
import os
import random
import stat
import sys
from collections.abc import Callable
from pathlib import Path


class Flipper:
    """Folder and link, file and pipe, a parent and its name: whoever looked a moment ago finds something else now.

    `d` is a folder or a link to the outside, `d/file` a file, a pipe or a link, `p/q` is sometimes `p2/q`.
    """

    def __init__(self, root: Path, outside: Path) -> None:
        self._root = root
        self._outside = outside
        self._numbers = itertools.count()
        os.chdir(root)

    def run(self) -> None:
        for number in itertools.count():
            for flip in (self._swap_folder, self._swap_file, self._move_parent):
                with contextlib.suppress(OSError):
                    flip()
            if number % 20 == 0:
                self.heal()

    def heal(self) -> None:
        """Put back what tools have deleted. Links are only looked at, so that nothing of ours goes outside."""
        with contextlib.suppress(OSError):
            if not is_kind("d", stat.S_ISDIR) and not is_kind("held", stat.S_ISDIR):
                remove("d")
                os.mkdir("d")
            if not is_kind("d", stat.S_ISDIR):
                remove("d")
                os.rename("held", "d")
            if not is_kind("link", stat.S_ISLNK):
                remove("link")
                os.symlink(random.choice((str(self._outside), os.path.relpath(self._outside))), "link")
            self._put("file", lambda name: write(name, "inside\n"))
            os.makedirs("p/q", exist_ok=True)
            write("p/q/file", "inside\n")

    def _swap_folder(self) -> None:
        os.rename("d", "held")
        os.rename("link", "d")
        os.rename("d", "link")
        os.rename("held", "d")

    def _swap_file(self) -> None:
        target = os.path.join("..", os.path.relpath(self._outside), "file")
        makes: tuple[Callable[[str], object], ...] = (
            os.mkfifo,
            lambda name: os.symlink(target, name),
            lambda name: write(name, "inside\n"),
        )
        self._put("file", random.choice(makes))

    def _move_parent(self) -> None:
        os.rename("p", "p2")
        os.rename("p2", "p")

    def _put(self, name: str, make: Callable[[str], object]) -> None:
        """Make something in the root and move it into `d` by a handle of the real folder."""
        fresh = f"fresh-{next(self._numbers)}"
        folder = os.open("d", os.O_DIRECTORY | os.O_NOFOLLOW | os.O_RDONLY)
        try:
            make(fresh)
            os.rename(fresh, name, dst_dir_fd=folder)
        finally:
            os.close(folder)
            remove(fresh)


def is_kind(path: str, check: Callable[[int], bool]) -> bool:
    try:
        return check(os.lstat(path).st_mode)
    except OSError:
        return False


def remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


def write(path: str, text: str) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o644), "w") as file:
        file.write(text)


if __name__ == "__main__":
    Flipper(Path(sys.argv[1]), Path(sys.argv[2])).run()
