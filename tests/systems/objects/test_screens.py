"""The benchmark of changed web pages on two of its pages: every operator, every control."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from benchmarks.screen_pages import CONTROLS, OPERATORS, changed_screens, chromium, control_screens
from benchmarks.screens import judge_screens
from idc.systems.objects.exact import is_exact_pair

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow
PAGE = 3


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.mark.parametrize("operator", OPERATORS)
def test_a_change_of_a_page_is_noticed_at_its_place_with_its_words(browser: Browser, operator: str) -> None:
    screens = changed_screens(browser, PAGE, operator)
    assert screens is not None
    assert is_exact_pair(screens.before, screens.after)
    result, sentence = judge_screens(screens, operator)
    assert result.noticed, sentence
    assert result.located, sentence
    assert result.worded is not False, sentence
    assert result.right == result.claims, sentence


@pytest.mark.parametrize("control", CONTROLS)
def test_a_page_that_is_rendered_again_is_unchanged(browser: Browser, control: str) -> None:
    screens = control_screens(browser, PAGE, control)
    assert is_exact_pair(screens.before, screens.after)
    result, sentence = judge_screens(screens, "")
    assert not result.noticed, sentence
