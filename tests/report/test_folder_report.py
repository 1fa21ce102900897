"""Two folders of images: pairs by name, the report, the exit status, and images accepted as the new baseline."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import serve
from idc.captioning.folder_pairs import STATES, AcceptJob, FilePair, FoldersJob, accept, caption_folders
from idc.config import ConfigError, load
from idc.data.images import encode_png
from idc.report.folder_report import MOST, comment, markdown_text, status_of, write_report
from idc.report.folder_report import test_cases as cases_of
from tests.conftest import Command
from tests.report.html_page import HtmlPage
from tests.systems.objects.test_exact import BLUE, changed, screen

EXAMPLES = Path(serve.__file__).parent / "web" / "examples"
SAME, CHANGED = encode_png(np.array(screen())), changed("rectangle", (40, 400, 239, 439), fill=BLUE)
SENTENCE = "A blue area of 200 x 40 px appeared at the bottom left."


def write(folder: Path, contents: Mapping[str, bytes]) -> Path:
    for name, data in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    olds = {"a/page.png": SAME, "a/other.png": SAME, "gone.png": SAME, "cut.png": SAME, "notes.txt": b"no image"}
    news = {"a/page.png": encode_png(CHANGED), "a/other.png": SAME, "new.png": SAME, "cut.png": SAME[:300]}
    return write(tmp_path / "old", olds), write(tmp_path / "new", news)


def job(folders: tuple[Path, Path], out: Path, **settings: object) -> FoldersJob:
    values = {"before": str(folders[0]), "after": str(folders[1]), "out": str(out), "artifact": "objects", **settings}
    return load(FoldersJob, None, values)


def test_files_are_paired_by_name_and_the_command_says_what_changed(
    folders: tuple[Path, Path], tmp_path: Path, command: Command
) -> None:
    out = tmp_path / "report"
    options = ["--local", "--fail-on", "changed", "--junit", tmp_path / "cases.xml", "--counts", "everything"]
    done = command("caption", "--before", folders[0], "--after", folders[1], "--out", out, *options)
    assert done.returncode == 3, done.stderr
    assert f"a/page.png: {SENTENCE}\n" in done.stdout
    assert "1 changed, 1 new, 1 missing, 1 not compared, 1 unchanged\n" in done.stdout
    page = HtmlPage((out / "page.html").read_text())
    assert SENTENCE in page.text
    assert page.text.index("a/page.png") < page.text.index("new.png") < page.text.index("gone.png")
    links = re.findall(r"!\[\w+\]\(([^)]+)\)", text := (out / "summary.md").read_text())
    assert len(links) == 4
    assert all((out / link).is_file() for link in links)
    assert markdown_text(SENTENCE) in text
    assert str(tmp_path) not in text, "a comment has no paths of a machine"
    [suite] = ElementTree.parse(tmp_path / "cases.xml").getroot()
    assert suite.attrib == {"name": "idc", "tests": "5", "failures": "3", "errors": "1"}
    (folders[1] / "cut.png").write_bytes(SAME)
    again = command("caption", folders[0], folders[1], "--out", out, "--local")
    assert again.returncode == 0, again.stderr
    missing = command("caption", folders[0], tmp_path / "nowhere", "--out", out, "--local")
    assert missing.returncode == 2
    assert "nowhere is not a folder" in missing.stderr


def test_captions_are_of_these_images_and_are_made_once(folders: tuple[Path, Path], tmp_path: Path) -> None:
    first = caption_folders(job(folders, tmp_path / "out"))
    part = tmp_path / "out" / "captions" / "part-00000.parquet"
    written = part.stat().st_mtime_ns
    assert caption_folders(job(folders, tmp_path / "out")) == first
    assert part.stat().st_mtime_ns == written
    states = [pair.state for pair in first if pair.name == "a/page.png"]
    turned = encode_png(CHANGED[::-1])
    for data, state in ((turned, "changed"), (SAME, "unchanged"), (turned, "changed")):
        (folders[1] / "a" / "page.png").write_bytes(data)
        again = {pair.name: pair for pair in caption_folders(job(folders, tmp_path / "out"))}["a/page.png"]
        assert (again.state, again.text != SENTENCE) == (state, True)
    assert states == ["changed"]


def row(verdict: str | None, caption: str | None = "it changed") -> dict[str, object]:
    return {"verdict": verdict, "caption": caption, "error": "after: not an image", "claims": [], "regions": []}


HERE = Path(__file__)
PAIRS = [
    FilePair("1.png", HERE, HERE, row("changed")), FilePair("2.png", None, HERE), FilePair("3.png", HERE, None),
    FilePair("4.png", HERE, HERE, row("unsure")), FilePair("5.png", HERE, HERE, row(None, None)),
    FilePair("6.png", HERE, HERE, row("unchanged")), FilePair("7.png", HERE, HERE),
]  # fmt: skip


@pytest.mark.parametrize(
    ("fail_on", "numbers", "status", "failures"),
    [
        ("never", "1234567", 3, 0), ("never", "123467", 0, 0), ("changed", "467", 0, 0), ("changed", "167", 1, 1),
        ("changed", "2", 1, 1), ("changed", "3", 1, 1), ("unsure", "46", 1, 1), ("unsure", "67", 0, 0),
        ("unsure", "12345", 3, 4),
    ],
)  # fmt: skip
def test_the_status_and_the_test_cases_agree(
    fail_on: str, numbers: str, status: int, failures: int, tmp_path: Path
) -> None:
    pairs = [pair for pair in PAIRS if pair.name[0] in numbers]
    assert [pair.state for pair in PAIRS] == [*STATES, "unchanged"]
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert status_of(job((tmp_path / "a", tmp_path / "b"), tmp_path / "o", fail_on=fail_on), pairs) == status
    [suite] = ElementTree.fromstring(cases_of(pairs, fail_on))
    assert (len(suite), suite.get("failures"), suite.get("errors")) == (
        len(pairs), str(failures), str(int("5" in numbers)),
    )  # fmt: skip
    assert [case.find("failure") is not None for case in suite].count(True) == failures


def test_a_comment_is_short_and_its_words_mention_nobody() -> None:
    pairs = [FilePair(f"{n}/é|`<x>`.png", HERE, HERE, row("changed", "x" * 150)) for n in range(1000)]
    text = comment(pairs, {})
    assert MOST - 300 < len(text) <= MOST
    rows = sum(line.startswith("| ") for line in text.splitlines()) - 1
    assert f"{1000 - rows} more are on the page." in text
    assert all(line.replace("\\|", "").count("|") == 5 for line in text.splitlines() if line.startswith("| "))
    words = markdown_text("ask @octocat about #12 <img src=x> [a](b) `c`\nand | d")
    assert "@octocat" not in words
    assert "#12" not in words
    assert "\n" not in words
    assert "\\<img" in words
    assert "\\[a\\]\\(b\\)" in words
    assert ElementTree.fromstring(cases_of([FilePair("a\x00b.png", None, HERE)], "never")) is not None


def test_images_are_accepted_by_name_or_all(folders: tuple[Path, Path]) -> None:
    settings = {"before": str(folders[0]), "after": str(folders[1])}
    assert accept(load(AcceptJob, None, settings | {"accept": ["a/page.png"]})) == ["a/page.png"]
    assert (folders[0] / "a" / "page.png").read_bytes() == encode_png(CHANGED)
    assert accept(load(AcceptJob, None, settings | {"accept": ["all"]})) == ["cut.png", "new.png"]
    assert (folders[0] / "gone.png").is_file()
    for name in ("nowhere.png", "../new/a/page.png", "notes.txt"):
        with pytest.raises(ValueError, match="has no image"):
            accept(load(AcceptJob, None, settings | {"accept": [name]}))


def test_an_acceptance_that_is_killed_leaves_the_old_image_or_the_new_one(tmp_path: Path) -> None:
    """Killed at moments that are spread over many copies."""
    old, new = b"o" * 2_000_000, b"n" * 2_000_001
    names = [f"{n}.png" for n in range(60)]
    before, after = (write(tmp_path / name, dict.fromkeys(names, data)) for name, data in (("old", old), ("new", new)))
    line = (
        "import sys; from idc.captioning.folder_pairs import AcceptJob, accept; "
        "accept(AcceptJob.model_validate_json(sys.argv[1]))"
    )
    settings = AcceptJob(before=str(before), after=str(after), accept=("all",)).model_dump_json()

    def copied() -> int:
        return sum(os.stat(before / name).st_size == len(new) for name in names)

    states = {0}
    while (reached := copied()) < len(names) and len(states) < 4:
        child = subprocess.Popen([sys.executable, "-c", line, settings])
        while child.poll() is None and copied() == reached:
            time.sleep(0)
        child.kill()
        child.wait()
        assert {(before / name).read_bytes() for name in names} <= {old, new}
        states.add(copied())
    assert len(states) == 4, "it was killed in the middle"
    accept(AcceptJob.model_validate_json(settings))
    assert {name for name in os.listdir(before) if not name.startswith(".")} == set(names)
    assert sum(pair.state == "unchanged" for pair in caption_folders(job((before, after), tmp_path / "out"))) == 60


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"out": "old/report"}, "out: .* is in the folder .*old, whose images are compared"),
        ({"fail_on": "sometimes"}, "fail_on: 'sometimes' is not one of never, changed, unsure"),
    ],
)
def test_wrong_settings_are_refused(
    folders: tuple[Path, Path], tmp_path: Path, change: dict[str, str], fault: str
) -> None:
    change = {name: str(tmp_path / value) if name == "out" else value for name, value in change.items()}
    with pytest.raises(ConfigError, match=fault):
        load(FoldersJob, None, {"before": str(folders[0]), "after": str(folders[1]), "out": "o", **change})


def test_a_second_report_has_no_pictures_of_the_first(folders: tuple[Path, Path], tmp_path: Path) -> None:
    settings = job(folders, tmp_path / "out")
    write_report(settings, caption_folders(settings))
    count = len(list((tmp_path / "out" / "pictures").iterdir()))
    write_report(settings, [])
    assert count == 4
    assert not list((tmp_path / "out").glob("pictures/*"))
