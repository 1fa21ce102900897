"""Storage of the served page in the browser: the pair of a tab, and a history whose entries can be reopened."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from tests.browser.driving import drop, pixels
from tests.browser.served import Backend, Seen, Visit, caption_of
from tests.serve.waiting import until

pytestmark = pytest.mark.slow

STORED = """async (change) => {
  const request = (one) => new Promise((resolve, reject) => {
    one.onsuccess = () => resolve(one.result);
    one.onerror = () => reject(one.error);
  });
  const database = await request(indexedDB.open("idc"));
  const stores = Object.fromEntries(["answers", "pairs"].map((name) => [name, (mode) =>
    database.transaction(name, mode ?? "readonly").objectStore(name)]));
  for (const record of change) {
    const [one] = await request(stores.answers().getAll());
    await request(stores.answers("readwrite").put({...one, ...record}));
  }
  const found = {};
  for (const name of ["answers", "pairs"]) found[name] = (await request(stores[name]().getAll())).length;
  database.close();
  return found;
}"""
"""Adds copies of the first result with changed fields, and counts the stored records."""


def stored(page: Page, *copies: dict[str, object]) -> dict[str, int]:
    """Numbers of records after copies of the first result with these changes are added."""
    found: dict[str, int] = page.evaluate(STORED, list(copies))
    return found


def test_an_entry_of_the_history_opens_again_without_the_server(
    backend: Backend, pair: tuple[Path, Path], visit: Visit
) -> None:
    with visit() as seen:
        page = seen.open()
        drop(page, page.locator("main"), *pair)
        expect(page.locator("#caption")).to_have_text(caption_of(backend, pair))
        page.locator("#map[data-drawn]").wait_for()
        shown, asked = pixels(page.locator("#compare")), page.locator("#about").inner_text()
        page.locator("#swap").click()
        page.locator("#ask").click()
        expect(page.locator("#caption")).to_have_text(caption_of(backend, (pair[1], pair[0])))
        expect(page.locator("#past button")).to_have_count(2)
        page.reload()
        expect(page.locator("#past button")).to_have_count(2)
        expect(page.locator("#examples button")).to_have_count(17)
        page.wait_for_function("[...document.querySelectorAll('#examples img')].every((image) => image.complete)")
        page.context.set_offline(True)
        entry = page.locator("#past button").nth(1)
        entry.focus()
        page.keyboard.press("Enter")
        expect(page.locator("#caption")).to_have_text(caption_of(backend, pair))
        expect(page.locator("#before-name")).to_contain_text("before.png, 32 × 32")
        expect(page.locator("#about")).to_contain_text(f"{asked} · answered ")
        page.locator("#map[data-drawn]").wait_for()
        expect(page.locator("#compare")).to_be_in_viewport()
        assert np.array_equal(pixels(page.locator("#compare")), shown)
        expect(page.locator("#past button")).to_have_count(2)
        page.context.set_offline(False)
        page.locator("#ask").click()
        expect(page.locator("#about")).not_to_contain_text("answered")
        expect(page.locator("#caption")).to_have_text(caption_of(backend, pair))
        assert seen.errors == []


def test_the_pair_and_its_answer_survive_a_reload_of_their_tab(
    backend: Backend, pair: tuple[Path, Path], visit: Visit
) -> None:
    with visit() as seen:
        page = seen.open()
        drop(page, page.locator("[data-side=after]"), pair[1])
        expect(page.locator("#after-name")).to_contain_text("after.png")
        until(lambda: stored(page)["pairs"] == 1, "the pair is stored, which takes longer than its name is shown")
        page.reload()
        expect(page.locator("#after-name")).to_contain_text("after.png, 32 × 32")
        expect(page.locator("#before-name")).to_have_text("")
        expect(page.locator("#result")).to_be_hidden()
        drop(page, page.locator("[data-side=before]"), pair[0])
        page.locator("#ask").click()
        expect(page.locator("#caption")).to_have_text(caption_of(backend, pair))
        expect(page.locator("#past button")).to_have_count(1)
        questions: list[str] = []
        page.on("request", lambda request: questions.append(request.method))
        page.reload()
        expect(page.locator("#caption")).to_have_text(caption_of(backend, pair))
        expect(page.locator("#before-name")).to_contain_text("before.png, 32 × 32")
        assert "POST" not in questions, "the answer was kept, too"
        page.locator("#ask").click()
        expect(page.locator("#past button")).to_have_count(2)
        another = Seen(page.context.new_page(), seen.url).open()
        expect(another.locator("#past button")).to_have_count(2)
        expect(another.locator("#before-name")).to_have_text("")
        assert seen.errors == []


def test_the_history_is_bounded_in_number_and_bytes_and_cleared(
    backend: Backend, pair: tuple[Path, Path], visit: Visit
) -> None:
    with visit() as seen:
        page = seen.open()
        expect(page.locator("#history")).to_be_hidden()
        drop(page, page.locator("main"), *pair)
        entries = page.locator("#past button")
        expect(entries).to_have_count(1)
        assert stored(page, *({"id": f"old {n}", "time": n} for n in range(30)))["answers"] == 31
        page.locator("#ask").click()
        expect(entries).to_have_count(20)
        expect(entries.first).to_contain_text(caption_of(backend, pair))
        assert stored(page)["answers"] == 20
        stored(page, *({"id": f"large {n}", "time": 4e12 + n, "bytes": 30 * 2**20} for n in range(3)))
        page.locator("#ask").click()
        expect(entries).to_have_count(1 + 2)  # of 64 MiB
        kept = stored(page)
        asked: list[str] = []
        page.once("dialog", lambda dialog: (asked.append(dialog.message), dialog.dismiss()))
        page.locator("#forget").click()
        assert asked == ["Delete all results of the history from this browser?"]
        assert stored(page) == kept
        page.once("dialog", lambda dialog: dialog.accept())
        page.locator("#forget").click()
        expect(page.locator("#history")).to_be_hidden()
        assert stored(page) == {"answers": 0, "pairs": 0}
        page.reload()
        expect(page.locator("#before-name")).to_have_text("")
        expect(page.locator("#history")).to_be_hidden()
