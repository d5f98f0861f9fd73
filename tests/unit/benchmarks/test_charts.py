"""The charts, the page, and the table of the benchmark beside other task queues: drawn from figures made up here."""

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from benchmarks import charts
from benchmarks.peers import page, report
from benchmarks.peers.catalogue import OURS, PEERS, named
from benchmarks.peers.environments import REQUIREMENTS
from benchmarks.peers.report import PeersReport
from benchmarks.peers.runner import Account

SVG = "{http://www.w3.org/2000/svg}"
MACHINE = {"cores": "2", "processor": "Some <CPU>"}


def account(name: str, rate: float) -> Account:
    made = Account(named(name), version="1.2")
    for factor in (1.0, 0.9, 1.2):
        made.add(
            "burst", {"rate": rate * factor, "cpu": 60.0, "client_cpu": 10.0, "worker_cpu": 20.0, "server_cpu": 30.0}
        )
        made.add("round-trip", {"p50": 2.0 * factor, "p99": 9.0})
    return made


def of(*accounts: Account) -> PeersReport:
    return PeersReport(at="2026-01-02T03:04:05+00:00", machine=MACHINE, rounds=3, is_quick=False, accounts=accounts)


def drawn(chart: charts.Chart) -> ET.Element:
    return ET.fromstring(chart.svg())


def widths(chart: charts.Chart, tint: str) -> list[float]:
    return [
        float(bar.attrib["width"])
        for bar in drawn(chart).iter(f"{SVG}rect")
        if bar.attrib["class"] == tint and bar.attrib["height"] == str(charts.THICKNESS)
    ]


def test_bars_are_as_long_as_their_readings() -> None:
    throughput = charts.charts_of(of(account(OURS, 800), account("celery", 200)))[0]
    ours, theirs = widths(throughput, "ours")[0], widths(throughput, "broker")[0]
    assert ours / theirs == pytest.approx(4, rel=0.01)


def test_the_best_comes_first_and_what_failed_comes_last_with_its_word() -> None:
    failed = Account(named("huey"), version="1")
    failed.fail("burst", "it broke")
    throughput = charts.charts_of(of(account("celery", 200), failed, account(OURS, 800)))[0]
    assert [bar.label for bar in throughput.bars] == ["forge_tools", "Celery, prefork", "huey"]
    assert throughput.bars[-1].text == "failed"


def test_readings_far_apart_are_drawn_on_a_logarithmic_scale_that_says_so() -> None:
    near, far = (charts.charts_of(of(account(OURS, rate), account("celery", 10)))[0] for rate in (700, 9_000))
    assert "logarithmic" not in near.svg()
    assert "logarithmic" in far.svg()


def test_parts_that_are_added_up_are_never_drawn_on_a_logarithmic_scale() -> None:
    parts: list[tuple[charts.Tint, float]] = [("first", 1.0), ("second", 2.0)]
    bars = [charts.Bar("small", parts, ""), charts.Bar("large", [("first", 900.0), ("second", 1.0)], "")]
    assert not charts.Scale.of(bars).is_log


def test_a_chart_tells_a_reader_who_cannot_see_it_every_reading() -> None:
    throughput = charts.charts_of(of(account(OURS, 800), account("celery", 200)))[0]
    root = drawn(throughput)
    assert root.attrib["role"] == "img"
    assert root.findtext(f"{SVG}title") == throughput.title
    assert "Celery, prefork: 200 /s" in (root.findtext(f"{SVG}desc") or "")


def test_a_chart_has_colours_for_dark_pages_for_all_it_draws() -> None:
    svg = charts.charts_of(of(account(OURS, 800)))[1].svg()
    light, dark = svg.split("prefers-color-scheme: dark")
    styles = set(re.findall(r"\.(\w+)[ ,]", light)) - {"bold"}
    assert styles
    assert styles <= set(re.findall(r"\.(\w+)[ ,]", dark))


def test_processor_time_is_split_into_parts_that_add_up() -> None:
    bar = next(chart for chart in charts.charts_of(of(account(OURS, 800))) if chart.name == "peers-cpu").bars[0]
    assert [value for _, value in bar.parts] == [10, 20, 30]
    assert bar.total == 60


def test_a_kept_run_is_read_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "FOLDER", tmp_path)
    run = of(*(account(peer.name, 100) for peer in PEERS))
    run.save()
    replace(run, is_quick=True, at="2027-01-01T00:00:00+00:00").save()
    replace(run, accounts=run.accounts[:1], at="2027-01-01T00:00:00+00:00").save()
    latest = PeersReport.latest()
    assert latest is not None
    assert latest.markdown() == run.markdown()


def test_the_page_names_what_each_peer_keeps_and_what_could_not_be_measured() -> None:
    failed = Account(named("dbos"))
    failed.fail("installation", "no such version")
    text = page.text(of(account(OURS, 800), failed), {}, [("No-ops", page.PAGE.parent / "a.svg")])
    assert "![No-ops](a.svg)" in text
    assert "| forge_tools 1.2 | yes |" in text
    assert "- DBOS, installation: no such version" in text
    assert "800 /s (720..960)" in text


def test_the_ratio_to_another_is_the_median_of_each_rounds_own() -> None:
    ours, other = account(OURS, 800), account("celery", 200)
    ours.readings["burst"]["rate"] = [400, 800, 1_200]
    other.readings["burst"]["rate"] = [100, 100, 400]
    assert report.RATE.ratio(ours, other) == "4.00x"
    assert "| Celery, prefork | 4.00x |" in of(ours, other).markdown()


def test_a_report_says_how_much_of_the_machine_others_used() -> None:
    made = account(OURS, 800)
    for share in (0.02, 0.04, 0.3):
        made.add("burst", {"others": share})
    assert "4% of the machine in the median turn and 30% in the worst; in 1 of 3" in of(made).quietness


def test_what_failed_in_one_round_has_no_figure_from_the_others() -> None:
    made = account("huey", 100)
    made.fail("burst", "it broke")
    assert report.RATE.cell(made, spread=True) == "failed"
    assert report.P50.cell(made, spread=False) == "2 ms"


def test_every_peer_is_pinned_to_exact_versions() -> None:
    for peer in PEERS:
        if peer.environment is not None:
            lines = (REQUIREMENTS / f"{peer.environment}.txt").read_text().split()
            assert any(line.lower().startswith(f"{peer.package}==") for line in lines)
            assert all("==" in line for line in lines)
