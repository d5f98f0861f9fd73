"""Shells of hosts that have no worker any more are given up, by one worker, and not because of one bad look."""

from sqlalchemy import update

from forge_tools.model.overview import WorkerRecord
from forge_tools.storage.functions import from_now
from forge_tools.storage.sqlalchemy_tables import workers
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
    assert await host.statuses() == {told[0].id: "running", told[1].id: "running"}
    await watch.step()

    assert await host.statuses() == {told[0].id: "lost", told[1].id: "running"}


async def test_who_is_silent_at_one_look_only_keeps_its_shells(host: Host) -> None:
    await worker_on(host, "slow", 400)
    await host.store.shells.record(shell(1, hostname="slow"))
    watch = host.deserted()

    for silent_for in (400, 0, 400):
        await worker_on(host, "slow", silent_for)
        await watch.step()

    assert await host.statuses() == {shell(1).id: "running"}


async def test_who_no_longer_leads_forgets_what_it_has_seen(host: Host) -> None:
    await worker_on(host, "dead", 400)
    await host.store.shells.record(shell(1, hostname="dead"))
    watch = host.deserted()

    await watch.step()
    watch.lead_is_lost()
    await watch.step()

    assert await host.statuses() == {shell(1).id: "running"}


async def test_a_host_is_checked_four_times_before_it_is_given_up(host: Host) -> None:
    assert host.deserted().interval == host.settings.shell_lost_after / 4
