"""A guide's notes: taken by guides that have not learned the pair if asked, scored against the truth, quoted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from idc.changeimti.class_masks import class_label, class_map
from idc.changeimti.config import RegionConfig
from idc.config import load
from idc.data.images import decode_image, encode_png
from idc.data.pipeline import run_local
from idc.data.schema import IMAGE, ChangePair, Turn
from idc.data.store import iter_rows
from idc.systems import load_captioner
from idc.systems.changevg.config import GuidedPromptConfig, RunGuideJob
from idc.systems.changevg.notes import NOTES, GuideNotes, guided_question, guided_turns, positions_of_classes
from idc.systems.changevg.notes_job import SCORES, open_notes, score_notes, scores_table
from jobs import finetune_changevg
from tests.folders import write_rows
from tests.systems.changevg.tiny import class_maps_of, start, tiny_job, write_scenes

CLASSES = np.zeros((30, 30), np.uint8)
CLASSES[2:8, 2:8] = 2
CLASSES[20:28, 1:9] = 2
CLASSES[:, 11:20] = 1
SEEN = GuideNotes("a road appears .", positions_of_classes(CLASSES, RegionConfig()), encode_png(class_label(CLASSES)))
QUESTION = f"Please describe the changes in {IMAGE} and {IMAGE}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("guides")
    pairs = write_scenes(path / "pairs", train=8, val=3)
    start(tiny_job(pairs, {"train.steps": 4}), path / "all")
    return path


def job_of(folder: Path, out: Path, **settings: Any) -> RunGuideJob:
    base = {"pairs": str(folder / "pairs"), "guide": str(folder / "all" / "artifact"), "out": str(out)}
    return load(RunGuideJob, None, {**base, "chunk_size": 3, "batch_size": 2, **settings})


def notes_of(out: Path) -> dict[str, GuideNotes]:
    return {
        row["pair_id"]: GuideNotes.of_meta(json.loads(row["meta"]), row["pair_id"])
        for row in iter_rows(str(out), ["pair_id", "meta"])
    }


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
    nothing = GuideNotes(f"same {IMAGE}", {"road": [], "building": []}, b"")
    text = guided_question(nothing, QUESTION, GuidedPromptConfig())
    assert "Count: { road: 0, building: 0 }\nLocation: { road: {No change}, building: {No change} }" in text
    assert text.count(IMAGE) == 2, "a summary brings no image"


def test_the_notebooks_prefix_is_before_questions_for_a_description() -> None:
    prompt = GuidedPromptConfig(style="notebook")
    texts = [f"Any change in {IMAGE} and {IMAGE}?", "How many roads?", "Please describe the changes."]
    turns = [turn for text in texts for turn in (Turn("user", text), Turn("assistant", "describe"))]
    quoted = [turn.text for turn in guided_turns(SEEN, turns, prompt)]
    hint = "Please refer to this description:a road appears.Modify or correct it."
    assert quoted == [texts[0], "describe", texts[1], "describe", f"{hint}{texts[2]}", "describe"]
    assert guided_question(SEEN, QUESTION, GuidedPromptConfig(style="notebook", summary=False)) == QUESTION


@pytest.mark.parametrize(
    "notes",
    [{"caption": "a"}, {**SEEN.to_dict(), "map": "?"}, {**SEEN.to_dict(), "road": {"positions": ["everywhere"]}}],
)
def test_what_is_no_notes_is_named(notes: Any) -> None:
    with pytest.raises(ValueError, match=r"pair 'p': meta.guide is not a guide's notes"):
        GuideNotes.of_meta({NOTES: notes}, "p")


def test_notes_are_stored_beside_the_rows_that_stay_as_they_were(folder: Path, tmp_path: Path) -> None:
    job = job_of(folder, tmp_path / "guided")
    manifest = run_local(*open_notes(job))
    assert (manifest.num_rows, manifest.num_rejected) == (11, 0)
    captioner = load_captioner(job.guide)
    for row, old in zip(iter_rows(job.out), iter_rows(job.pairs), strict=True):
        images = [[decode_image(old[side])] for side in ("before", "after")]
        (classes,) = class_maps_of(captioner, *images)
        notes = GuideNotes.of_meta(json.loads(row["meta"]), row["pair_id"])
        assert [notes.summary] == captioner(*images)
        assert np.array_equal(class_map(notes.class_map), classes)
        assert notes.positions == {name: tuple(p) for name, p in positions_of_classes(classes, job.regions).items()}
        assert {**row, "meta": ""} == {**old, "meta": ""}
        assert json.loads(row["meta"]).items() >= json.loads(old["meta"]).items()


def test_the_score_of_notes(tmp_path: Path) -> None:
    seen = CLASSES[:, :24]
    large = seen.repeat(2, axis=0).repeat(3, axis=1)
    missed = seen.copy()
    missed[20:] = np.where(missed[20:] == 2, 0, missed[20:])
    image = encode_png(np.zeros((60, 72, 3), np.uint8))
    rows = []
    for number, classes in enumerate((seen, missed)):
        notes = GuideNotes("a", positions_of_classes(classes, RegionConfig()), encode_png(class_label(classes)))
        meta = {"changeflag": 1 - number, NOTES: notes.to_dict()}
        mask = encode_png(class_label(large))
        rows.append(ChangePair(str(number), image, image, captions=("a",), split="test", mask=mask, meta=meta))
    write_rows(tmp_path / "guided", rows)
    scores = score_notes(str(tmp_path / "guided"), RegionConfig())["test"]
    buildings = int((CLASSES == 2).sum())
    lost = buildings - int((missed == 2).sum())
    assert scores["map"]["IoU of building"] == pytest.approx((2 * buildings - lost) / (2 * buildings))
    assert scores["map"]["IoU of road"] == 1.0
    background = int((seen == 0).sum())
    assert scores["map_unchanged"]["mIoU"] == pytest.approx(background / seen.size / 3)
    measures = {(part["type"], part["of"]): part for part in scores["answers"]}
    assert measures["binary", ""]["scores"]["Accuracy"] == 0.5
    assert measures["count", "building"]["scores"]["MAE"] == 0.5
    assert measures["location", "building"]["scores"]["Subset accuracy"] == 0.5
    assert json.loads((tmp_path / "guided" / SCORES).read_text())["test"]["pairs"] == 2
    table = scores_table({"test": scores})
    assert "count of buildings: MAE 0.500 (constant 0.000)" in table
    assert f"no change anywhere: mIoU {100 * scores['map_unchanged']['mIoU']:.1f}" in table


def test_the_command_stores_the_notes(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_of(folder, tmp_path / "guided")
    arguments = [f"pairs={job.pairs}", f"guide={job.guide}", f"out={job.out}", "--local"]
    monkeypatch.setattr("sys.argv", ["finetune_changevg.py", *arguments])
    finetune_changevg.main()
    assert set(notes_of(tmp_path / "guided")) == {row["pair_id"] for row in iter_rows(job.pairs, ["pair_id"])}
