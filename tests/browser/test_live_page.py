"""The page of a running sweep in a real browser: it loads itself again, and no script or other file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from idc.report.sweep.live_page import PAGE, LivePage, update_page
from idc.sweep.progress import mark_started, write_plan
from tests.browser.driving import too_wide

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow


def test_it_follows_the_sweep_by_itself(tmp_path: Path, browser: Browser) -> None:
    write_plan(tmp_path, "A table", "CIDEr", "max", 1, tmp_path / "steps", [("a", "row a", ["finetune-a"])])
    with LivePage(tmp_path):
        shown = browser.new_page(viewport={"width": 360, "height": 800})
        shown.goto((tmp_path / PAGE).as_uri())
        assert shown.locator("tr[data-state=pending]").count() == 1
        assert too_wide(shown) == []
        mark_started(tmp_path, "a", "row a", ["finetune-a"])
        update_page(tmp_path)
        shown.locator("tr[data-state=running]").wait_for(timeout=60_000)
    shown.get_by_text("The sweep has ended").wait_for(timeout=60_000)
    shown.close()
