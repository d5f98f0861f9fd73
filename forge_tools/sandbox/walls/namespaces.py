"""Namespaces: processes in them see only the part of this machine that they are shown, and end with the first of them.

The standard library alone, and little of it: launchers make them.

What to show is a list of texts, each a word and a real path: `ro:` and `rw:` bind what is there, `ln:` copies a link, `own:`
makes an empty folder, `hide:` puts an empty folder or file over what is already visible.
"""

import contextlib
import errno
import fcntl
import os
import resource
import socket
import struct
from collections.abc import Iterable

from forge_tools.sandbox.walls import seccomp
from forge_tools.sandbox.walls.cgroups import Limits, write
from forge_tools.sandbox.walls.privileges import ON_LINUX, checked, drop_capabilities, gain_nothing, harden, open_up

HOST, NONE = "host", "none"
"""The network in them: the machine's, or only a loopback of their own. Anything else is that and a way out, at `PROXY`."""

PROXY = ("127.0.0.1", 3128)
"""Where the proxy is that decides what is reached from a network of their own (`web/egress.py`)."""

_USER, _PID, _MOUNT, _IPC, _UTS, _NETWORK = 1 << 28, 1 << 29, 1 << 17, 1 << 27, 1 << 26, 1 << 30
_READ_ONLY, _NO_SUID, _NO_DEVICES, _NO_EXEC = 1, 2, 4, 8  # of mounts, old and new interface alike
_BIND, _RECURSIVE, _SLAVE, _DETACH = 1 << 12, 1 << 14, 1 << 19, 2
_AT_HERE, _AT_RECURSIVE = -100, 0x8000
_SET_FLAGS, _UP = 0x8914, 1  # of a network interface

_OLD = "/.of-the-host"  # where the machine's files are until the last has been shown
_ROOM, _SHARED = b"size=2g,mode=755", b"size=1g,mode=1777"  # of memory, where files are that it does not keep
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_LINKS = {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2", "ptmx": "pts/ptmx"}
_OF_ROOT = ("sys", "sysrq-trigger", "irq", "bus", "fs", "acpi")  # in /proc, where root writes even without capabilities
_OWN_PIDS_SINCE = (6, 14)
_FEWEST_NUMBERS = 301  # that the kernel takes

# To change owners, pass over modes, change users and signal theirs: among files that are shown, and users that are mapped.
_ROOT_KEEPS = sum(1 << capability for capability in (0, 1, 3, 4, 5, 6, 7))
_REFUSED = tuple(
    call
    for call in seccomp.FORBIDDEN  # what is left looks into its own processes: debuggers work
    if call not in {"ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd", "kcmp"}
)


def fork(*, network: str) -> int:
    """Fork like `os.fork`, but with the child as process 1 of new namespaces; everything it starts ends with it.

    The child's parent is the nearest ancestor that adopts orphans.
    """
    if not (ON_LINUX and seccomp.is_known()):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        between = os.fork()
        if between == 0:
            ours.close()
            _leave(theirs, network)
            return 0
        theirs.close()
        try:
            said = ours.recv(16)
            if said == b"left":
                _map_users(between)
                ours.send(b"mapped")
                said = ours.recv(16)
            pid = int(said or -errno.ECHILD)  # nothing: somebody killed it
        finally:
            ours.close()
            with contextlib.suppress(ChildProcessError):  # where SIGCHLD is ignored, the kernel has reaped it
                os.waitpid(between, 0)
    if pid < 0:
        raise OSError(-pid, os.strerror(-pid))
    return pid


def furnish(shown: Iterable[str]) -> None:
    """Give this process, the first of its namespaces, a new root with devices, /proc, /tmp and what is `shown`."""
    os.umask(0o022)
    # Not private: what the machine unmounts later would otherwise stay mounted, and in use, in here.
    _mount(None, "/", flags=_RECURSIVE | _SLAVE)
    _mount("tmpfs", "/proc", "tmpfs", _NO_SUID | _NO_DEVICES, _ROOM)  # a folder that every machine has
    os.mkdir(f"/proc{_OLD}", 0o700)
    os.chdir("/proc")
    checked("syscall", seccomp.number_of("pivot_root"), b".", f".{_OLD}".encode())
    os.chdir("/")
    _make_proc()
    _make_devices()
    for folder, mode in (("/tmp", 0o1777), ("/var/tmp", 0o1777), ("/run", 0o755)):  # noqa: S108  nobody else's
        os.makedirs(folder, exist_ok=True)
        os.chmod(folder, mode)
    show(shown)


def show(shown: Iterable[str]) -> None:
    """Show more, in this order: later entries cover earlier ones. What does not exist on the machine is left out."""
    for entry in shown:
        word, _, path = entry.partition(":")
        _SHOWING[word](path)


def limits_processes() -> bool:
    """Whether the limit of processes holds: root has none but that of their numbers, which were the whole machine's before."""
    return os.geteuid() != 0 or tuple(map(int, os.uname().release.split(".")[:2])) >= _OWN_PIDS_SINCE


def has_proxy(network: str) -> bool:
    """Whether a proxy is the only way out of that network."""
    return network not in {HOST, NONE}


def open_way_out() -> socket.socket:
    """Open the port of the proxy in this network. Its holder can serve it from any other network."""
    listener = socket.create_server(PROXY)
    listener.set_inheritable(False)
    return listener


def close_off() -> None:
    """Give up everything that is not shown, and the right to change that, for good."""
    checked("umount2", _OLD.encode(), _DETACH)
    os.rmdir(_OLD)
    if most := Limits.given().processes:
        _, hard = resource.getrlimit(resource.RLIMIT_NPROC)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
    gain_nothing()
    drop_capabilities(but=_ROOT_KEEPS if os.geteuid() == 0 else 0)
    seccomp.refuse(_REFUSED)
    harden()


class Numbers:
    """The numbers that processes of these namespaces have outside. Create it before `furnish`, by the machine's /proc."""

    def __init__(self) -> None:
        self._proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.own = int(os.readlink("self", dir_fd=self._proc))

    def of_first_child(self) -> int:
        """Return the number of the first child that this process still has; 0 if the kernel keeps no list of them."""
        with contextlib.suppress(OSError, IndexError):
            path = f"{self.own}/task/{self.own}/children"
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._proc)
            try:
                return int(os.read(handle, 64).split()[0])
            finally:
                os.close(handle)
        return 0


