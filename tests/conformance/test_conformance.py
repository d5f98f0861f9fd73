"""What the official suite finds wrong with our server, on workers, is known; the list may only shrink."""

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any

import pytest
import yaml

from tests.conformance.suite import HERE, Check, checked
from tests.fleet import Fleet
from tests.mcp_process import McpEndpoint

KNOWN: dict[str, str] = yaml.safe_load((HERE / "baseline.yaml").read_text()) or {}
EXEMPTIONS: list[dict[str, Any]] = yaml.safe_load((HERE / "exemptions.yaml").read_text())
REVISIONS = ("2025-11-25", "2026-07-28")
MOST_EXEMPTIONS = 10
WANTED = 0.95
MORE_TRIES = 2
FEWEST = 150
"""Checks that apply; a suite that stops in the middle has found nothing, too."""


@pytest.fixture(scope="module")
def checks(tmp_path_factory: pytest.TempPathFactory, valkey_server: Any) -> Iterator[list[Check]]:
    """What the suite found; it waits half a second for some answers, so a busy machine has more tries at a scenario."""
    folder = tmp_path_factory.mktemp("conformance")
    valkey_server.flush()
    fleet = Fleet(folder, valkey_server.url, f"sqlite:///{folder / 'forge.db'}", kill_grace=1.0)
    try:
        for lane in ("async", "process"):
            fleet.start(lane, concurrency=20 if lane == "async" else 1, tools="tests.conformance.tools:TOOLS")
        endpoint = McpEndpoint(fleet.environment(), folder, "--task-after", "0.6", "--refresh", "0.2")
        try:
            found = [one for name in REVISIONS for one in checked(endpoint.url, folder / name, name)]
            for again in range(MORE_TRIES):
                late = {(one.revision, one.scenario) for one in found if is_wrong(one) and one.id not in KNOWN}
                for of in sorted(late):
                    newer = checked(endpoint.url, folder / f"{again}-{'-'.join(of)}", *of)
                    found = [one for one in found if (one.revision, one.scenario) != of or not newer] + newer
            yield found
        finally:
            endpoint.stop()
    finally:
        fleet.stop()


def is_exempt(check: Check) -> bool:
    return any(fnmatchcase(check.id, pattern) for one in EXEMPTIONS for pattern in one["checks"])


def is_wrong(check: Check) -> bool:
    return check.status in {"FAILURE", "WARNING"} and not is_exempt(check)


@pytest.fixture(scope="module")
def applicable(checks: list[Check]) -> list[Check]:
    return [check for check in checks if check.status in {"SUCCESS", "FAILURE", "WARNING"} and not is_exempt(check)]


def test_nothing_fails_but_what_is_known_to(applicable: list[Check]) -> None:
    new = [f"{one.revision} {one.id}: {one.message}" for one in applicable if is_wrong(one) and one.id not in KNOWN]

    assert not new, "\n".join(["", *new])


def test_what_is_known_to_fail_still_fails(applicable: list[Check]) -> None:
    failing = {check.id for check in applicable if is_wrong(check)}

    assert sorted(KNOWN.keys() - failing) == [], "these pass now: take them out of baseline.yaml"


def test_nearly_all_that_applies_is_right(applicable: list[Check]) -> None:
    passed = sum(check.status == "SUCCESS" for check in applicable)

    assert len(applicable) >= FEWEST
    assert passed / len(applicable) >= WANTED


def test_each_exemption_names_the_sentence_that_makes_it_optional_and_something_that_is_checked(
    checks: list[Check],
) -> None:
    assert len(EXEMPTIONS) <= MOST_EXEMPTIONS
    for one in EXEMPTIONS:
        assert {"what", "sentence", "source", "checks"} == one.keys()
        for pattern in one["checks"]:
            assert any(fnmatchcase(check.id, pattern) for check in checks), pattern
