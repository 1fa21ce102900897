"""Fixtures of the browser tests. Captioners are made once; browser and server end with each file, because
Playwright's event loop must not remain in the main thread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.chromium import chromium

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tests.browser.served import Backend, Seen, Visit
    from tests.systems.procap.world import World


@pytest.fixture(scope="session")
def backend(world: World, tmp_path_factory: pytest.TempPathFactory) -> Backend:
    import torch
    from safetensors.torch import load_file, save_file

    from idc.captioning.calibration_job import CalibrateJob, calibrate
    from idc.systems import load_captioner
    from tests.browser.served import Backend
    from tests.systems.procap.world import start

    folder = tmp_path_factory.mktemp("served")
    first = start(world.pretrain({"train.steps": 2}), folder / "stage1")
    short = {"train.steps": 2, "validation_pairs": 2}
    calibrated = start(world.finetune(short, pretrained=str(first)), folder / "calibrated")
    plain = start(world.finetune(short), folder / "plain")
    # Noisy weights give each pair another caption, where a short training gives all the same.
    torch.manual_seed(0)
    state = load_file(calibrated / "model.safetensors")
    loud = {name: value + 0.3 * torch.randn_like(value) for name, value in state.items()}
    save_file(loud, calibrated / "model.safetensors")
    job = CalibrateJob(artifact=str(calibrated), pairs=world.pairs)
    calibrate(job, lambda: load_captioner(job.artifact))
    return Backend({"calibrated": str(calibrated), "plain": str(plain)})


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=30_000)  # what a waiting expectation gives a page on a busy machine; 5 s by default
    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path=chromium(), args=flags)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def url(backend: Backend) -> Iterator[str]:
    from serve.api import create_api
    from tests.browser.served import LIMITS
    from tests.serve.local import local_config, serving

    with serving(create_api(local_config("", models=backend.artifacts, limits=LIMITS), backend)) as address:
        yield address


@pytest.fixture
def visit(browser: Browser, url: str) -> Visit:
    from tests.browser.served import Seen

    @contextmanager
    def new(url: str = url, **context: Any) -> Iterator[Seen]:
        opened = browser.new_context(permissions=["clipboard-read", "clipboard-write"], **context)
        try:
            yield Seen(opened.new_page(), url)
        finally:
            opened.close()

    return new


@pytest.fixture(scope="session")
def pair(backend: Backend, world: World, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Files of a rendered pair whose caption differs from that of the swapped pair, and from that of one image twice.
    Their names sort in the wrong order."""
    from idc.data.store import iter_rows
    from tests.browser.served import caption_of

    folder = tmp_path_factory.mktemp("pair")
    before, after = files = folder / "before.png", folder / "after.png"
    for row in iter_rows(world.pairs):
        before.write_bytes(row["before"])
        after.write_bytes(row["after"])
        if len({caption_of(backend, two) for two in (files, (after, before), (after, after))}) == 3:
            return files
    pytest.fail("no pair shows by its caption which image was where")