def go_to(path: str, folder: int) -> None:
    """Make the folder at `path` the current one, provided it is the open `folder`; going by the handle would leave what is shown.

    `/` is always the root of this process.
    """
    os.chdir(path)
    here, there = os.stat("."), os.fstat(folder)
    if path != "/" and (here.st_dev, here.st_ino) != (there.st_dev, there.st_ino):
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)


def _leave(line: socket.socket, network: str) -> None:
    """Return only in the child: the process that unshares stays in the old process namespace, its children do not."""
    pid = 0
    try:
        open_up()  # or its maps would belong to root
        apart = _NETWORK if network != HOST else 0
        checked("unshare", _USER | _PID | _MOUNT | _IPC | _UTS | apart)
        line.send(b"left")
        if not line.recv(16):  # the requester is gone
            os._exit(0)
        if apart:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
                fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sH22x", b"lo", _UP))
        pid = os.fork()
    except OSError as error:
        pid = -(error.errno or errno.EINVAL)
    if pid:
        line.send(str(pid).encode())
        os._exit(0)


def _map_users(pid: int) -> None:
    """Map each user and group to its own number; for root those of others too, since it may unpack files that they own."""
    if os.geteuid() == 0:
        with contextlib.suppress(PermissionError):
            for kind in ("uid_map", "gid_map"):
                with open(f"/proc/self/{kind}") as file:
                    ranges = [line.split() for line in file]
                write(f"/proc/{pid}/{kind}", "".join(f"{first} {first} {many}\n" for first, _, many in ranges))
            return
    write(f"/proc/{pid}/setgroups", "deny")  # or the kernel refuses a gid_map from anybody but root
    write(f"/proc/{pid}/uid_map", f"{os.geteuid()} {os.geteuid()} 1")
    write(f"/proc/{pid}/gid_map", f"{os.getegid()} {os.getegid()} 1")


def _make_proc() -> None:
    os.mkdir("/proc")
    _mount("proc", "/proc", "proc", _NO_SUID | _NO_DEVICES | _NO_EXEC)
    if os.geteuid() != 0:
        return
    if (most := Limits.given().processes) and limits_processes():
        write("/proc/sys/kernel/pid_max", max(most, _FEWEST_NUMBERS))
    for name in _OF_ROOT:
        if os.path.exists(f"/proc/{name}"):
            _bind(f"/proc/{name}", f"/proc/{name}", _READ_ONLY)


def _make_devices() -> None:
    os.mkdir("/dev")
    for name in _DEVICES:
        _place(f"/dev/{name}", is_folder=False)
        _mount(f"{_OLD}/dev/{name}", f"/dev/{name}", flags=_BIND)
    for name, target in _LINKS.items():
        os.symlink(target, f"/dev/{name}")
    for name, kind, options in (("pts", "devpts", b"newinstance,ptmxmode=0666,mode=620"), ("shm", "tmpfs", _SHARED)):
        os.mkdir(f"/dev/{name}")
        _mount(kind, f"/dev/{name}", kind, _NO_SUID | _NO_EXEC * (kind == "devpts"), options)


def _show_at(path: str, flags: int = 0) -> None:
    source = _OLD + path
    if os.path.lexists(source):
        _place(path, is_folder=os.path.isdir(source))
        _bind(source, path, flags)


def _copy_link(path: str) -> None:
    if os.path.islink(_OLD + path) and not os.path.lexists(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.symlink(os.readlink(_OLD + path), path)


def _give(path: str) -> None:
    if os.path.lexists(path):
        _hide(path)
    else:
        os.makedirs(path)


def _hide(path: str) -> None:
    if os.path.isdir(path):
        _mount("tmpfs", path, "tmpfs", _NO_SUID | _NO_DEVICES, _ROOM)
    elif os.path.lexists(path):
        _mount(f"{_OLD}/dev/null", path, flags=_BIND)


_SHOWING = {
    "ro": lambda path: _show_at(path, _READ_ONLY), "rw": _show_at, "ln": _copy_link, "own": _give, "hide": _hide,
}  # fmt: skip


def _place(path: str, *, is_folder: bool) -> None:
    if os.path.lexists(path):
        return
    if is_folder:
        os.makedirs(path)
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))


def _bind(source: str, target: str, flags: int) -> None:
    """Bind with everything mounted below, which must not be uncovered, and with the same restrictions throughout."""
    _mount(source, target, flags=_BIND | _RECURSIVE)
    attributes = struct.pack("QQQQ", flags | _NO_SUID | _NO_DEVICES, 0, 0, 0)
    change = seccomp.number_of("mount_setattr")
    checked("syscall", change, _AT_HERE, os.fsencode(target), _AT_RECURSIVE, attributes, len(attributes))


def _mount(source: str | None, target: str, kind: str = "", flags: int = 0, options: bytes | None = None) -> None:
    given = None if source is None else os.fsencode(source)
    checked("mount", given, os.fsencode(target), kind.encode() or None, flags, options)
