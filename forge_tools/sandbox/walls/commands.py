"""The walls around one command, put on by its supervisor: part of them before the command is known.

The standard library alone, and little of it: launchers load this.

Words say what they are: the tier, the network, then what is shown, each a word and a path; no words mean no walls. Behind
Landlock `ro:` and `rw:` open what is there, `own:` makes a folder that goes with the command, and `ln:` a link in it to the
same place below `home:`. What namespaces make of these words is in `namespaces.py`.
"""

import contextlib
import errno
import fcntl
import os
import socket
import stat
from collections.abc import Callable, Iterator, Sequence
from threading import Thread

from forge_tools.sandbox.walls import landlock, namespaces
from forge_tools.sandbox.walls.cgroups import Cgroup

NAMESPACE, LANDLOCK = "namespace", "landlock"


class Enclosure:
    """The walls around one command: none. If the machine refuses those of another kind, nothing starts."""

    def __init__(self, words: Sequence[str] = (), refusal: OSError | None = None) -> None:
        self._network, *self._shown = words[1:] or (namespaces.HOST,)
        self._refusal = refusal

    def prepare(self, group: Cgroup) -> None:
        """Do what is possible before the command is known, in the group that bounds it."""
        try:
            if self._refusal is None:
                group.enter()
                self._prepare()
        except OSError as error:
            self._refusal = error

    def _prepare(self) -> None:
        pass

    def give_way_out(self, control: int) -> None:
        """Hand the socket of the proxy to the owner of the control socket, if the network has one."""

    def enter(self, folder: int, words: Sequence[str]) -> None:
        """Go to the folder of the command. Behind walls `words` are its path, which must lead there, and what else to show."""
        if self._refusal is not None:
            raise self._refusal
        os.fchdir(folder)

    def start(self, spawn: Callable[[], int], stdin: int) -> int:
        """Return what `spawn` does, which starts the command with that standard input."""
        return spawn()

    def leave(self) -> None:
        """Remove what the command, which is gone, had for itself."""


class _Namespaces(Enclosure):
    """The supervisor is the first process of its namespaces."""

    _way_out: socket.socket | None = None

    def _prepare(self) -> None:
        if namespaces.has_proxy(self._network):
            self._way_out = namespaces.open_way_out()
        namespaces.furnish(self._shown)

    def give_way_out(self, control: int) -> None:
        if self._way_out is not None:
            with self._way_out, socket.socket(fileno=os.dup(control)) as line, contextlib.suppress(OSError):
                socket.send_fds(line, [b"listening 0\n"], [self._way_out.fileno()])  # an owner that is gone needs none

    def enter(self, folder: int, words: Sequence[str]) -> None:
        if self._refusal is not None:
            raise self._refusal
        namespaces.show(words[1:])
        namespaces.close_off()
        namespaces.go_to(words[0], folder)


class _Landlock(Enclosure):
    """The thread that starts the command has them, and what it starts. The supervisor stays outside: it signals and counts."""

    _lock = -1
    _rules: landlock.Ruleset

    def _prepare(self) -> None:
        landlock.prepare()
        self._rules = landlock.Ruleset(network=self._network == namespaces.HOST)
        self._rules.allow(_of("ro", self._shown), (*landlock.DEVICES, *_of("rw", self._shown)))

    def enter(self, folder: int, words: Sequence[str]) -> None:
        super().enter(folder, words)
        self._shown += words[1:]
        for path in _of("own", self._shown):
            self._lock = make_locked(path)
            for home in _of("home", self._shown):
                for target, link in ((f"{home}/{below}", f"{path}/{below}") for below in _of("ln", self._shown)):
                    if os.path.lexists(target) and not os.path.lexists(link):  # a folder above may be linked already
                        os.makedirs(os.path.dirname(link), mode=0o700, exist_ok=True)
                        os.symlink(target, link)
        self._rules.allow(_of("ro", words), (*_of("rw", words), *_of("own", self._shown)))

    def start(self, spawn: Callable[[], int], stdin: int) -> int:
        ended: list[int | OSError] = []
        if stat.S_ISREG(os.fstat(stdin).st_mode):
            self._rules.allow((f"/proc/self/fd/{stdin}",), ())  # so that /dev/stdin can be opened

        def work() -> None:
            try:
                self._rules.enclose()
                ended.append(spawn())
            except OSError as error:
                ended.append(error)

        thread = Thread(target=work)
        try:
            thread.start()
        except RuntimeError as error:  # no more threads for this user
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from error
        thread.join()
        self._rules.close()
        if isinstance(ended[0], OSError):
            raise ended[0]
        return ended[0]

    def leave(self) -> None:
        for path in _of("own", self._shown) if self._lock >= 0 else ():
            _remove(path)


def enclosure(words: Sequence[str], refusal: OSError | None = None) -> Enclosure:
    """Return the walls that these words describe; `refusal` says why the machine has already refused them."""
    kind = {NAMESPACE: _Namespaces, LANDLOCK: _Landlock}[words[0]] if words else Enclosure
    return kind(words, refusal)


def fork(words: Sequence[str]) -> tuple[int, OSError | None]:
    """Fork like `os.fork`, into namespaces if the walls are such; return also why the machine refused, if it did."""
    if words and words[0] == NAMESPACE:
        try:
            return namespaces.fork(network=words[1]), None
        except OSError as error:
            return os.fork(), error
    return os.fork(), None


def make_locked(path: str) -> int:
    """Make a folder and lock it, which shows that its process lives (`spools.remove_leftovers`); it may be removed before."""
    while True:
        os.mkdir(path, 0o700)
        with contextlib.suppress(FileNotFoundError):
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            with contextlib.suppress(OSError):  # without locks, nobody can mistake it for abandoned
                fcntl.flock(folder, fcntl.LOCK_EX)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.lstat(path), os.fstat(folder)):
                    return folder
            os.close(folder)


def _of(kind: str, words: Sequence[str]) -> Iterator[str]:
    return (path for word, _, path in (entry.partition(":") for entry in words) if word == kind)


def _remove(folder: str) -> None:
    for path, folders, files in os.walk(folder, topdown=False):
        for name in (*folders, *files):
            with contextlib.suppress(OSError):  # closed by the command itself: the next one to start tries again
                remove = os.rmdir if name in folders and not os.path.islink(f"{path}/{name}") else os.unlink
                remove(f"{path}/{name}")
    with contextlib.suppress(OSError):
        os.rmdir(folder)
