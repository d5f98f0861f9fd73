"""Which tier tools get: what settings and tools ask for, what a worker gives, and what it leaves to others for that."""

import errno
from collections.abc import Callable
from typing import Any

import pytest

from forge_tools.config import Settings
from forge_tools.errors import ConfigurationError
from forge_tools.model import Capabilities, Lane, ToolCategory, ToolSpec
from forge_tools.sandbox.walls.probe import given
from tests.walled import without
from workers.lanes.walls import Tiers


def spec(name: str, **facts: Any) -> ToolSpec:
    return ToolSpec(**{"name": name, "description": "x", "category": ToolCategory.OTHER, "lane": "process"} | facts)


WALLED = spec("Walled", walls="landlock")
PLAIN = spec("Plain")
FETCH = spec("Fetch", category=ToolCategory.WEB, lane="async")
BASH = spec("Bash", category=ToolCategory.EXECUTION, lane="async", capabilities=Capabilities(executes_commands=True))
CONTAINED = spec("Contained", category=ToolCategory.EXECUTION, lane="async", walls="namespace")
ASKS = spec("Asks", lane="async", capabilities=Capabilities(requires_engine=True))
ALL = (WALLED, PLAIN, FETCH, BASH, ASKS)
SERVED = {"broker_url": "redis://broker", "database_url": "postgresql://db/forge"}


def tiers(lane: Lane = "process", **settings: Any) -> Tiers:
    return Tiers(Settings.load(**SERVED | settings), lane)


def asked(one: ToolSpec, queue: str = "", **settings: Any) -> str:
    return tiers(**settings).asked(one, queue)[0]


def without_landlock(work: Callable[[], object]) -> str:
    return without(work, "landlock_create_ruleset", error=errno.ENOSYS)


def test_without_settings_each_tool_says_what_it_gets() -> None:
    assert [asked(one) for one in (WALLED, PLAIN)] == ["landlock", "plain"]
    assert [asked(one, walls="landlock") for one in (WALLED, PLAIN)] == ["landlock", "landlock"]
    assert [asked(one, walls="plain") for one in (WALLED, PLAIN)] == ["plain", "plain"]


@pytest.mark.parametrize(
    ("walls_of", "tier"),
    [
        ({"queue:low": "landlock"}, "landlock"),
        ({"queue:low": "landlock", "category:web": "plain"}, "plain"),
        ({"queue:low": "plain", "category:web": "plain", "Fetch": "landlock"}, "landlock"),
        ({"queue:high": "landlock", "category:file": "landlock", "Read": "landlock"}, "plain"),
    ],
)
def test_the_most_specific_entry_counts_tool_before_category_before_queue(walls_of: dict[str, str], tier: str) -> None:
    assert asked(FETCH, "low", walls_of=walls_of) == tier
    assert asked(FETCH, "low", walls_of=walls_of, walls="plain") == tier, "an entry is more specific than FORGE_WALLS"


def test_tools_of_the_async_lane_move_where_their_operator_raises_them_and_stay_where_all_are_raised() -> None:
    def moved(**settings: Any) -> list[str]:
        return [one.name for one in ALL if tiers("async", **settings).moves(one)]

    assert moved(walls="landlock") == [], "that speaks of the process lane"
    assert moved(walls_of={"Fetch": "landlock", "Bash": "plain"}) == ["Fetch"]
    assert moved(walls_of={"category:web": "landlock"}) == ["Fetch"]
    assert moved(walls_minimum="landlock") == ["Fetch"]


def test_what_cannot_move_is_left_alone_by_the_async_lane() -> None:
    told = tiers("async", walls_minimum="landlock").told(ALL)

    assert told.withheld == dict.fromkeys(("Bash", "Asks"), "landlock FORGE_WALLS_MINIMUM")
    assert str(told) == "none (bodies of the async lane run in the worker's own process)"


def test_a_queue_that_asks_for_walls_is_served_by_the_process_lane_alone() -> None:
    raised = {"walls_of": {"queue:low": "landlock", "queue:high": "plain"}}

    assert [tiers("async", **raised).serves(queue) for queue in ("low", "high", "default")] == [False, True, True]
    assert tiers(**raised).serves("low") is (given().tier == "landlock")
    assert tiers(**raised).told(()).queues == ("low",)


