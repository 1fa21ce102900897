"""The pages for users: links resolve, commands are accepted, and every command is documented."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from PIL import Image

from idc.__main__ import commands
from idc.data.schema import ChangePair
from jobs import import_dataset
from tests.docs.checks import ROOT, broken_links, faulty_block, faulty_code

PAGES = sorted(
    [
        *(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "BENCHMARKS.md", "CONTRIBUTING.md", "PAPERS.md")),
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "idc" / "systems").glob("*/README.md"),
        ROOT / "k8s" / "README.md",
    ]
)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_of_a_page_resolve_its_commands_are_accepted_and_files_that_it_names_exist(page: Path) -> None:
    """Code spans like ``idc/config.py``; names of outputs (``runs/...``, ``data/...``) and patterns are none."""
    assert broken_links(page) + faulty_code(page) == []
    folders = ("idc/", "cluster/", "jobs/", "k8s/", "serve/", "benchmarks/", "tests/", "docs/")
    spans = set(re.findall(r"`([\w./-]+\.(?:py|yaml|html|js|css|md))`", page.read_text(encoding="utf-8")))
    assert sorted(span for span in spans if span.startswith(folders) and not (ROOT / span).exists()) == []


def test_every_page_is_linked_from_the_readme() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [name_of(page) for page in PAGES if f"]({name_of(page)}" not in text and page.name != "README.md"] == []


def test_every_command_and_every_make_target_has_an_example() -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    targets = re.search(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    # `make` starts the two.
    jobs = {f"jobs/{name.replace('-', '_')}.py" for name in commands(ROOT)} - {"jobs/serve.py", "jobs/demo.py"}
    used = {*re.findall(r"python +(jobs/\w+\.py)", text), *re.findall(r"make +([a-z-]+)", text)}
    assert {*jobs, *targets[1].split()} - used == set()


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[a](nowhere.md)", "nowhere.md: no such file"),
        ("[a](README.md#no-such-heading)", "no such heading"),
        ("[a](#the-demo)", "no such heading"),
        ("[![a](docs/demo.png)](docs/gone.md)", "docs/gone.md: no such file"),
    ],
)
def test_a_broken_link_is_found(text: str, fault: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tests.docs.checks.ROOT", tmp_path)
    for page in ("README.md", "docs/demo.png"):
        (tmp_path / page).parent.mkdir(exist_ok=True)
        (tmp_path / page).write_text("# Title\n")
    (tmp_path / "page.md").write_text(f"# Page\n\n{text} `[a](code.md)`\n\n```\n[a](block.md)\n```\n")
    (broken,) = broken_links(tmp_path / "page.md")
    assert fault in broken


@pytest.mark.parametrize(
    ("language", "text", "fault"),
    [
        ("", "python jobs/render.py out=pairs render.num_scens=3", "did you mean 'num_scenes'"),
        ("", "python jobs/rendr.py out=pairs", "no such script: jobs/rendr.py"),
        ("", "python -m pytest tests/test_gone.py", "no such test"),
        ("", "ray job submit --working-dir . -- python jobs/render.py outt=x", "outt"),
        ("", 'make serve SERVE="models.demo=a prt=1"', "prt"),
        ("", "kubectl apply -k k8s/overlays/prod", "no such file"),
        ("", "idc captoin a b", "no such command"),
        ("", "idc-caption a b", "nothing checks this program"),
        ("python", "print('x'", "never closed"),
        ("ruby", "puts 1", "nothing checks this language"),
    ],
)
def test_a_broken_command_is_found(language: str, text: str, fault: str) -> None:
    faults = list(faulty_block(language, text))
    assert len(faults) == 1
    assert fault in faults[0]


@pytest.mark.parametrize(("fence", "name"), [("json", "pairs.jsonl"), ("text", "pairs.csv")])
def test_the_rows_of_ones_own_pairs_are_imported_as_documented(
    fence: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
    rows = [text for text in re.findall(rf"^```{fence}\n(.*?)^```$", page, re.M | re.S) if "yard-1" in text]
    (tmp_path / name).write_text(rows[0])
    (tmp_path / "img").mkdir()
    for image in ("1a.jpg", "1b.jpg"):
        Image.new("RGB", (8, 8), "gray" if image == "1a.jpg" else "red").save(tmp_path / "img" / image)
    arguments = [f"format={name.split('.')[1]}", f"source={tmp_path / name}", f"out={tmp_path / 'out'}", "--local"]
    monkeypatch.setattr("sys.argv", ["import_dataset.py", *arguments])
    import_dataset.main()
    (row,) = pq.read_table(next((tmp_path / "out").glob("part-*.parquet"))).to_pylist()
    pair = ChangePair.from_row(row)
    assert (pair.pair_id, pair.captions) == ("yard-1", ("a car has left",))
    assert (pair.change_type, pair.split) == ("drop", "train")
    assert pair.before == (tmp_path / "img" / "1a.jpg").read_bytes()
    listed = re.findall(r"^\| ((?:`\w+`,? ?)+)\| (?:string|binary|list)", page, re.M)
    assert set(re.findall(r"\w+", " ".join(listed))) == row.keys()
