"""``idc.load`` and ``idc.evaluate``: the pages' examples run, all kinds of images give the same, faults are clear."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import idc
from idc.captioning.contract import Candidate, Claim, Description, Region
from idc.captioning.sources import SHIPPED
from idc.evaluation.record import Prediction
from idc.evaluation.score import evaluate_captions as score
from idc.metrics.protocols import ProtocolName, get_protocol
from tests.captioning.toy import ToyCaptioner
from tests.systems.objects.test_regions import BLUE, RED, ground, with_disk

ROOT = Path(__file__).resolve().parents[1]
BEFORE, AFTER = with_disk(ground(), 60, 50, RED), with_disk(ground(), 60, 50, BLUE)


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    paths = tmp_path / "before.png", tmp_path / "after.png"
    for path, pixels in zip(paths, (BEFORE, AFTER), strict=True):
        Image.fromarray(pixels).save(path)
    return paths


@pytest.mark.parametrize(
    ("page", "number"),
    [
        (page, number)
        for page in ("README.md", "docs/python.md")
        for number in range((ROOT / page).read_text(encoding="utf-8").count("```python\n"))
    ],
)
def test_the_python_of_the_pages_runs(
    page: str, number: int, files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(files[0].parent)
    code = re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {}
    exec(compile(code[number], page, "exec"), names)
    if "caption" in names:
        assert isinstance(names["caption"], idc.Caption)
    scores = names["evaluation"].scores if "evaluation" in names else names.get("scores", {})
    assert all(score > 0 for score in scores.values()), "an example of scores has captions that score"


def test_files_images_and_arrays_give_the_same_and_lists_are_one_batch(files: tuple[Path, Path]) -> None:
    captioner = idc.load("regions")
    first = captioner(*files)
    grey, clear = (Image.fromarray(pixels).convert(mode) for pixels, mode in ((BEFORE, "L"), (AFTER, "RGBA")))
    batch = captioner(
        [str(files[0]), Image.fromarray(BEFORE), BEFORE, grey], (files[1], AFTER, np.asarray(clear), np.asarray(clear))
    )
    assert [caption.to_dict() for caption in batch[:3]] == [first.to_dict()] * 3
    assert batch[3].caption != first.caption
    assert (first.caption, first.verdict, first.warning) == (first.candidates[0].caption, "changed", None)
    assert first.map.shape == BEFORE.shape[:2]


def test_the_shipped_captioner_warns_of_a_pair_that_it_does_not_know_and_objects_comes_first(
    files: tuple[Path, Path],
) -> None:
    caption = idc.load(SHIPPED, device="cpu", detector="none")(*files, candidates=2)
    assert caption.warning is not None
    assert len(caption.candidates) == 2
    assert [region.position for region in caption.regions or ()] == ["at the top left"]
    assert [claim.where for claim in caption.claims or ()] == ["at the top left"]
    page = caption._repr_html_()
    texts = ("red before and blue after", caption.caption, "unsure: the images are unlike", caption.warning)
    assert sorted(texts, key=page.index) == list(texts), "what to rely on comes first"


def test_a_result_draws_images_map_and_boxes_and_escapes_its_sentences() -> None:
    captioner = idc.LoadedCaptioner(ToyCaptioner(lambda befores, afters: ["<b>no</b> & nothing"] * len(befores)), "toy")
    page = captioner(BEFORE, AFTER)._repr_html_()
    assert "&lt;b&gt;no&lt;/b&gt; &amp; nothing" in page
    assert page.index("captioner toy") > page.index("nothing")
    drawn = np.asarray(Image.open(io.BytesIO(idc.load("regions")(BEFORE, AFTER)._repr_png_())))
    assert drawn.shape == (320, 3 * round(BEFORE.shape[1] * 320 / BEFORE.shape[0]) + 8, 3)


BOX, OTHER = (20, 40, 60, 80), (100, 120, 140, 200)


@pytest.mark.parametrize(
    ("claims", "before", "after"),
    [
        ([("gone", "bottle", 1, BOX, None)], [BOX], []),
        ([("moved", "person", 1, BOX, OTHER)], [BOX], [OTHER]),
        ([("replaced", "words", 1, BOX, BOX), ("gone", "bottle", 1, OTHER, None)], [BOX, OTHER], [BOX]),
        ([], [], [OTHER]),
    ],
)
def test_claims_are_boxes_with_names_on_their_images_and_regions_where_there_is_none(
    claims: list[Any], before: list[Any], after: list[Any]
) -> None:
    region = Region(OTHER, 0.1, "in the middle", "red", "blue")
    description = Description(
        (Candidate("x", -1.0),), regions=(region,),
        claims=tuple(Claim(*claim[:3], "here", *claim[3:], 0.9, "RUN", "STOP") for claim in claims),
    )  # fmt: skip
    black = np.zeros((320, 400, 3), np.uint8)
    drawn = np.asarray(Image.open(io.BytesIO(idc.Caption(**vars(description), before=black, after=black)._repr_png_())))
    for image, boxes in ((drawn[:, :400], before), (drawn[:, 404:], after)):
        inked = image.max(axis=2) > 0
        for left, top, right, bottom in boxes:
            assert inked[top:bottom, [left, right - 1]].all()
            assert inked[[top, bottom - 1], left:right].all()
            assert inked[top - 10 : top - 4, left : left + 20].all() == bool(claims), "a plate with the name"
            inked[top - 20 : bottom, left : left + 90] = inked[top:bottom, left:right] = False
        assert not inked.any()


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (["a.png"], ["a.png", "b.png"], "two lists of the same length"),
        ("gone.png", "lost.png", "gone.png: .*\nlost.png: "),
        (BEFORE / 255, AFTER, "uint8 of shape .*got float64 240x320x3"),
        (b"bytes", AFTER, "a path, an image of Pillow or a NumPy array, got bytes"),
    ],
)
def test_what_is_no_pair_of_images_is_refused(before: Any, after: Any, message: str) -> None:
    captioner = idc.LoadedCaptioner(ToyCaptioner(lambda befores, afters: ["same"] * len(befores)), "toy")
    with pytest.raises(ValueError, match=message):
        captioner(before, after)


CAPTIONS = ["the red cube moved", "nothing has changed", "a ball appeared"]
REFERENCES = [["the red cube was moved", "it moved"], ["no change was made"], ["somebody added a ball"]]


@pytest.mark.parametrize("name", ["coco", pytest.param("levir_words", marks=pytest.mark.slow)])
def test_scores_are_those_of_an_evaluation(name: ProtocolName) -> None:
    rows = [
        Prediction(pair_id=f"p{i}", caption=caption, references=texts)
        for i, (caption, texts) in enumerate(zip(CAPTIONS, REFERENCES, strict=True))
    ]
    expected = score(rows, protocol=get_protocol(name))[0].scores
    assert idc.evaluate(CAPTIONS, REFERENCES, protocol=name).scores == pytest.approx(expected)
    by_id = {f"p{i}": text for i, text in enumerate(CAPTIONS)}
    shuffled = {f"p{i}": REFERENCES[i] for i in (2, 0, 1)}
    by_its_id = idc.evaluate(by_id, shuffled, protocol=name, metrics=["CIDEr"]).scores
    assert by_its_id["CIDEr"] == pytest.approx(expected["CIDEr"])
    integers, texts = dict(enumerate(REFERENCES)), {str(i): [text] for i, text in enumerate(CAPTIONS)}
    by_number = idc.evaluate(texts, integers, protocol=name, metrics=["CIDEr"]).scores
    assert by_number["CIDEr"] == pytest.approx(expected["CIDEr"])


@pytest.mark.parametrize(
    ("references", "options", "message"),
    [
        (REFERENCES, {"predictions": [*CAPTIONS[:2], ["a", "b"]]}, r"predictions: a text .* 2 has \['a', 'b'\]"),
        (REFERENCES[:2], {}, "3 predictions and references of 2 pairs; in only one of them: 2"),
        (["one", "two", "three"], {}, "a list of captions for each pair, but 0 has a single text"),
        (REFERENCES, {"metrics": ["cider"]}, "metrics: cider unknown; available: BLEU"),
        ({1: ["a"], "1": ["b"], 2: ["c"]}, {"predictions": {1: "a", 2: "c"}}, "references: ids .* as text: 1$"),
    ],
)
def test_what_cannot_be_scored_is_refused(references: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        idc.evaluate(**{"predictions": CAPTIONS, "references": references, **options})


def test_the_speed_is_one_of_the_loads() -> None:
    with pytest.raises(ValueError, match="speed"):
        idc.load(SHIPPED, speed="best")
