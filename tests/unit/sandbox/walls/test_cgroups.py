"""Groups of a real kernel: what is in one ends with it wherever it went, and is bounded as far as the machine offers that."""

import fcntl
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from forge_tools.sandbox.walls import cgroups
from forge_tools.sandbox.walls.cgroups import Cgroup, Limits, controllers, delegated
from tests.cgroups import cgroup, members, offers
from tests.waiting import is_alive, wait_until
from tests.walled import in_child

DAEMON = "setsid env -i sleep 61 & setsid env -i sh -c 'sleep 61 & sleep 61' & sleep 61"
MEGABYTE = 2**20


@pytest.fixture
def base() -> Iterator[Path | None]:
    with cgroup() as made:
        yield made


def as_worker(base: Path | None, work: Callable[[Limits], object], name: str = "w", limits: Limits = Limits()) -> str:  # noqa: B008  a frozen value
    """What `work` returns or raises in a child that has divided the group as a worker."""
    return in_child(lambda: work(limits.divided(str(base), name)))


def spawned(group: Cgroup, script: str) -> subprocess.Popen[bytes]:
    """A shell in that group, which this process has left again."""
    group.enter()
    shell = subprocess.Popen(["sh", "-c", script])
    group.leave()
    return shell


def test_what_is_in_a_group_ends_with_it_wherever_it_went(base: Path | None) -> None:
    def work(limits: Limits) -> str:
        group = limits.group("one")
        spawned(group, DAEMON)
        wait_until(lambda: len(members(Path(limits.home) / "one")) > 4)
        found = members(Path(limits.home) / "one")
        group.end()
        return f"{any(map(is_alive, found[1:]))} {Path(limits.home, 'one').exists()}"

    assert as_worker(base, work) == ("ENOENT" if base is None else "False False")


def test_groups_that_a_process_made_in_its_own_end_with_it(base: Path | None) -> None:
    def work(limits: Limits) -> bool:
        own = Path(limits.home) / "one"
        spawned(limits.group("one"), f"mkdir {own}/in && echo 0 > {own}/in/cgroup.procs && sleep 61")
        wait_until(lambda: members(own / "in") and os.getpid() not in members(own))
        limits.end_worker("w")
        return own.exists()

    assert as_worker(base, work) == ("ENOENT" if base is None else "False")


def test_a_dead_workers_groups_end_at_the_next_start_and_a_living_ones_do_not(base: Path | None) -> None:
    if base is None:
        return
    dead, living = os.pipe(), os.pipe()

    def leave_behind(name: str, line: tuple[int, int]) -> int:
        if (pid := os.fork()) == 0:
            os.close(line[0])
            limits = Limits().divided(str(base), name)
            shell = spawned(limits.group("one"), "sleep 61")
            limits.group("one").kill() if name == "never" else None
            os.write(line[1], str(shell.pid).encode())
            time.sleep(61)
        return pid

    workers = [leave_behind("dead", dead), leave_behind("living", living)]
    left, serving = (int(os.read(read, 16)) for read, _ in (dead, living))
    os.kill(workers[0], signal.SIGKILL)
    os.waitpid(workers[0], 0)
    assert is_alive(left)

    assert as_worker(base, lambda limits: sorted(path.name for path in base.glob("forge-worker-*")), "next") == str(
        ["forge-worker-living", "forge-worker-next"]
    )
    assert (is_alive(left), is_alive(serving)) == (False, True)
    os.kill(workers[1], signal.SIGKILL)
    os.waitpid(workers[1], 0)


def test_whoever_keeps_a_group_locked_keeps_no_worker_waiting(
    base: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroups, "_TURN", 0.05)
    if base is None:
        return
    with (base / "cgroup.controllers").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert as_worker(base, lambda _: "divided") == "EBUSY"
    assert as_worker(base, lambda _: "divided") == "divided"


def test_what_is_no_group_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(FileNotFoundError):
            Cgroup(f"{path}/one").try_out()
        assert as_worker(path, lambda _: "divided") == "ENOENT"
    assert list(tmp_path.iterdir()) == []


