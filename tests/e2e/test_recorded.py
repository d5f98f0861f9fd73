"""Terminal sessions on pages are what a terminal shows on a real stack."""

import pytest

from tests.recorded import PAGES, ROOT, played, settled


@pytest.mark.parametrize("page", PAGES)
def test_a_session_prints_what_its_page_says(page: str) -> None:
    said = (ROOT / page).read_text()

    assert settled(played(said)).splitlines() == settled(said).splitlines()
