"""The tiers of a machine are tried, and what a kernel lacks is said; the lack is simulated by seccomp."""

import errno

import pytest

from forge_tools.sandbox.walls import landlock, seccomp
from forge_tools.sandbox.walls.privileges import gain_nothing
from forge_tools.sandbox.walls.probe import Given, given
from tests.walled import NOBODY, in_child


def test_a_machine_with_landlock_gives_it_to_root_and_to_others() -> None:
    expected = str(Given("landlock", landlock.abi()))

    assert [in_child(probe_here), in_child(probe_here, uid=NOBODY)] == [expected, expected]


def test_a_kernel_without_landlock_gives_plain_and_says_why() -> None:
    def old() -> Given:
        gain_nothing()
        seccomp.refuse(["landlock_create_ruleset"], error=errno.ENOSYS)
        return given.__wrapped__()

    assert in_child(old, uid=NOBODY) == "plain: landlock: ENOSYS"


def test_a_kernel_that_refuses_it_says_that() -> None:
    def refusing() -> Given:
        gain_nothing()
        seccomp.refuse(["landlock_create_ruleset"], error=errno.EPERM)
        return given.__wrapped__()

    assert in_child(refusing, uid=NOBODY) == "plain: landlock: EPERM"


def test_namespaces_that_are_switched_off_cost_nothing_here() -> None:
    def docker() -> Given:
        gain_nothing()
        seccomp.refuse(["unshare", "mount", "pivot_root", "setns"])
        return given.__wrapped__()

    assert in_child(docker, uid=NOBODY) == str(Given("landlock", landlock.abi()))


@pytest.mark.parametrize("refused", ["unshare", "mount", "pivot_root"])
def test_a_machine_that_refuses_a_part_of_namespaces_has_none_and_says_why(refused: str) -> None:
    def lacking() -> str:
        gain_nothing()
        seccomp.refuse([refused])
        return given.__wrapped__().no_namespaces

    what = "unshare" if refused == "unshare" else "mount"
    assert in_child(lacking, uid=NOBODY) == (f"{what}: EPERM" if not given().no_namespaces else given().no_namespaces)


def test_root_and_others_have_the_same_namespaces() -> None:
    assert in_child(lambda: given.__wrapped__().no_namespaces, uid=NOBODY) == given().no_namespaces


def probe_here() -> Given:
    return given.__wrapped__()
