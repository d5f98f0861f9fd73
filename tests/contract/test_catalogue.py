"""The contract of the catalogue, on every database."""

from forge_tools.records import Capabilities, ToolCategory, ToolParameter, ToolSpec
from forge_tools.storage import Store
from tests.contract.calls import boot

GREP = ToolSpec(
    name="Grep",
    description="Search files \u2713.",
    category=ToolCategory.FILE,
    parameters=(ToolParameter(name="pattern", type="string", description="What.", enum=["a", None], sensitive=True),),
    capabilities=Capabilities(idempotent=True),
    tags=("search",),
    aliases=("grep",),
    lane="async",
    timeout=30.0,
)
OTHER_GREP = GREP.model_copy(update={"description": "Search differently."})


async def test_a_published_tool_is_read_back_as_it_was(store: Store) -> None:
    assert await store.catalogue.publish([GREP], "boot-1") == []
    [spec] = await store.catalogue.specs()
    assert spec == GREP
    assert spec.digest == GREP.digest


async def test_of_several_definitions_the_one_seen_last_counts(store: Store) -> None:
    for spec in (GREP, OTHER_GREP, GREP):
        await store.catalogue.publish([spec], "boot-1")
    assert await store.catalogue.specs() == [GREP]


async def test_a_live_worker_with_another_definition_of_the_same_version_is_warned_about(store: Store) -> None:
    for name, spec in (("boot-1", GREP), ("boot-2", GREP)):
        await store.workers.register(boot(name))
        assert await store.catalogue.publish([spec], name) == []
    await store.workers.register(boot("boot-3", hostname="host-3"))
    first, second = await store.catalogue.publish([OTHER_GREP], "boot-3")
    assert "Tool 'Grep' 1.0.0" in first
    assert "boot-1 on host-1" in first
    assert "boot-2" in second
    assert await store.catalogue.disagreements() == [first, second]


async def test_another_version_or_a_stopped_worker_is_no_disagreement(store: Store) -> None:
    await store.workers.register(boot("boot-1"))
    await store.catalogue.publish([GREP], "boot-1")
    await store.workers.register(boot("boot-2"))
    newer = OTHER_GREP.model_copy(update={"version": "1.1.0"})
    assert await store.catalogue.publish([newer], "boot-2") == []
    await store.workers.stop("boot-1")
    assert await store.catalogue.publish([OTHER_GREP], "boot-2") == []


async def test_publishing_nothing_is_fine(store: Store) -> None:
    assert await store.catalogue.publish([], "boot-1") == []
    assert await store.catalogue.specs() == []
