"""The served page in a real browser, over HTTP, with captioners that were trained for it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, expect, sync_playwright
from safetensors.torch import load_file, save_file

from idc.calibration import CalibrateJob, calibrate
from idc.data.images import decode_image
from idc.data.store import iter_rows
from idc.describe import Describer, Description
from idc.systems import load_captioner
from serve.api import create_api
from serve.schema import Busy, Captioned, EncodedPair, Options, Served
from tests.browser.chromium import chromium
from tests.browser.driving import CONTRASTS, drop, paste, pixels, too_wide, unnamed
from tests.serve.local import LocalBackend, local_config, serving
from tests.systems.procap.test_variants import STAGE_1, STAGE_2, start
from tests.systems.procap.world import World

pytestmark = pytest.mark.slow

TOKEN = "a-token-of-the-test"
LIMITS = {"image_mib": 1, "body_mib": 4, "image_pixels": 1_000_000}


@dataclass
class Backend:
    """Two captioners side by side: ``imagining`` and, of weights without that part, ``plain``."""

    artifacts: dict[str, str]
    full: bool = False
    stuck: bool = False
    locals: dict[str, LocalBackend] = field(init=False)
    describers: dict[str, Describer] = field(init=False)
    """The same artefacts again, to hold the answers against."""

    def __post_init__(self) -> None:
        self.describers = {name: load_captioner(path) for name, path in self.artifacts.items()}
        self.locals = {name: LocalBackend(path, (name,)) for name, path in self.artifacts.items()}

    def models(self) -> list[Served]:
        return [served for local in self.locals.values() for served in local.models()]

    async def caption(self, pairs: list[EncodedPair], model: str, options: Options) -> list[Captioned]:
        if self.full:
            raise Busy
        while self.stuck:
            await asyncio.sleep(0.01)
        return await self.locals[model].caption(pairs, model, options)

    async def ready(self) -> str | None:
        return None

    async def replicas(self) -> dict[str, int]:
        return {"Model": 1}


@dataclass
class Seen:
    """A page, and what it did."""

    page: Page
    url: str
    errors: list[str] = field(default_factory=list)
    """What the browser's console complains of."""
    elsewhere: list[str] = field(default_factory=list)
    """Requests to anywhere else."""

    def open(self) -> Page:
        def told(message: ConsoleMessage) -> None:
            if message.type in ("error", "warning"):
                self.errors.append(f"{message.text} {message.location.get('url')}")

        def asked(request: Request) -> None:
            if not request.url.startswith((f"{self.url}/", "data:", f"blob:{self.url}/")):
                self.elsewhere.append(request.url)

        self.page.on("console", told)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", asked)
        self.page.set_default_timeout(20_000)
        self.page.goto(f"{self.url}/")
        expect(self.page.locator("#examples button")).to_have_count(5)
        return self.page


Visit = Callable[..., AbstractContextManager[Seen]]


@pytest.fixture(scope="module")
def backend(world: World, tmp_path_factory: pytest.TempPathFactory) -> Backend:
    folder = tmp_path_factory.mktemp("served")
    first = start(STAGE_1, world.pretrain({"train.steps": 2}), folder / "stage1")
    short = {"train.steps": 2, "validation_pairs": 2}
    imagining = start(STAGE_2, world.finetune(short, pretrained=str(first)), folder / "imagining")
    plain = start(STAGE_2, world.finetune(short), folder / "plain")
    # Loud weights say something else of every pair, where a short training says the same of all.
    torch.manual_seed(0)
    state = load_file(imagining / "model.safetensors")
    loud = {name: value + 0.3 * torch.randn_like(value) for name, value in state.items()}
    save_file(loud, imagining / "model.safetensors")
    job = CalibrateJob(artifact=str(imagining), pairs=world.pairs)
    calibrate(job, lambda: load_captioner(job.artifact))
    return Backend({"imagining": str(imagining), "plain": str(plain)})


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path=chromium(), args=flags)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def url(backend: Backend) -> Iterator[str]:
    with serving(create_api(local_config("", models=backend.artifacts, limits=LIMITS), backend)) as address:
        yield address


