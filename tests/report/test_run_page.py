"""A run's page: its words and numbers, the pictures of a pair, its contents from the folders of the run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from idc.data.images import encode_png
from idc.data.schema import ChangePair
from idc.evaluation import record as ev
from idc.evaluation.record import Baseline, Evaluation, Subset, Training
from idc.evaluation.score import evaluate_captions
from idc.metrics.change_types import agreement
from idc.metrics.scene_scores import hallucination, truth_of
from idc.report import run_page
from idc.report.config import ReportJob
from idc.report.page import Card, Cards, Page, Section
from idc.report.pair_cards import pair_card
from idc.report.run_page import by_score, collect, spread_over_types
from tests.folders import write_rows
from tests.report.html_page import HtmlPage


def evaluation(cider: float = 1.2, accuracy: tuple[str, ...] = ("color", "none")) -> Evaluation:
    named = {"color": "the ball turned red", "none": "no change", "move": "the ball moved"}
    types = agreement([("color", named[accuracy[0]]), ("none", named[accuracy[1]])])
    scores = {"BLEU-4": 0.4, "CIDEr": cider}
    subsets = {"change": Subset(pairs=1, scores=scores), "no change": Subset(pairs=1, scores=scores)}

    def baseline(value: float, caption: str | None) -> Baseline:
        low = {"BLEU-4": 0.2, "CIDEr": value}
        return Baseline(what="how it was made", caption=caption, scores=low, types=types,
                     subsets={name: Subset(pairs=1, scores=low) for name in subsets})  # fmt: skip

    return Evaluation(
        split="test", pairs=2, references=12, distinct_captions=2, empty_captions=0, scores=scores, subsets=subsets,
        baselines={"constant": baseline(0.4, "no <change>"), "nearest": baseline(0.5, None)}, types=types,
        protocol={"name": "coco", "metrics": ["BLEU", "CIDEr"], "SPICE": "SPICE is not scored: jar missing"},
    )  # fmt: skip


def plain(color: tuple[int, int, int], size: tuple[int, int] = (40, 60)) -> np.ndarray:
    return np.full((*size, 3), color, np.uint8)


def card(**changes: Any) -> Card:
    mask = np.zeros((40, 60), np.uint8)
    mask[10:30, 20:40] = 255
    given = {
        "references": ["the ball turned red & bright"], "change_type": "color", "named_type": "color", "mask": mask,
        "frames": [plain((20 * i, 0, 0)) for i in range(5)], "confidence": [0.25, 0.5, 0.75], "keyframes": [1, 3],
        "scores": {"CIDEr": 1.5}, "nearest": "nothing changed", **changes,
    }  # fmt: skip
    caption = given.pop("caption", "the <b>ball</b> turned red")
    return pair_card("p1", plain((200, 0, 0)), plain((0, 200, 0)), caption, **given)


def full() -> Page:
    evaluations = [evaluation(1.0), evaluation(1.2, ("move", "none")), evaluation(1.4)]
    return Page("A run <of> ours", "rendered pairs", [
        run_page.pairs_section([card()], {"Held out": [card(), card(named_type="move")], "Empty": []}),
        run_page.scores_section(evaluations, {}),
        run_page.types_section(evaluations),
        run_page.record_section(evaluations[0].protocol, {"scoring": "12 min"}, {"python": "3.11"}),
    ])  # fmt: skip


def shown(*sections: Section) -> HtmlPage:
    page = HtmlPage(Page("t", "", sections).html())
    page.text = " ".join(page.text.split())
    return page


@pytest.fixture(scope="module")
def page() -> HtmlPage:
    return shown(*full().sections)


def test_all_parts_are_on_the_page(page: HtmlPage) -> None:
    assert not {tag for tag, _ in page.tags} & {"script", "link", "iframe", "object", "embed", "video"}
    for text in (
        "120.0 ± 20.0", "40.0", "50.0", "the model has 3.0 times as much", "the model has 2.4 times as much",
        "over 3 seeds", "constant (“no <change>”): how it was made.", "change 1 model",
        "83.3% ± 28.9 of 2 captions name the right change type",
        "color 66.7 ± 57.7",
        "SPICE is not scored: jar missing", "BLEU, CIDEr", "12 min", "3.11",
    ):  # fmt: skip
        assert text in page.text, text
    assert "100.0, 120.0, 140.0" in [attrs.get("title") for _, attrs in page.tags], "the single seeds"


def test_the_share_of_warned_pairs_is_shown_where_it_is_known(page: HtmlPage) -> None:
    assert "unlike the training data" not in page.text
    warned = evaluation().model_copy(update={"warned": 1})
    counts = "1 of 2 pairs (50.0 %; 95 % interval 9.5 to 90.5)"
    scores = run_page.scores_section([warned], {"Other": [warned], "Silent": [evaluation()]})
    text = shown(scores).text
    assert f"the model: {counts} Other: {counts}" in text
    assert "Silent: 1" not in text


def test_a_score_that_is_not_defined_is_a_dash() -> None:
    defined = evaluation()
    undefined = defined.model_copy(update={"scores": {**defined.scores, "CIDEr": math.nan}, "baselines": {}})
    text = shown(run_page.scores_section([undefined] * 2, {})).text
    assert "CIDEr-D, model –" in text
    assert "nan" not in text


def claimed(captions: tuple[str, str]) -> Evaluation:
    """An evaluation whose two captions are of pairs that lost a small red metal cube."""
    red = {"size": "small", "color": "red", "material": "metal", "shape": "cube"}
    truth = truth_of("drop", [red], [])
    claims = hallucination((caption, truth) for caption in captions)
    training = Training(system="toy", samples=3692, seconds=60, cores=2)
    return evaluation(1.2).model_copy(update={"hallucination": claims, "training": training})


def test_another_captioner_and_the_trained_baseline_are_next_to_the_model() -> None:
    model = claimed(("the red cube is gone", "the red cube is missing"))
    other = claimed(("the red ball is gone", "the blue cube is gone"))
    scores = {"BLEU-4": 0.3, "CIDEr": 0.6}
    trained = model.baselines["nearest"].model_copy(update={"scores": scores, "hallucination": other.hallucination})
    high = model.baselines["nearest"].model_copy(update={"scores": {"BLEU-4": 0.8, "CIDEr": 2.0}})
    model = model.model_copy(update={"baselines": {**model.baselines, "trained": trained}, "upper_bound": high})
    others = {"Rival": [evaluation(2.4), evaluation(2.2)], "Third": [other]}
    text = shown(run_page.scores_section([model], others), run_page.claims_section([model], others)).text
    for part in (
        "in one wording 200.0", "Rival 230.0 ± 14.1", "baseline 60.0 the model has 2.0 times", "trained on 3,692 pairs",
        "model 100.0% (34.2 to 100.0) 100.0%", "Third 100.0% (34.2 to 100.0) 0.0% (0.0 to 65.8) 50.0%",
        "trained 100.0% (34.2 to 100.0) 0.0%",
    ):  # fmt: skip
        assert part in text, part
    assert "Rival 100.0%" not in text, "without a truth there are no claims"
    assert "model 100.0% ± 0.0 50.0% ± 70.7" in shown(run_page.claims_section([model, other], {})).text


def test_a_card_has_the_pair_its_mask_its_procedure_and_its_verdict() -> None:
    pair = card()
    assert [label for label, *_ in pair.views] == ["before", "after", "what changed"]
    changed = pair.views[2][1].astype(int)
    assert changed[20, 30].sum() > changed[3, 3].sum(), "it is brighter"
    assert [(label, key) for label, _, key in pair.frames] == [
        ("before", False), ("0.250 key", True), ("0.500", False), ("0.750 key", True), ("after", False)
    ]  # fmt: skip
    tags = [card(**changes).tags[1] for changes in (
        {}, {"named_type": "none"}, {"change_type": "none", "named_type": "none"}, {"change_type": "odd"},
    )]  # fmt: skip
    assert tags == [
        '<span class="right">✓ is color, names color</span>', '<span class="wrong">✗ is color, names no change</span>',
        '<span class="right">✓ is no change, names no change</span>', "names color",
    ]  # fmt: skip
    marked = Cards([card(caption="The ball, turned green"), card(caption=" ")])
    text = Page("t", "", [Section("s", [marked])]).html()
    assert "The ball, turned <s>green</s>" in text, "a word of no reference is marked"
    assert "(empty caption)" in text


# ----------------------------------------------------------------------------------------------------- from the folders


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
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


def test_everything_is_gathered(folders: Path) -> None:
    evaluation, pairs, procedures = (str(folders / name) for name in ("evaluation", "pairs", "procedures"))
    page = collect(ReportJob(out="x", evaluations=(evaluation,), pairs=pairs, procedures=procedures))
    shown_pairs = {block.title: block.items for block in page.sections[0].blocks if isinstance(block, Cards)}
    assert {title: [card.name for card in cards] for title, cards in shown_pairs.items()} == {
        "": ["p0", "p1", "p2", "p3", "p4", "p5"],
        "A few of every kind (8)": [f"p{i}" for i in range(8)],
        "Best by CIDEr (4)": ["p1", "p3", "p5", "p0"],
        "Worst by CIDEr (4)": ["p6", "p7", "p0", "p2"],
    }
    first, second = shown_pairs[""][:2]
    assert [len(first.views), len(second.views)] == [2, 3], "an empty mask is none"
    assert second.views[0][1][0, 0, 0] == 20
    assert [label for label, *_ in second.frames] == ["before", "0.100", "0.200 key", "0.300", "after"]
    assert "names move" in second.tags[1]
    assert not shown_pairs["Worst by CIDEr (4)"][0].frames, "a pair without a procedure is shown all the same"
    assert "scoring 1.5 s" in " ".join(HtmlPage(page.html()).text.split())


def test_another_captioner_is_compared_on_the_same_pairs_alone(folders: Path, tmp_path: Path) -> None:
    settings = {"out": "x", "evaluations": (str(folders / "evaluation"),), "pairs": str(folders / "pairs")}
    same = str(folders / "evaluation")
    assert "CIDEr-D, Rival" in collect(ReportJob(**settings, compare={"Rival": (same, same)})).html()
    rows = ev.load_predictions(same)
    ev.save(tmp_path / "fewer", ev.load_evaluation(same), rows[1:])
    with pytest.raises(ValueError, match=r"compare\.Rival: not the same pairs: here 8 pairs, .* 7; 'p0' is"):
        collect(ReportJob(**settings, compare={"Rival": (str(tmp_path / "fewer"),)}))
    with pytest.raises(ValueError, match=r"compare\.truth: the page has another row of this name"):
        collect(ReportJob(**settings, compare={"truth": (same,)}))
    ev.save(tmp_path / "other", ev.load_evaluation(same), [rows[0].model_copy(update={"pair_id": "elsewhere"})])
    with pytest.raises(ValueError, match="lacks 1 of the captioned pairs: elsewhere"):
        collect(ReportJob(**settings | {"evaluations": (str(tmp_path / "other"),)}))


def test_the_gallery_takes_the_types_in_turn() -> None:
    kinds = ("add", "add", "add", "move", "move", "move", None)
    rows = [ev.ScoredCaption(pair_id=f"{i}", caption="", change_type=kind) for i, kind in enumerate(kinds)]
    assert [row.pair_id for row in spread_over_types(rows, 5)] == ["0", "3", "6", "1", "4"]
    assert (len(spread_over_types(rows, 99)), spread_over_types([], 3)) == (7, [])
    assert by_score(rows, 3, best=True) == [], "without scores there is no best"
