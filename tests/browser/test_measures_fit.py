"""The page of measures in a real browser: it fits a telephone with long names, and asks for nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from idc.report.measures_page import write_measures
from tests.browser.driving import too_wide
from tests.report.test_measures_page import measured

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("width", [360, 1280])
def test_it_fits(width: int, tmp_path: Path, browser: Browser) -> None:
    found = measured("a-judge/of-some-company-with-a-name-2026, differences", "a_rather_long_name_of_a_system" * 2)
    page = browser.new_page(viewport={"width": width, "height": 800})
    page.goto(write_measures(tmp_path, found).as_uri())
    assert too_wide(page) == []
    labels = page.locator(".chart text").evaluate_all(
        "(all) => all.filter((one) => { const box = one.getBBox(), view = one.ownerSVGElement.viewBox.baseVal;"
        " return box.x < 0 || box.x + box.width > view.width; }).map((one) => one.textContent)"
    )
    assert labels == []
    assert page.evaluate("performance.getEntriesByType('resource').length") == 0
    page.close()