@pytest.fixture
def visit(browser: Browser, url: str) -> Visit:
    @contextmanager
    def new(url: str = url, **context: Any) -> Iterator[Seen]:
        opened = browser.new_context(permissions=["clipboard-read", "clipboard-write"], **context)
        try:
            yield Seen(opened.new_page(), url)
        finally:
            opened.close()

    return new


@pytest.fixture(scope="module")
def pair(backend: Backend, world: World, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Files of a rendered pair that has another caption when it is swapped, and yet another with one image twice.
    Their names sort the wrong way round."""
    folder = tmp_path_factory.mktemp("pair")
    before, after = files = folder / "before.png", folder / "after.png"
    for row in iter_rows(world.pairs):
        before.write_bytes(row["before"])
        after.write_bytes(row["after"])
        if len({told(backend, two) for two in (files, (after, before), (after, after))}) == 3:
            return files
    pytest.fail("no pair shows by its caption which image was where")


def described(backend: Backend, pair: tuple[Path, Path], model: str = "imagining") -> Description:
    """What the artefact itself tells."""
    before, after = (decode_image(path.read_bytes()) for path in pair)
    return backend.describers[model].describe([before], [after], candidates=3)[0]


def told(backend: Backend, pair: tuple[Path, Path], model: str = "imagining") -> str:
    """Its caption."""
    return described(backend, pair, model).best.caption


def flat(path: Path, colour: tuple[int, int, int], width: int = 40, height: int = 30) -> Path:
    Image.new("RGB", (width, height), colour).save(path)
    return path


def noise(path: Path, side: int) -> Path:
    """A PNG of about 3 side^2 bytes."""
    data = np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8)
    Image.fromarray(data).save(path, compress_level=0)
    return path


def test_two_dropped_files_are_captioned_as_the_artefact_does(
    backend: Backend, pair: tuple[Path, Path], visit: Visit
) -> None:
    with visit() as seen:
        page = seen.open()
        drop(page, page.locator("main"), *pair)
        expect(page.locator("#caption")).to_have_text(told(backend, pair))
        expect(page.locator("#before-name")).to_contain_text("before.png, 32 × 32")
        expect(page.locator("#after-name")).to_contain_text("after.png")
        expect(page.locator("#said")).to_have_text(f"The model says: {told(backend, pair)}")
        found = described(backend, pair)
        assert found.changed is not None
        expect(page.locator("#changed")).to_contain_text(f", {100 * found.changed:.0f} %")
        expect(page.locator("#changed-track")).to_have_attribute("aria-valuenow", f"{100 * found.changed:.0f}")
        expect(page.locator("#confidence")).to_have_text(f"{100 * found.best.confidence:.0f} %")
        listed = [f"{one.caption} {100 * one.confidence:.0f} %" for one in found.candidates]
        assert page.locator("#candidates li").all_inner_texts() == listed
        expect(page.locator("#about")).to_contain_text(backend.artifacts["imagining"])
        drop(page, page.locator("[data-side=before]"), pair[1])
        expect(page.locator("#result")).to_be_hidden()
        expect(page.locator("#before-name")).to_contain_text("after.png")
        page.locator("#ask").click()
        expect(page.locator("#caption")).to_have_text(told(backend, (pair[1], pair[1])))
        assert unnamed(page) == []
        assert (seen.errors, seen.elsewhere) == ([], [])


def test_slider_map_and_film_work_by_keyboard_and_mouse(tmp_path: Path, visit: Visit) -> None:
    files = flat(tmp_path / "1.png", (255, 0, 0)), flat(tmp_path / "2.png", (0, 0, 255))
    with visit() as seen:
        page = seen.open()
        page.locator("#before").set_input_files([files[1], files[0]])  # sorted by name: 1 is before
        stage, slider = page.locator("#compare"), page.locator("#slider")

        def share_before() -> float:
            shown = pixels(stage)
            red, blue = ((shown[..., one] > 200) & (shown[..., other] < 50) for one, other in ((0, 2), (2, 0)))
            return float(red.mean() / (red.mean() + blue.mean()))

        expect(page.locator("#result")).to_be_visible()
        slider.focus()
        assert share_before() == pytest.approx(0.5, abs=0.03)
        for _ in range(30):
            page.keyboard.press("ArrowRight")
        assert share_before() == pytest.approx(0.8, abs=0.03)
        box = stage.bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + 0.8 * box["width"], box["y"] + 40)
        page.mouse.down()
        page.mouse.move(box["x"] + 0.25 * box["width"], box["y"] + 60, steps=5)
        page.mouse.up()
        assert share_before() == pytest.approx(0.25, abs=0.03)

        mapped = page.locator("#map-figure .stage")
        page.locator("#map[data-drawn]").wait_for()
        shown = pixels(mapped)
        page.locator("#opacity").focus()
        page.keyboard.press("Home")
        hidden = pixels(mapped)
        assert (hidden == (0, 0, 255)).all(-1).mean() > 0.95, "the image after alone"
        assert np.abs(shown.astype(int) - hidden).max() > 40, "the map coloured it somewhere"

        name, frame = page.locator("#frame-name"), page.locator("#frame")
        expect(name).to_have_text("Frame 1 of 4, before")
        page.locator("#previous").focus()
        page.keyboard.press("Enter")
        expect(name).to_have_text("Frame 1 of 4, before")
        page.keyboard.press("Tab")
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        expect(name).to_have_text("Frame 2 of 4")
        assert frame.get_attribute("src") == page.locator("#film img").nth(1).get_attribute("src")
        assert frame.evaluate("(image) => image.decode().then(() => image.naturalWidth)") == 32
        page.locator("#play").press("Space")
        expect(page.locator("#play")).to_have_text("Stop")
        expect(name).to_have_text("Frame 4 of 4, after")
        expect(page.locator("#play")).to_have_text("Play")
        assert seen.errors == []


def test_an_example_a_swap_and_a_paste(backend: Backend, pair: tuple[Path, Path], visit: Visit) -> None:
    web = Path(__file__).parents[2] / "serve/web/examples"
    example = json.loads((web / "examples.json").read_text())[0]
    files = web / example["before"], web / example["after"]
    with visit() as seen:
        page = seen.open()
        page.locator("#examples button").first.click()
        expect(page.locator("#caption")).to_have_text(told(backend, files))
        expect(page.locator("#truth")).to_have_text(f"Truth: {example['truth']}")
        page.locator("#swap").click()
        page.locator("#ask").click()
        expect(page.locator("#caption")).to_have_text(told(backend, (files[1], files[0])))
        expect(page.locator("#truth")).to_be_hidden()
        page.locator("#before").focus()
        paste(page, pair[0])
        expect(page.locator("#before-name")).to_have_text("image.png, 32 × 32")
        page.locator("#after").focus()
        paste(page, pair[1])
        expect(page.locator("#after-name")).to_have_text("image.png, 32 × 32")
        page.locator("#ask").click()
        expect(page.locator("#caption")).to_have_text(told(backend, pair))
        assert seen.errors == []


def test_a_model_that_cannot_imagine_shows_what_it_can(backend: Backend, pair: tuple[Path, Path], visit: Visit) -> None:
    with visit() as seen:
        page = seen.open()
        page.locator("#model").select_option("plain")
        drop(page, page.locator("main"), *pair)
        expect(page.locator("#caption")).to_have_text(told(backend, pair, "plain"))
        expect(page.locator("#missing")).to_have_text("This model shows no imagined frames.")
        expect(page.locator("#film-figure")).to_be_hidden()
        expect(page.locator("#changed")).to_have_text("not calibrated")
        expect(page.locator("#changed-track")).to_be_hidden()
        page.locator("#model").select_option("imagining")
        expect(page.locator("#caption")).to_have_text(told(backend, pair))
        expect(page.locator("#film-figure")).to_be_visible()


def test_copies_are_what_was_answered_and_the_command_works(
    backend: Backend, pair: tuple[Path, Path], tmp_path: Path, visit: Visit
) -> None:
    awkward = tmp_path / 'it\'s 1, "before"; x.png', tmp_path / "2 $HOME.png"
    for source, target in zip(pair, awkward, strict=True):
        target.write_bytes(source.read_bytes())
    with visit() as seen:
        page = seen.open()

        def run() -> dict[str, Any]:
            page.locator("#copy-curl").click()
            expect(page.locator("#copied")).to_contain_text("Copied")
            command = page.evaluate("navigator.clipboard.readText()")
            done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, done.stderr
            answer: dict[str, Any] = json.loads(done.stdout)
            return answer

        drop(page, page.locator("[data-side=before]"), awkward[0])
        drop(page, page.locator("[data-side=after]"), awkward[1])
        expect(page.locator("#ask")).to_be_enabled()
        page.locator("#ask").click()
        expect(page.locator("#caption")).to_have_text(told(backend, pair))
        page.locator("#copy-json").click()
        expect(page.locator("#copied")).to_have_text("Copied, without the pictures.")
        copied = json.loads(page.evaluate("navigator.clipboard.readText()"))["results"][0]
        ran = run()["results"][0]
        assert copied["caption"] == ran["caption"] == told(backend, pair)
        assert [one["caption"] for one in copied["candidates"]] == [one["caption"] for one in ran["candidates"]]
        page.locator("#examples button").nth(1).click()
        expect(page.locator("#truth")).to_be_visible()
        assert run()["results"][0]["caption"] == page.locator("#caption").inner_text()


def test_copies_work_where_browsers_offer_no_clipboard(pair: tuple[Path, Path], visit: Visit) -> None:
    """As over plain http from another machine."""
    with visit() as seen:
        seen.page.add_init_script("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
        page = seen.open()
        drop(page, page.locator("main"), *pair)
        expect(page.locator("#result")).to_be_visible()
        page.locator("#copy-curl").focus()
        page.keyboard.press("Enter")
        expect(page.locator("#copied")).to_contain_text("Copied")
        expect(page.locator("#copy-curl")).to_be_focused()
        page.evaluate("document.body.append(Object.assign(document.createElement('textarea'), {id: 'here'}))")
        page.locator("#here").press("Control+V")
        assert f"{seen.url}/v1/captions" in page.locator("#here").input_value()
        assert page.locator("textarea").count() == 1


def test_history_is_kept_bounded_and_cleared(backend: Backend, pair: tuple[Path, Path], visit: Visit) -> None:
    with visit() as seen:
        page = seen.open()
        expect(page.locator("#history")).to_be_hidden()
        drop(page, page.locator("main"), *pair)
        expect(page.locator("#past li")).to_have_count(1)
        page.reload()
        item = page.locator("#past li")
        expect(item).to_contain_text(told(backend, pair))
        decoded = "(images) => Promise.all(images.map((i) => i.decode().then(() => i.naturalWidth)))"
        assert item.locator("img").evaluate_all(decoded) == [32, 32]
        page.evaluate(
            """() => {
              const [one] = JSON.parse(localStorage["idc.history"]);
              localStorage["idc.history"] = JSON.stringify(Array(50).fill({...one, caption: "old"}));
            }"""
        )
        drop(page, page.locator("main"), *pair)
        expect(item.first).to_contain_text(told(backend, pair))
        expect(item).to_have_count(20)
        page.locator("#forget").click()
        page.reload()
        expect(page.locator("#history")).to_be_hidden()
        assert page.evaluate("localStorage['idc.history']") is None


def test_broken_and_oversized_files_are_explained_beside_their_slot(
    pair: tuple[Path, Path], tmp_path: Path, visit: Visit
) -> None:
    (tmp_path / "words.png").write_text("no picture")
    (tmp_path / "photo.heic").write_bytes(b"\0\0\0\x18ftypheic")
    (tmp_path / "empty.png").touch()
    (tmp_path / "drawing.svg").write_text('<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>')
    big = noise(tmp_path / "large.png", 700)
    cut = tmp_path / "cut.png"
    cut.write_bytes(noise(tmp_path / "whole.png", 300).read_bytes()[:9000])
    with visit() as seen:
        page = seen.open()
        drop(page, page.locator("[data-side=after]"), pair[1])
        slot, fault = page.locator("[data-side=before]"), page.locator("#before-fault")
        for name, message in (
            ("words.png", "words.png cannot be read as an image: it is damaged or of another kind"),
            ("photo.heic", "photo.heic is a HEIC file, which this browser cannot show. Save it as JPEG or PNG."),
            ("empty.png", "empty.png is empty."),
        ):
            drop(page, slot, tmp_path / name)
            expect(fault).to_contain_text(message)
            expect(fault).to_have_attribute("role", "alert")
            expect(page.locator("#ask")).to_be_disabled()
        assert seen.errors == []
        for path, message in (
            (tmp_path / "drawing.svg", "drawing.svg: no readable image; taken are PNG, JPEG"),
            (big, "large.png: an image may have 1 MiB"),
            (flat(tmp_path / "wide.png", (9, 9, 9), 1500, 1000), "wide.png: 1500 x 1000 pixels; allowed are 1,000,000"),
        ):
            drop(page, slot, path)
            expect(page.locator("#before-name")).to_contain_text(path.name)
            page.locator("#ask").click()
            expect(fault).to_contain_text(message)
            expect(page.locator("#result")).to_be_hidden()
        drop(page, slot, noise(tmp_path / "huge.png", 2000))
        expect(page.locator("#before-name")).to_contain_text("huge.png")
        page.locator("#ask").click()
        expect(page.locator("#fault")).to_contain_text("a request may have 4 MiB")
        drop(page, slot, cut)  # a browser shows it in part
        expect(page.locator("#before-name")).to_contain_text("cut.png")
        page.locator("#ask").click()
        expect(fault).to_contain_text("cut.png: ")
        drop(page, page.locator("main"), pair[0], pair[1], cut)
        expect(page.locator("#fault")).to_contain_text("3 files at once")
        drop(page, slot, pair[0])
        expect(page.locator("#before-name")).to_contain_text("before.png")
        page.locator("#ask").click()
        expect(page.locator("#result")).to_be_visible()
        expect(page.locator(".fault").filter(visible=True)).to_have_count(0)


def test_a_busy_or_absent_server_is_explained(backend: Backend, pair: tuple[Path, Path], visit: Visit) -> None:
    with visit() as seen:
        page = seen.open()
        page.clock.install()
        backend.full = True
        try:
            drop(page, page.locator("main"), *pair)
            expect(page.locator("#fault")).to_contain_text("Try again in 1 s.")
            page.clock.fast_forward(1500)
            expect(page.locator("#fault")).to_have_text("The server was busy. Try again now.")
        finally:
            backend.full = False
        page.context.set_offline(True)
        page.locator("#ask").click()
        expect(page.locator("#fault")).to_contain_text("You are offline.")
        page.context.set_offline(False)
        page.locator("#ask").click()
        expect(page.locator("#caption")).to_have_text(told(backend, pair))
        assert "".join(page.locator(".fault").all_inner_texts()) == ""


def test_another_pair_ends_the_question_under_way(backend: Backend, pair: tuple[Path, Path], visit: Visit) -> None:
    with visit() as seen:
        page = seen.open()
        backend.stuck = True
        try:
            drop(page, page.locator("main"), *pair)
            expect(page.locator("#waiting")).to_contain_text("Asking the model")
            with page.expect_event("requestfailed"):
                page.locator("#swap").click()
            expect(page.locator("#waiting")).to_have_text("")
        finally:
            backend.stuck = False
        page.locator("#ask").click()
        expect(page.locator("#caption")).to_have_text(told(backend, (pair[1], pair[0])))


def test_a_token_is_asked_for_and_forgotten_with_the_tab(
    backend: Backend, pair: tuple[Path, Path], visit: Visit
) -> None:
    who = {"name": "tester", "sha256": hashlib.sha256(TOKEN.encode()).hexdigest()}
    config = local_config("", models=backend.artifacts, auth={"mode": "token", "tokens": [who]})
    with serving(create_api(config, backend)) as url, visit(url) as seen:
        page = seen.open()
        form, token = page.locator("#token-form"), page.locator("#token")
        expect(form).to_be_visible()
        drop(page, page.locator("main"), *pair)
        token.fill("wrong")
        token.press("Enter")
        expect(page.locator("#token-fault")).not_to_be_empty()
        token.fill(TOKEN)
        token.press("Enter")
        expect(page.locator("#caption")).to_have_text(told(backend, pair))
        expect(form).to_be_hidden()
        assert TOKEN not in page.evaluate("JSON.stringify(localStorage) + document.cookie + location.href")
        page.locator("#copy-curl").click()
        expect(page.locator("#copied")).to_contain_text("Copied")
        command = page.evaluate("navigator.clipboard.readText()")
        assert TOKEN not in command
        run = ["bash", "-c", command]
        environment = {"IDC_TOKEN": TOKEN, "PATH": "/usr/bin:/bin"}
        done = subprocess.run(run, cwd=pair[0].parent, env=environment, capture_output=True, text=True, timeout=60)
        assert json.loads(done.stdout)["results"][0]["caption"] == told(backend, pair)
        page.reload()
        drop(page, page.locator("main"), *pair)
        expect(page.locator("#caption")).to_have_text(told(backend, pair))
        another = Seen(page.context.new_page(), url).open()
        expect(another.locator("#token-form")).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_it_fits_and_can_be_read(
    scheme: str, width: int, pair: tuple[Path, Path], tmp_path: Path, visit: Visit
) -> None:
    (tmp_path / "words.png").write_text("no picture")
    with visit(color_scheme=scheme, viewport={"width": width, "height": 740}, reduced_motion="reduce") as seen:
        page = seen.open()
        assert too_wide(page) == []
        long = tmp_path / f"{'long' * 40}.png"
        long.write_bytes(pair[0].read_bytes())
        drop(page, page.locator("[data-side=before]"), long)
        page.locator("#after").set_input_files(pair[1])
        page.locator("#ask").click()
        expect(page.locator("#result")).to_be_visible()
        page.locator("#map[data-drawn]").wait_for()
        drop(page, page.locator("[data-side=before]"), tmp_path / "words.png")
        expect(page.locator("#before-fault")).to_be_visible()
        assert too_wide(page) == []
        for theme, dark in (("", scheme == "dark"), ("dark", True), ("light", False)):
            page.locator("#theme").select_option(theme)
            paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
            assert (int(paper.removeprefix("rgb(").split(",")[0]) < 60) == dark, f"{theme}: {paper}"
            contrasts = page.evaluate(CONTRASTS)
            assert len(contrasts) > 20
            assert [found for found in contrasts if found[0] < 4.5] == []
        page.reload()
        assert page.evaluate("document.documentElement.dataset.theme") == "light", "the choice is kept"


def test_the_keyboard_reaches_every_control_and_shows_where_it_is(pair: tuple[Path, Path], visit: Visit) -> None:
    with visit() as seen:
        page = seen.open()
        drop(page, page.locator("main"), *pair)
        expect(page.locator("#result")).to_be_visible()
        page.evaluate("document.activeElement.blur(); window.focus()")
        reached = []
        for _ in range(60):
            page.keyboard.press("Tab")
            at = page.evaluate(
                """() => {
                  const e = document.activeElement;
                  if (e === document.body) return null;
                  const shown = [e, e.closest(".slot"), e.closest("#compare")].filter(Boolean).map(getComputedStyle)
                  return [e.id || e.getAttribute("href") || e.closest("ul, ol").id,
                    shown.some((s) => s.outlineStyle !== "none" && parseFloat(s.outlineWidth) >= 2)];
                }"""
            )
            if at is None:
                break
            assert at[1], f"{at[0]} has the focus and does not show it"
            reached.append(at[0])
        expected = ["model", "theme", *["examples"] * 5, "before", "after", "ask", "swap", "slider", "opacity"]
        expected += ["previous", "play", "next", *["film"] * 4, "copy-json", "copy-curl", "forget", "docs", "v1/models"]
        assert reached == expected
