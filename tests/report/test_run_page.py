"""The page of a run: its words and numbers, that it is well formed, loads nothing, and has the right pictures."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest

from idc.evaluation.record import Baseline, Evaluation, Subset, Training
from idc.metrics.changes import agreement
from idc.metrics.hallucination import hallucination, truth_of
from idc.report.pair_cards import GalleryItem
from idc.report.run import RealPairs, RunReport, render_report, write_run_page
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


def item(**changes: object) -> GalleryItem:
    mask = np.zeros((40, 60), np.uint8)
    mask[10:30, 20:40] = 255
    given: dict = {
        "pair_id": "p1", "before": plain((200, 0, 0)), "after": plain((0, 200, 0)),
        "caption": "the <b>ball</b> turned red", "references": ["the ball turned red & bright"],
        "change_type": "color", "named_type": "color", "mask": mask,
        "frames": [plain((20 * i, 0, 0)) for i in range(5)], "confidence": [0.25, 0.5, 0.75], "keyframes": [1, 3],
        "scores": {"CIDEr": 1.5}, "nearest": "nothing changed",
    }  # fmt: skip
    return GalleryItem(**{**given, **changes})


def logs() -> dict[str, list[dict]]:
    lines = [
        {"step": s, "loss": 5 / s, "lr/encoder": 1e-4, "grad_norm": 1.0, "seconds_per_step": 0.25}
        for s in range(1, 900)
    ]
    lines[450]["grad_norm"] = math.nan
    lines[-1]["validation/CIDEr"] = 0.9
    return {"stage 1": lines, "never started": []}


def full() -> RunReport:
    return RunReport(
        title="A run <of> ours",
        subtitle="rendered pairs",
        evaluations=[evaluation(1.0), evaluation(1.2, ("move", "none")), evaluation(1.4)],
        logs=logs(),
        tokenizer={"PSNR": 26.3},
        opening=[item(pair_id="o1"), item(pair_id="o2", named_type="move")],
        galleries={"Held out": [item(), item(pair_id="p2", named_type="move")], "Empty": []},
        real=[
            RealPairs("Originals", "never trained on", evaluation(), [item(pair_id="r1", references=(), note="photo")])
        ],
        configs={"stage 1": {"train": {"lr": 0.5}}},
        environment={"python": "3.11"},
        timings={"training": "12 min"},
    )


@pytest.fixture(scope="module")
def page() -> HtmlPage:
    return HtmlPage(render_report(full()))


def test_the_headline_is_compared_with_both_baselines_and_has_its_spread(page: HtmlPage) -> None:
    assert "120.0 ± 20.0" in page.text
    assert not {tag for tag, _ in page.tags} & {"script", "link", "iframe", "object", "embed", "video"}
    policy = next(a["content"] for tag, a in page.tags if tag == "meta" and a.get("http-equiv"))
    assert policy == "default-src 'none'; img-src data:; style-src 'unsafe-inline'", "it loads nothing"
    for text in ("40.0", "50.0", "the model has 3.0 times as much", "the model has 2.4 times as much", "over 3 seeds"):
        assert text in page.text
    ticks = [attrs for tag, attrs in page.tags if tag == "u"]
    assert len(ticks) == 3 * (2 + 2), "a tick for each seed on each metric's bar and each type's bar"
    widths = [attrs["style"] for tag, attrs in page.tags if tag == "i" and attrs.get("class") == "constant"]
    assert f"width:{100 * 0.4 / 1.4:.2f}%" in widths, "a bar is as long as its share of the longest"


def test_the_share_of_warned_pairs_is_shown_where_it_is_known(page: HtmlPage) -> None:
    assert "unlike the training data" not in page.text
    warned = evaluation().model_copy(update={"warned": 1})
    counts = "1 of 2 pairs (50.0 %; 95 % interval 9.5 to 90.5)"
    report = RunReport("t", evaluations=[warned], others={"Other": [warned], "Silent": [evaluation()]},
                       real=[RealPairs("Originals", "", warned), RealPairs("More", "", evaluation())])  # fmt: skip
    text = HtmlPage(render_report(report)).text
    assert f"the model: {counts}" in text
    assert f"Other: {counts}" in text
    assert "Silent: " not in text
    assert text.count("Warned as unlike the training data: ") == 1
    assert f"Warned as unlike the training data: {counts}." in text


def test_a_score_that_is_not_defined_is_a_dash_and_has_no_bar() -> None:
    defined = evaluation()
    undefined = {
        "scores": {**defined.scores, "CIDEr": math.nan}, "baselines": {}, "protocol": {"undefined": "CIDEr of all"}
    }  # fmt: skip
    shown = HtmlPage(render_report(RunReport("t", evaluations=[defined.model_copy(update=undefined)] * 2)))
    assert "CIDEr-D, model –" in " ".join(shown.text.split()) or "– CIDEr-D, model" in " ".join(shown.text.split())
    assert "CIDEr of all" in shown.text
    assert "nan" not in shown.text
    widths = [attrs["style"] for tag, attrs in shown.tags if tag == "i" and attrs.get("class") == "model"]
    assert "width:0.00%" in widths
    assert not any("nan" in width for width in widths)


def claimed(captions: tuple[str, str]) -> Evaluation:
    """An evaluation whose two captions are of pairs that lost a small red metal cube."""
    red = {"size": "small", "color": "red", "material": "metal", "shape": "cube"}
    truth = truth_of("drop", [red], [])
    found = hallucination((caption, truth) for caption in captions)
    training = Training(system="toy", samples=3692, seconds=60, cores=2)
    return evaluation(1.2).model_copy(update={"hallucination": found, "training": training})


def test_another_captioner_and_the_trained_baseline_are_next_to_the_model() -> None:
    model = claimed(("the red cube is gone", "the red cube is missing"))
    other = claimed(("the red ball is gone", "the blue cube is gone"))
    scores = {"BLEU-4": 0.3, "CIDEr": 0.6}
    trained = model.baselines["nearest"].model_copy(update={"scores": scores, "hallucination": other.hallucination})
    high = model.baselines["nearest"].model_copy(update={"scores": {"BLEU-4": 0.8, "CIDEr": 2.0}})
    model = model.model_copy(update={"baselines": {**model.baselines, "trained": trained}, "ceiling": high})
    report = RunReport("t", evaluations=[model], others={"Rival": [evaluation(2.4), evaluation(2.2)], "Third": [other]})
    page = HtmlPage(render_report(report))
    text = " ".join(page.text.split())
    assert "the truth in one wording" in text
    assert "CIDEr-D, Rival 230.0 ± 14.1" in text
    assert "CIDEr-D, the trained baseline 60.0 the model has 2.0 times as much" in text
    assert "CIDEr-D, model 120.0 toy, trained on 3,692 pairs in 60 s on 2 cores" in text
    widths = [attrs["style"] for tag, attrs in page.tags if tag == "i" and attrs.get("class") == "trained"]
    assert f"width:{100 * 2.3 / 2.4:.2f}%" in widths, "the longest bar is the best seed of any captioner"
    assert "model 100.0% (34.2 to 100.0) 100.0% (34.2 to 100.0)" in text
    assert "right object, of 2 changed pairs 100.0% 95 % interval 34.2 to 100.0; chance 100.0%" in text
    assert "Third 100.0% (34.2 to 100.0) 0.0% (0.0 to 65.8) 50.0% (9.5 to 90.5)" in text
    assert "trained 100.0% (34.2 to 100.0) 0.0% (0.0 to 65.8)" in text
    assert "Rival 100.0%" not in text, "without a truth there are no claims"
    several = HtmlPage(render_report(RunReport("t", evaluations=[model, other])))
    assert "model 100.0% ± 0.0 50.0% ± 70.7" in " ".join(several.text.split())


def test_subsets_types_and_their_chance(page: HtmlPage) -> None:
    assert "83.3% ± 28.9 of 2 captions name the right change type" in page.text
    assert "guessing with the types' frequencies 50.0%" in page.text
    assert re.search(r"no change\s+1\s+model", page.text)
    assert len(page.with_class("confusion")) == 2, "one of the run, one of the real pairs"


def test_curves_of_what_was_measured(page: HtmlPage) -> None:
    lines = [attrs["points"] or "" for tag, attrs in page.tags if tag == "polyline"]
    assert len(lines) == 3, "loss, learning rate, gradient norm"
    assert len(lines[0].split()) == 300, "899 points are thinned"
    heights = [float(point.split(",")[1]) for point in lines[0].split()]
    assert heights == sorted(heights), "a falling loss falls (svg's y points down)"
    assert not any("nan" in line for line in lines), "what is not finite is left out"
    assert "Measured once: validation/CIDEr 90" in page.text
    assert "899 steps, 0.25 s per step" in page.text
    assert "never started" not in page.text


def test_the_gallery_shows_pair_mask_procedure_and_captions() -> None:
    page = HtmlPage(render_report(RunReport("t", galleries={"g": [item()]})))
    assert len(page.images) == 3 + 5
    before, after, overlay = page.images[:3]
    assert before[20, 30] == pytest.approx([200, 0, 0], abs=4)
    assert after[20, 30] == pytest.approx([0, 200, 0], abs=4)
    assert int(overlay[20, 30].astype(int).sum()) > int(overlay[3, 3].astype(int).sum()), "it is brighter"
    keys = [attrs for tag, attrs in page.with_class("key") if tag == "figure"]
    assert len(keys) == 2
    widths = [attrs["style"] for tag, attrs in page.tags if tag == "i" and "style" in attrs]
    assert widths == ["width:25.00%", "width:50.00%", "width:75.00%"]
    assert re.findall(r"(\d\.\d+)\s+key", page.text) == ["0.250", "0.750"]
    assert "0.500" in page.text
    assert "✓ is color, names color" in page.text
    assert "CIDEr 150" in page.text
    assert "the ball turned red & bright" in page.text
    assert "nearest training pair: nothing changed" in page.text


def test_images_are_not_shown_larger_than_they_are_needed_and_others_are_refused() -> None:
    page = HtmlPage(
        render_report(
            RunReport("t", galleries={"g": [GalleryItem("p", plain((0, 0, 0), (900, 1200)), plain((0, 0, 0)), "c")]})
        )
    )
    assert page.images[0].shape == (360, 480, 3)
    with pytest.raises(ValueError, match=r"uint8 \(H, W, 3\), got float64"):
        render_report(RunReport("t", galleries={"g": [GalleryItem("p", np.zeros((4, 4, 3)), plain((0, 0, 0)), "c")]}))


def test_everything_that_was_gathered_is_on_the_page(page: HtmlPage, tmp_path: Path) -> None:
    for text in (
        "Originals", "never trained on", "photo", "one of the 6 types at random: 16.7%",
        "of 1 color pairs, 1 captions (100%) say a color change",
        "of 1 unchanged pairs, 1 captions (100%) say that nothing changed; it says so of 0 of the 1 others (0%)",
        "SPICE is not scored: jar missing", "BLEU, CIDEr", '"lr": 0.5', "12 min", "3.11", "PSNR 26.3",
    ):  # fmt: skip
        assert text in page.text, text
    written = write_run_page(tmp_path / "new" / "report.html", RunReport("t", environment={"python": "3.11"}))
    bare = HtmlPage(written.read_text(encoding="utf-8"))
    assert [attrs["id"] for tag, attrs in bare.tags if tag == "section"] == ["protocol"], "nothing empty"
    assert [attrs["href"] for tag, attrs in bare.tags if tag == "a"] == ["#protocol"]


def test_the_page_begins_with_pairs_and_their_verdicts_and_then_the_scores() -> None:
    marked = item(caption="The ball, turned green", references=["the ball turned red"])
    opening = [
        item(),
        item(pair_id="p2", named_type="none", caption="", confidence=[0.5] * 7),
        item(pair_id="p3", change_type="none", named_type="none"),
        GalleryItem("p", plain((1, 2, 3)), plain((4, 5, 6), (30, 30)), "a caption"),
    ]
    text = render_report(RunReport("t", evaluations=[evaluation()], opening=opening, galleries={"g": [marked]}))
    page = HtmlPage(text)
    assert [attrs["id"] for tag, attrs in page.tags if tag == "section"][:2] == ["pairs", "scores"]
    verdicts = [
        "✓ Right: the change type is “color”, as the caption says.",
        "✗ Wrong: the change type is “color”, the caption names no change.",
        "✓ Right: nothing changed, as the caption says.",
    ]
    places = [page.text.index(verdict) for verdict in verdicts]
    assert places == sorted(places)
    assert places[-1] < page.text.index("CIDEr-D, model")
    assert len(page.with_class("verdict")) == 3, "a pair of unknown change type has no verdict"
    assert "The ball, turned <s>green</s>" in text, "a word of no reference is marked"
    assert "(empty caption)" in text
