"""Screenshots of a small site in two versions: as the documented workflow and the documented test compare them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml
from playwright.sync_api import Browser

from idc.report.folder_report import MOST
from tests.report.html_page import HtmlPage

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
PAGES = 40
EDITS: dict[int, Callable[[str], str]] = {
    3: lambda html: html.replace("Item 2", "Item 9"),
    11: lambda html: html.replace("<li>Item 1</li>", ""),
    17: lambda html: html.replace("<h1>", "<h1 style='color:#c00'>"),
    24: lambda html: html.replace("</ul>", "</ul><p style='background:#06c;width:200px;height:60px'></p>"),
}
"""What the second version changes."""


def html(number: int) -> str:
    items = "".join(f"<li>Item {n}</li>" for n in range(1, 4 + number % 5))
    return f"<body style='font:20px sans-serif;background:#fff'><h1>Page {number}</h1><ul>{items}</ul><p>Contact us</p>"


@pytest.fixture(scope="module")
def site(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``baseline`` and ``screenshots``, and the jobs."""
    folder = tmp_path_factory.mktemp("site")
    page = browser.new_page(viewport={"width": 640, "height": 400})
    for name in ("baseline", "screenshots"):
        (folder / name).mkdir()
        for number in range(PAGES):
            edit = EDITS.get(number) if name == "screenshots" else None
            page.set_content(edit(html(number)) if edit else html(number))
            page.screenshot(path=folder / name / f"page-{number:02}.png")
    page.close()
    (folder / "jobs").symlink_to(ROOT / "jobs")
    return folder


def blocks(language: str) -> list[str]:
    """The code of this language in the section on two folders."""
    text = (ROOT / "docs" / "captioning.md").read_text(encoding="utf-8")
    section = text.partition("## Two folders")[2].partition("\n## ")[0]
    return re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)


def in_shell(line: str, folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), **more}
    return subprocess.run(["bash", "-ec", line], cwd=folder, env=environment, capture_output=True, text=True)


def test_the_steps_of_the_workflow_report_what_changed_and_fail(site: Path) -> None:
    [workflow] = blocks("yaml")
    steps = yaml.safe_load(workflow)
    runs = [in_shell(step["run"], site, GITHUB_STEP_SUMMARY="step.md") for step in steps if "run" in step]
    assert [done.returncode for done in runs] == [1, 0], runs[0].stderr
    comment = (site / "step.md").read_text()
    assert len(comment) <= MOST
    names = [f"page-{number:02}.png" for number in EDITS]
    assert re.findall(r"^\| page\\-(\d\d)\.png ", comment, re.MULTILINE) == [name[5:7] for name in names]
    for link in re.findall(r"\]\(([^)]+)\)", comment):
        assert (site / "report" / link).is_file()
    page = HtmlPage((site / "report" / "page.html").read_text())
    assert page.text.index(names[-1]) < page.text.index("36 files")
    [suite] = ElementTree.parse(site / "report" / "cases.xml").getroot()
    failed = [case.get("name") for case in suite if case.find("failure") is not None]
    assert (len(suite), failed) == (PAGES, names)
    assert 'The word "2" became "9"' in comment


def test_the_documented_test_fails_until_the_page_is_accepted(site: Path, tmp_path: Path) -> None:
    [code] = blocks("python")
    conftest = f"""
import pytest
from tests.browser.driving import chromium
@pytest.fixture
def page():
    with chromium() as browser:
        page = browser.new_page(viewport={{"width": 640, "height": 400}})
        page.route("**/*", lambda route: route.fulfill(body={EDITS[3](html(3))!r}, content_type="text/html"))
        yield page
"""
    (site / "conftest.py").write_text(conftest)
    (site / "test_pages.py").write_text(code)
    (site / "baseline" / "start.png").write_bytes((site / "baseline" / "page-03.png").read_bytes())
    line = "python -m pytest -q -p no:cacheprovider test_pages.py"
    first = in_shell(line, site)
    assert first.returncode == 1
    assert re.search(r'AssertionError: The word.* "Item 2" became "Item 9"|"2" became "9"', first.stdout), first.stdout
    accepted = in_shell("python jobs/caption.py --before baseline --after screenshots --accept start.png", site)
    assert accepted.returncode == 0, accepted.stderr
    assert in_shell(line, site).returncode == 0
