"""The page in a real browser: it fits a telephone, makes no request, and its pictures decode."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from idc.report.html import write_report
from tests.browser.chromium import chromium

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "report"))

pytestmark = pytest.mark.slow

PROBE = """<script>addEventListener("load", () => {
  for (const image of document.images) image.loading = "eager";
  Promise.all([...document.images].map(image => image.decode())).then(() => {
    const wide = [...document.querySelectorAll("main *")].filter(e => !e.closest(".scroll, .film, pre")
      && e.getBoundingClientRect().right > innerWidth + 1).map(e => e.tagName + "." + e.className);
    document.title = JSON.stringify({width: innerWidth, page: document.documentElement.scrollWidth, wide,
      images: [...document.images].filter(i => i.naturalWidth > 0).length,
      requests: performance.getEntriesByType("resource").filter(r => !r.name.startsWith("data:")).length});
  }, error => { document.title = "picture: " + error; });
});</script></head>"""
"""Measures the page from within. Only the tested copy has it; its content security policy is taken out."""


def browse(tmp_path: Path, page: Path, *flags: str) -> str:
    run = subprocess.run(
        [chromium(), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
         f"--user-data-dir={tmp_path / 'profile'}", *flags, page.as_uri()],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-2000:]
    return run.stdout


@pytest.fixture
def page(tmp_path: Path) -> Path:
    from test_html import full

    return write_report(tmp_path / "report.html", full())


@pytest.mark.parametrize("width", [360, 1280])
def test_it_fits_the_screen_and_loads_nothing(width: int, page: Path, tmp_path: Path) -> None:
    text = page.read_text(encoding="utf-8")
    probed = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text).replace("</head>", PROBE, 1)
    inner = tmp_path / "inner.html"
    inner.write_text(probed, encoding="utf-8")
    # A window cannot be as narrow as a telephone, a frame in it can.
    outer = tmp_path / "outer.html"
    outer.write_text(
        f'<!doctype html><iframe id="f" src="inner.html" style="width:{width}px;height:800px;border:0"></iframe>'
        "<script>const frame = document.getElementById('f');"
        "setInterval(() => { document.title = frame.contentDocument.title; }, 50);</script>"
    )
    dumped = browse(
        tmp_path,
        outer,
        "--dump-dom",
        "--allow-file-access-from-files",
        "--window-size=1400,900",
        "--virtual-time-budget=8000",
    )
    title = re.search(r"<title>(.*?)</title>", dumped)
    assert title is not None, dumped[:2000]
    assert title[1].startswith("{"), title[1]
    measured = json.loads(title[1].replace("&amp;", "&"))
    assert measured["width"] == width
    assert measured["page"] <= width, (
        f"the page is {measured['page']} pixels wide on a screen of {width}: {measured['wide']}"
    )
    assert measured["wide"] == []
    assert measured["images"] == text.count("<img ")
    assert measured["requests"] == 0


@pytest.mark.parametrize(("scheme", "dark"), [("light", False), ("dark", True)])
def test_it_follows_the_readers_colours(scheme: str, dark: bool, page: Path, tmp_path: Path) -> None:
    flags = ["--blink-settings=preferredColorScheme=0"] if dark else ["--blink-settings=preferredColorScheme=1"]
    browse(tmp_path, page, f"--screenshot={tmp_path / 'shot.png'}", "--window-size=900,1200", *flags)
    shot = np.asarray(Image.open(tmp_path / "shot.png").convert("L"))
    background = float(np.median(shot))
    assert (background < 60) == dark, f"{scheme}: the page's background is {background:.0f}"
    assert shot.std() > 10, "something is drawn on it"
