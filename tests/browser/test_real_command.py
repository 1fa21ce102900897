"""``python -m serve.app`` without a model: curl, OpenAI's client and the page say what the captioner itself says."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import openai
import pytest
from playwright.sync_api import expect

from idc.captioning.apply import Pixels
from idc.captioning.loading import AUTO, DEFAULTS, CaptionerLoader
from idc.data.images import decode_image
from serve.api import WEB
from tests.browser.driving import drop
from tests.serve.bodies import url
from tests.serve.command import serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.slow, pytest.mark.ray]
EXAMPLES = WEB / "examples"
PAIRS = {
    "one bottle fewer": ("photographs/bottle_00100.jpg", "photographs/bottle_00260.jpg"),
    "an apple, then an orange": ("photographs/fruit_014.jpg", "photographs/fruit_100.jpg"),
    "rendered": ("color-before.png", "color-after.png"),
}
IGNORED = [[0, 0, 0.5, 1]]


def test_all_ways_give_the_sentence_and_the_claims_of_the_captioner_itself(browser: Browser, tmp_path: Path) -> None:
    captioner = CaptionerLoader(AUTO, DEFAULTS)()
    with serving(tmp_path, "limits.timeout_s=300") as command:
        for files in ([EXAMPLES / name for name in pair] for pair in PAIRS.values()):
            pixels = Pixels(*(decode_image(file.read_bytes()) for file in files))
            parts = [pixels.counting(ignore, ()).counted for ignore in ((), IGNORED)]
            for ignore, counted in zip(([], IGNORED), parts, strict=True):
                [expected] = captioner.describe([pixels.before], [pixels.after], counted=[counted])
                told = expected.to_dict()
                said = told["caption"], told["claims"], told["captioner"], told["verdict"]
                for answer in (
                    by_curl(command.url, files, ignore),
                    by_openai(command.url, files, ignore),
                    by_page(browser, command.url, files, ignore),
                ):
                    assert answer == said
    assert '"failure"' not in command.log.read_text()


def by_curl(address: str, files: list[Path], ignore: list[list[float]]) -> tuple[object, ...]:
    form = [f"-Fbefore=@{files[0]}", f"-Fafter=@{files[1]}", *([f"-Fignore={json.dumps(ignore)}"] if ignore else [])]
    done = subprocess.run(["curl", "-sS", *form, f"{address}/v1/captions"], capture_output=True, text=True, check=True)
    [result] = json.loads(done.stdout)["results"]
    return tuple(result[name] for name in ("caption", "claims", "captioner", "verdict"))


def by_openai(address: str, files: list[Path], ignore: list[list[float]]) -> tuple[object, ...]:
    images = [{"type": "image_url", "image_url": {"url": url(file.read_bytes())}} for file in files]
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", timeout=300) as client:
        messages = [{"role": "user", "content": [{"type": "text", "text": "What changed?"}, *images]}]
        answer = client.chat.completions.create(model=AUTO, messages=messages, extra_body={"ignore": ignore})  # type: ignore[arg-type]
    extra = answer.model_extra or {}
    return answer.choices[0].message.content, extra["claims"], extra["captioner"], extra["verdict"]


def by_page(browser: Browser, address: str, files: list[Path], ignore: list[list[float]]) -> tuple[object, ...]:
    """What is displayed, but for claims, of which the list has the words, and a copy the rest."""
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    try:
        page = context.new_page()
        page.goto(f"{address}/")
        drop(page, page.locator("[data-side=before]"), files[0])
        drop(page, page.locator("[data-side=after]"), files[1])
        expect(page.locator("#ask")).to_be_enabled()
        if ignore:
            page.locator("#parts summary").click()
            page.locator("#part-boxes").fill(", ".join(map(str, ignore[0])))
        page.locator("#ask").click()
        expect(page.locator("#result")).to_be_visible(timeout=300_000)
        page.locator("#copy-json").click()
        expect(page.locator("#copied")).to_contain_text("Copied")
        copied = json.loads(page.evaluate("navigator.clipboard.readText()"))["results"][0]
        assert page.locator("#claims li").count() == len(copied["claims"] or ())
        speaker = page.locator("#speaker").inner_text().removeprefix("Captioner: ")
        verdict = page.locator("#verdict-name").inner_text().split()[0].lower()
        return page.locator("#caption").inner_text(), copied["claims"], speaker, verdict
    finally:
        context.close()
