"""Shells of hosts that have no worker any more are given up, by one worker, and not because of one bad look."""

from sqlalchemy import update

from forge_tools.model import WorkerRecord
from forge_tools.storage.functions import from_now
from forge_tools.storage.tables import workers
from tests.unit.workers.watched_host import Host, shell


async def worker_on(host: Host, hostname: str, silent_for: float) -> None:
    instance = f"instance of {hostname}"
    await host.store.workers.register(
        WorkerRecord(id=instance, hostname=hostname, pid=1, lane="async", queues=(), concurrency=1, version="1")
    )
    seen = update(workers).where(workers.c.id == instance).values(last_seen_at=from_now(-silent_for))
    await host.store.database.write(lambda connection: connection.execute(seen))


async def test_the_eldest_worker_gives_up_what_ran_on_hosts_that_are_gone(host: Host) -> None:
    await worker_on(host, "dead", 400)
    await worker_on(host, "live", 40)
    told = [shell(1, hostname="dead"), shell(2, hostname="live")]
    await host.store.shells.record_many(told)
    watch = host.deserted()

    await watch.step()
    await watch.step()  # too soon to count as another look
    assert await host.statuses() == {told[0].id: "running", told[1].id: "running"}
    host.now += 75
    await watch.step()

    assert await host.statuses() == {told[0].id: "lost", told[1].id: "running"}


async def test_who_is_silent_at_one_look_only_keeps_its_shells(host: Host) -> None:
    await worker_on(host, "slow", 400)
    await host.store.shells.record(shell(1, hostname="slow"))
    watch = host.deserted()

    for silent_for in (400, 0, 400):
        await worker_on(host, "slow", silent_for)
        await watch.step()
        host.now += 75

    assert await host.statuses() == {shell(1).id: "running"}


async def test_who_leads_again_asks_often_for_a_while(host: Host) -> None:
    watch = host.deserted()
    for _ in range(400):
        host.now += 60
        await watch.step()
    host.statements.clear()

    watch.lead_is_lost()
    host.now += 80
    await watch.step()

    assert host.statements == ["deserted_hosts"]


async def test_who_has_lost_no_other_worker_for_long_asks_seldom(host: Host) -> None:
    host.leadership.living, watch = frozenset({"this one", "young"}), host.deserted()

    async def asked_within(seconds: int) -> int:
        host.statements.clear()
        for _ in range(0, seconds, 5):
            host.now += 5
            await watch.step()
        return len(host.statements)

    assert await asked_within(600) == 8  # what went before it was there
    assert await asked_within(12_000) == 10
    host.leadership.living = frozenset({"this one"})
    assert await asked_within(600) == 8
    await host.store.shells.record(shell(1, hostname="gone"))
    await asked_within(2400)
    assert await host.statuses() == {shell(1).id: "lost"}
