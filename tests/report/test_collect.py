"""The report's contents from the folders of a run, and the job."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from idc.data.images import encode_png
from idc.data.schema import ChangePair
from idc.evaluation import record as ev
from idc.evaluation.score import evaluate_captions
from idc.report.config import ReportJob
from idc.report.page import Cards
from idc.report.run_page import by_score, collect, spread_over_types
from tests.conftest import Command
from tests.folders import write_rows
from tests.report.html_page import HtmlPage


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's folders: 8 pairs, procedures of 6 of them, an evaluation."""
    root = tmp_path_factory.mktemp("run")
    pairs, procedures, predictions = [], [], []
    for i in range(8):
        kind = ("none", "move")[i % 2]
        image = np.full((20, 30, 3), 20 * i, np.uint8)
        mask = np.zeros((20, 30), np.uint8)
        mask[:5] = 255 if kind == "move" else 0
        captions = ("the ball moved", f"ball {i} moved") if kind == "move" else ("no change", "nothing has changed")
        pair = ChangePair(f"p{i}", encode_png(image), encode_png(image), captions, kind, "test", encode_png(mask))
        pairs.append(pair.to_row())
        if i < 6:
            frames = [encode_png(image)] * 5
            procedures.append(
                {"pair_id": f"p{i}", "split": "test", "frames": frames, "confidence": [0.1, 0.2, 0.3], "keyframes": [2]}
            )
        predictions.append(
            ev.Prediction(
                pair_id=f"p{i}", caption=captions[0] if i < 6 else "a cube", references=list(captions), change_type=kind
            )
        )
    write_rows(root / "pairs", pairs)
    write_rows(root / "procedures", procedures, "procedures", pa.Table.from_pylist(procedures).schema)
    evaluation, rows = evaluate_captions(predictions, metrics=("CIDEr",))
    ev.save(root / "evaluation", evaluation.model_copy(update={"seconds": {"scoring": 1.5}}), rows)
    return root


def test_everything_is_gathered(run: Path) -> None:
    job = ReportJob(
        out="x", evaluations=(str(run / "evaluation"),), pairs=str(run / "pairs"), procedures=str(run / "procedures"),
    )  # fmt: skip
    page = collect(job)
    pairs = {block.title: block.items for block in page.sections[0].blocks if isinstance(block, Cards)}
    assert {title: [card.name for card in cards] for title, cards in pairs.items()} == {
        "": ["p0", "p1", "p2", "p3", "p4", "p5"],
        "A few of every kind (8)": [f"p{i}" for i in range(8)],
        "Best by CIDEr (4)": ["p1", "p3", "p5", "p0"],
        "Worst by CIDEr (4)": ["p6", "p7", "p0", "p2"],
    }
    first, second = pairs[""][:2]
    assert [len(first.views), len(second.views)] == [2, 3], "an empty mask is none"
    assert second.views[0][1][0, 0, 0] == 20
    assert [label for label, *_ in second.frames] == ["before", "0.100", "0.200 key", "0.300", "after"]
    assert "names move" in second.tags[1]
    assert not pairs["Worst by CIDEr (4)"][0].frames, "a pair without a procedure is shown all the same"
    text = " ".join(HtmlPage(page.html()).text.split())
    for part in ("scoring 1.5 s", "python 3."):
        assert part in text, part


def test_another_captioner_is_compared_on_the_same_pairs_alone(run: Path, tmp_path: Path) -> None:
    settings = {"out": "x", "evaluations": (str(run / "evaluation"),), "pairs": str(run / "pairs")}
    same = str(run / "evaluation")
    assert "CIDEr-D, Rival" in collect(ReportJob(**settings, compare={"Rival": (same, same)})).html()
    rows = ev.load_predictions(same)
    ev.save(tmp_path / "fewer", ev.load_evaluation(same), rows[1:])
    with pytest.raises(ValueError, match=r"compare\.Rival: not the same pairs: here 8 pairs, .* 7; 'p0' is"):
        collect(ReportJob(**settings, compare={"Rival": (str(tmp_path / "fewer"),)}))
    with pytest.raises(ValueError, match=r"compare\.truth: the page has another row of this name"):
        collect(ReportJob(**settings, compare={"truth": (same,)}))


def test_the_gallery_takes_the_types_in_turn() -> None:
    rows = [
        ev.ScoredCaption(pair_id=f"{kind}{i}", caption="", change_type=kind)
        for kind in ("add", "move")
        for i in range(3)
    ]
    rows.append(ev.ScoredCaption(pair_id="x", caption=""))
    assert [row.pair_id for row in spread_over_types(rows, 5)] == ["add0", "move0", "x", "add1", "move1"]
    assert len(spread_over_types(rows, 99)) == 7
    assert spread_over_types([], 3) == []
    assert by_score(rows, 3, best=True) == [], "without scores there is no best"


def test_other_pairs_than_the_evaluated_ones_are_refused(run: Path, tmp_path: Path) -> None:
    rows = ev.load_predictions(run / "evaluation")
    ev.save(tmp_path, ev.load_evaluation(run / "evaluation"), [rows[0].model_copy(update={"pair_id": "elsewhere"})])
    with pytest.raises(ValueError, match="lacks 1 of the captioned pairs: elsewhere"):
        collect(ReportJob(out="x", evaluations=(str(tmp_path),), pairs=str(run / "pairs")))


def test_the_command_writes_the_page(run: Path, tmp_path: Path, command: Command) -> None:
    done = command(
        "evaluate", f"out={tmp_path}/r.html", f"evaluations=[{run}/evaluation]", f"pairs={run}/pairs",
        f"procedures={run}/procedures",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert text.count('<article class="card">') == 6 + 8 + 4 + 4
