"""A guide's notes: quoted, and scored against the truth."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from idc.changeimti.change_regions import GREYS
from idc.changeimti.config import RegionConfig
from idc.data.images import decode_image, encode_png
from idc.data.schema import IMAGE, Turn
from idc.data.store import iter_rows
from idc.systems import load_captioner
from idc.systems.changevg.config import GuidedPromptConfig
from idc.systems.changevg.guide_captioner import GuideNotes, guided_question, guided_turns, positions_of_classes
from idc.systems.changevg.guide_scores import SCORES, SplitScores, scores_table
from jobs import finetune_changevg
from tests.systems.changevg.tiny import class_maps_of, start, tiny_job, write_scenes

CLASSES = np.zeros((30, 30), np.uint8)
CLASSES[2:8, 2:8] = 2
CLASSES[20:28, 1:9] = 2
CLASSES[:, 11:20] = 1
SEEN = GuideNotes("a road appears .", positions_of_classes(CLASSES, RegionConfig()))
QUESTION = f"Please describe the changes in {IMAGE} and {IMAGE}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("guides")
    pairs = write_scenes(path / "pairs", train=8, val=3)
    start(tiny_job(pairs, {"train.steps": 4}), path / "all")
    return path


def test_figure_3() -> None:
    assert guided_question(SEEN, QUESTION, GuidedPromptConfig()) == (
        "You are an assistant proficient in remote sensing change reasoning. Please answer the user's question based "
        "on the following auxiliary information.\n"
        "Visual auxiliary information:\n"
        "Caption: a road appears .\n"
        "Count: { road: 1, building: 2 }\n"
        "Location: { road: {center}, building: {lower left corner, top left corner} }\n"
        "Query:\n"
        f"{QUESTION}"
    )
    assert guided_question(SEEN, QUESTION, GuidedPromptConfig(summary=False, regions=False)) == QUESTION
    nothing = GuideNotes(f"same {IMAGE}", {"road": [], "building": []})
    text = guided_question(nothing, QUESTION, GuidedPromptConfig())
    assert "Count: { road: 0, building: 0 }\nLocation: { road: {No change}, building: {No change} }" in text
    assert text.count(IMAGE) == 2, "a summary brings no image"
    turns = [Turn("user", QUESTION), Turn("assistant", "a road"), Turn("user", "Where?")]
    first = guided_question(SEEN, QUESTION, GuidedPromptConfig())
    assert guided_turns(SEEN, turns, GuidedPromptConfig()) == [Turn("user", first), *turns[1:]]


def test_the_score_of_notes() -> None:
    seen = CLASSES[:, :24]
    large = seen.repeat(2, axis=0).repeat(3, axis=1)
    missed = seen.copy()
    missed[20:] = np.where(missed[20:] == 2, 0, missed[20:])
    split = SplitScores(RegionConfig())
    for classes in (seen, missed):
        row = {
            "change_type": None,
            "meta": json.dumps({"changeflag": 1}),
            "mask": encode_png(np.array([0, *GREYS.values()], np.uint8)[large]),
        }
        split.add(row, positions_of_classes(classes, RegionConfig()), classes)
    scores = split.to_dict()
    buildings = int((CLASSES == 2).sum())
    lost = buildings - int((missed == 2).sum())
    assert scores["map"]["IoU of building"] == pytest.approx((2 * buildings - lost) / (2 * buildings))
    assert scores["map"]["IoU of road"] == 1.0
    background = int((seen == 0).sum())
    assert scores["map_unchanged"]["mIoU"] == pytest.approx(background / seen.size / 3)
    measures = {(part["type"], part["of"]): part for part in scores["answers"]}
    assert measures["binary", ""]["scores"]["Accuracy"] == 1
    assert measures["count", "building"]["scores"]["MAE"] == 0.5
    assert measures["location", "building"]["scores"]["Subset accuracy"] == 0.5
    assert scores["pairs"] == 2
    table = scores_table({"test": scores})
    assert "count of buildings: MAE 0.500 (constant 0.000)" in table
    assert f"no change anywhere: mIoU {100 * scores['map_unchanged']['mIoU']:.1f}" in table


def test_the_command_scores_the_guide_on_every_split(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs, guide = str(folder / "pairs"), str(folder / "all" / "artifact")
    monkeypatch.setattr("sys.argv", ["finetune_changevg.py", f"pairs={pairs}", f"guide={guide}", f"out={tmp_path}"])
    finetune_changevg.main()
    scores = json.loads((tmp_path / SCORES).read_text())
    captioner, expected = load_captioner(guide), {name: SplitScores(RegionConfig()) for name in ("train", "val")}
    for row in iter_rows(pairs):
        (classes,) = class_maps_of(captioner, *([decode_image(row[side])] for side in ("before", "after")))
        expected[row["split"]].add(row, positions_of_classes(classes, RegionConfig()), classes)
    assert scores == {name: split.to_dict() for name, split in expected.items()}
    assert [scores[name]["pairs"] for name in ("train", "val")] == [8, 3]