def test_a_worker_without_landlock_leaves_tools_that_are_to_have_it_to_others() -> None:
    def withheld(**settings: Any) -> str:
        return without_landlock(lambda: dict(tiers(**settings).told((WALLED, PLAIN)).withheld))

    embedded = {"broker_url": "", "database_url": ""}
    assert withheld() == "{'Walled': 'landlock the tool'}"
    assert withheld(walls="plain") == "{}"
    assert withheld(walls_of={"Walled": "plain"}) == "{}"
    assert withheld(**embedded) == "{}", "the embedded stack has no other worker"
    assert withheld(**embedded, walls="landlock") == str(dict.fromkeys(("Walled", "Plain"), "landlock FORGE_WALLS"))
    assert withheld(walls_of={"Walled": "plain", "queue:low": "landlock"}) == "{'queue:low': 'landlock FORGE_WALLS_OF'}"
    assert without_landlock(lambda: tiers().is_walled(WALLED)) == "False"


def test_settings_that_ask_for_less_than_the_minimum_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="FORGE_WALLS_OF for Bash says plain"):
        Settings.load(walls_minimum="landlock", walls_of={"Bash": "plain"})
    with pytest.raises(ConfigurationError, match="walls_minimum is landlock, but FORGE_WALLS says plain"):
        Settings.load(walls_minimum="landlock", walls="plain")


def without_namespaces(work: Callable[[], object]) -> str:
    return without(work, "unshare")


def without_walls(work: Callable[[], object]) -> str:
    return without(work, "unshare", "landlock_create_ruleset")


def withheld(**settings: Any) -> dict[str, str]:
    return dict(tiers("async", **settings).told([CONTAINED, FETCH]).withheld)


def placed(**settings: Any) -> str:
    return tiers("async", **settings).place(CONTAINED).tier


EMBEDDED: dict[str, Any] = {"broker_url": None, "database_url": None}


def test_commands_that_need_namespaces_are_left_to_others_where_there_are_none() -> None:
    def left(**settings: Any) -> str:
        return without_namespaces(lambda: withheld(**settings))

    assert left() == "{'Contained': 'namespace the tool'}"
    assert left(walls_minimum="landlock") == "{'Contained': 'namespace the tool'}"
    assert left(walls_of={"Bash": "plain"}) == "{}"
    assert left(**EMBEDDED) == "{}", "the embedded stack has no other worker"
    assert left(**EMBEDDED, walls_of={"Bash": "namespace"}) == "{'Contained': 'namespace FORGE_WALLS_OF'}"
    least = "landlock" if given().tier == "landlock" else "plain"
    said = without_namespaces(lambda: tiers("async").told([]).why)
    assert f"commands have {least} at most, no namespaces: unshare: EPERM" in said


def test_commands_have_the_highest_tier_of_the_machine_where_the_least_that_they_may_have_allows_it() -> None:
    least = "landlock" if given().tier == "landlock" else "plain"
    lacking = str({"Contained": "namespace the tool"} if least == "plain" else {})

    assert without_namespaces(lambda: placed(**EMBEDDED)) == least
    assert without_walls(lambda: placed(**EMBEDDED)) == "plain"
    assert without_namespaces(lambda: withheld(**EMBEDDED, walls_minimum="landlock")) == lacking
    assert (
        without_walls(lambda: withheld(**EMBEDDED, walls_minimum="landlock")) == "{'Contained': 'namespace the tool'}"
    )


def test_a_setting_gives_commands_the_tier_that_it_names_or_the_next_above() -> None:
    asked = {"walls_of": {"category:execution": "landlock"}}

    assert placed(**asked) == given().of_commands("landlock")
    assert without(lambda: placed(**asked), "landlock_create_ruleset") == (
        "plain" if given().no_namespaces else "namespace"
    )
    assert without_walls(lambda: withheld(**asked)) == "{'Contained': 'landlock FORGE_WALLS_OF'}"
    assert placed(walls_of={"Bash": "plain"}) == "plain"
    assert placed() == given().of_commands("namespace")


def test_namespaces_for_what_starts_no_commands_mean_the_most_that_isolates_a_body() -> None:
    assert asked(PLAIN, walls_of={"Plain": "namespace"}) == "landlock"
    with pytest.raises(ValueError, match="is for tools of category execution in the async lane"):
        spec("Own", walls="namespace")
