"""The page that a training names for its run in MLflow."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from pathlib import Path
from urllib.error import URLError

import pytest
from playwright.sync_api import Browser, expect

from cluster.tracking import MlflowTracker
from idc.training.config import TrackingConfig
from tests.serve.command import free_port

pytestmark = pytest.mark.slow


def test_the_link_of_a_tracked_run_shows_it(
    browser: Browser, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """MLflow's own default is a page for language models, where the run is not."""
    MlflowTracker(TrackingConfig(), tmp_path / "my-training", "my-training").end(True)
    printed = capsys.readouterr().err
    command, link = printed.partition("tracked in MLflow: ")[2].splitlines()[0].split(", then ")
    port = free_port()
    with subprocess.Popen([sys.executable, "-m", *command.split(), "--port", str(port)], cwd=tmp_path) as server:
        try:
            while True:
                assert server.poll() is None
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=60).close()
                    break
                except URLError:
                    continue
            page = browser.new_page()
            page.goto(link.replace(":5000", f":{port}"))
            expect(page.get_by_text("my-training").first).to_be_visible(timeout=60_000)
        finally:
            server.terminate()