def test_a_group_of_version_1_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "cgroup.procs").touch()
    assert as_worker(tmp_path, lambda _: "divided") == "ENOENT"
    assert [path.name for path in tmp_path.iterdir()] == ["cgroup.procs"]


def test_a_mount_may_have_any_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mounts, open_file = tmp_path / "mountinfo", open
    mounts.write_bytes(b"1 0 0:1 / /mnt/\xff rw - tmpfs none rw\n2 1 0:2 / /none/groups rw - cgroup2 none rw\n")
    monkeypatch.setattr(
        "builtins.open",
        lambda path, *how, **more: open_file(mounts if path == "/proc/self/mountinfo" else path, *how, **more),
    )
    assert "cgroup /none/groups" in delegated()[1]


def test_processes_are_bounded_where_the_kernel_offers_that(base: Path | None) -> None:
    def work(limits: Limits) -> str:
        shell = spawned(limits.group("one"), "for i in 1 2 3 4 5 6 7 8 9; do sleep 61 & done")
        return f"{shell.wait()} {limits.held}"

    said = as_worker(base, work, limits=Limits(processes=5))

    if offers(base, "pids"):
        assert said.startswith("2 ")
        assert "pids" in said
    else:
        assert said == ("ENOENT" if base is None else f"0 {Limits(home=str(base)).held}")


def test_memory_is_bounded_where_the_kernel_offers_that_and_all_in_the_group_ends(base: Path | None) -> None:
    script = "sleep 61 & exec python3 -c 'held = b\"x\" * (200 << 20)'"

    def work(limits: Limits) -> str:
        group = limits.group("one")
        shell = spawned(group, script)
        return f"{shell.wait()} {group.ran_out_of_memory()} {len(members(Path(limits.home) / 'one'))}"

    said = as_worker(base, work, limits=Limits(memory=100 * MEGABYTE))

    bounded = "-9 True 0" if offers(base, "memory") else "0 False 1"
    assert said == ("ENOENT" if base is None else bounded)


def test_a_process_that_was_there_before_makes_room_for_controllers(base: Path | None) -> None:
    if base is None:
        return
    before = subprocess.Popen(["sh", "-c", f"echo 0 > {base}/cgroup.procs && exec sleep 61"])
    wait_until(lambda: before.pid in members(base))

    assert as_worker(base, lambda limits: limits.held) == " and ".join(controllers(str(base)))
    place = "forge-rest/" if controllers(str(base)) else ""
    assert str(before.pid) in Path(base, place, "cgroup.procs").read_text().split()
    before.kill()
    before.wait()


def test_a_group_that_nobody_delegated_is_left_alone() -> None:
    found, why = delegated()
    assert found == ""
    assert "is not delegated" in why or why == "no cgroup v2"
    assert delegated("/somewhere")[0] == "/somewhere"


def test_the_group_that_systemd_delegated_is_found_by_its_mark_from_the_rest_of_it_too(base: Path | None) -> None:
    if base is None:
        return

    def found() -> str:
        (base / "cgroup.procs").write_text("0")
        before = delegated()[0]
        os.setxattr(base, "user.delegate", b"1")
        (base / cgroups.REST).mkdir()
        at_top = delegated()[0]
        (base / cgroups.REST / "cgroup.procs").write_text("0")
        return f"{before} {at_top} {delegated()[0]}"

    assert in_child(found) == f" {base} {base}"


def test_what_is_no_group_is_refused_and_a_kernel_without_kill_too(tmp_path: Path, base: Path | None) -> None:
    assert in_child(lambda: Limits().divided(str(tmp_path), "w")) == "ENOENT"

    def without_kill() -> object:
        kill = Cgroup.kill
        Cgroup.kill = lambda _: False  # type: ignore[method-assign]  # as with a kernel before 5.14
        try:
            return Limits().divided(str(base), "w")
        finally:
            Cgroup.kill = kill  # type: ignore[method-assign]  # as above

    assert in_child(without_kill) == ("ENOENT" if base is None else "ENOSYS")


def test_without_groups_nothing_happens() -> None:
    group = Limits(memory=1, processes=1).group("one")
    group.enter()
    group.leave()
    group.end()
    assert (group.kill(), group.ran_out_of_memory(), Limits().held) == (False, False, "")
