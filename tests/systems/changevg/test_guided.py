"""ChangeVG as a whole: a guide's notes, quoted and scored against the truth; learned as asked, the guide runs once for
each pair, an artifact that has all it needs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from idc.captioning.contract import SearchOptions
from idc.captioning.sources import supervision_of
from idc.changeimti.config import RegionConfig
from idc.data.change_masks import GREYS
from idc.data.images import decode_image, encode_png
from idc.data.schema import IMAGE, Instruction, Turn
from idc.data.store import iter_rows
from idc.systems import load_captioner
from idc.systems.changevg.captioner import GuidedCaptioner
from idc.systems.changevg.config import GuidedPromptConfig, ScoreGuideJob
from idc.systems.changevg.guide_captioner import (
    GuideCaptioner,
    GuideNotes,
    guided_question,
    guided_turns,
    positions_of_classes,
)
from idc.systems.changevg.guide_scores import SCORES, SplitScores, score_guide, scores_table
from idc.systems.changevg.tuning import ImtiDialogues, make_loaders, train
from idc.training.artifact import read_artifact
from idc.training.context import LocalContext
from idc.training.data import Loaders
from idc.vlm.captioner import VlmCaptioner
from jobs import finetune_changevg
from tests.systems.changevg.tiny import SIDE, class_maps_of, tiny_job, tuning_job, write_questions, write_scenes
from tests.systems.procap.world import start
from tests.vlm.models import found

WITH_MAP = SearchOptions(change_map=True)

QUOTES: dict[str, dict[str, Any]] = {
    "all": {},
    "regions alone": {"quote.summary": False},
    "other regions": {"regions.as_published": False},
}
SIDES = ("before", "after")
Pair = tuple[np.ndarray, np.ndarray]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("guided")
    pairs = write_scenes(path / "pairs", train=5, masked=True)
    write_questions(pairs, path / "questions")
    start(tiny_job(pairs, {"train.steps": 40, "train.batch_size": 4}), path / "guide")
    start(tiny_job(pairs, {"train.steps": 1, "train.seed": 8}), path / "other")
    return path


@pytest.fixture(scope="module")
def artifacts(folder: Path) -> dict[str, Path]:
    settings = {**QUOTES, "no guide": {}}
    for name, of_name in settings.items():
        guide = None if name == "no guide" else folder / "guide" / "artifact"
        job = tuning_job(str(folder / "questions"), guide, **of_name)
        train(job.model_dump(mode="json"), LocalContext(folder / name))
    return {name: folder / name / "artifact" for name in settings}


def captioner_of(path: Path) -> GuidedCaptioner:
    captioner = load_captioner(str(path))
    assert isinstance(captioner, GuidedCaptioner)
    return captioner


def pairs_of(folder: Path) -> dict[str, Pair]:
    rows = iter_rows(str(folder / "pairs"), ["pair_id", *SIDES])
    return {row["pair_id"]: (decode_image(row["before"]), decode_image(row["after"])) for row in rows}


def images_of(folder: Path) -> tuple[list[np.ndarray], list[np.ndarray]]:
    befores, afters = zip(*pairs_of(folder).values(), strict=True)
    return list(befores), list(afters)


def samples_of(loaders: Loaders) -> ImtiDialogues:
    samples = loaders.train.dataset
    assert isinstance(samples, ImtiDialogues)
    return samples


def loaders_of(folder: Path, *, guide: str = "guide", **settings: Any) -> Loaders:
    job = tuning_job(str(folder / "questions"), folder / guide / "artifact", **settings)
    return make_loaders(job, found("internvl").family, LocalContext(folder / "loaders"))


def listened(captioner: VlmCaptioner, patch: pytest.MonkeyPatch) -> list[list[int]]:
    """The ids of every prompt that the captioner's language model will read."""
    prompts: list[list[int]] = []
    generate = captioner._generate

    def recorded(pairs: Any, asked: Sequence[list[int]], *arguments: Any, **options: Any) -> Any:
        prompts.extend(asked)
        return generate(pairs, asked, *arguments, **options)

    patch.setattr(captioner, "_generate", recorded)
    return prompts


@pytest.mark.parametrize("name", [*QUOTES, "no guide"])
def test_a_question_is_put_as_it_was_learned(
    name: str, folder: Path, artifacts: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Token by token, for every answer of every learned dialogue; a caption is the row's that asks for one."""
    captioner, pairs = load_captioner(str(artifacts[name])), pairs_of(folder)
    assert isinstance(captioner, VlmCaptioner)
    guide = None if name == "no guide" else folder / "guide" / "artifact"
    assert isinstance(captioner, GuidedCaptioner) == (guide is not None)
    job = tuning_job(str(folder / "questions"), guide, **QUOTES.get(name, {}))
    if isinstance(captioner, GuidedCaptioner) and job.regions is not None:
        assert captioner.regions == job.regions
    samples = samples_of(make_loaders(job, captioner.family, LocalContext(folder / "loaders")))
    prompts = listened(captioner, monkeypatch)
    seen = set()
    for index, (row, _) in enumerate(samples.order):
        stored = Instruction.from_row(samples.rows[row])
        assert stored.of_pair is not None
        before, after = pairs[stored.of_pair]
        sample = samples.get(index, 0).sample
        learned_from = [at for at in range(1, len(sample.ids)) if sample.learned[at] and not sample.learned[at - 1]]
        answers = [number for number, turn in enumerate(stored.turns) if turn.role == "assistant"]
        for number, at in zip(answers, learned_from, strict=True):
            captioner.answer([before], [after], [stored.turns[:number]])
            assert prompts.pop() == list(sample.ids[:at])
            seen.add((len(answers) > 1, stored.turns[number].task))
        if len(answers) == 1 and stored.turns[1].task == "caption":
            captioner([before], [after])
            assert prompts.pop() == list(sample.ids[: learned_from[0]])
    assert {(False, task) for task in ("caption", "binary", "count", "location")} | {(True, "caption")} <= seen


def test_notes_are_those_of_the_pair_in_its_order(
    folder: Path, artifacts: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    captioner, guide = captioner_of(artifacts["all"]), GuideCaptioner(folder / "guide" / "artifact")
    befores, afters = images_of(folder)
    batch = [notes for notes, _ in captioner.notes_and_maps(befores + afters, afters + befores)]
    assert batch == guide.notes(befores + afters, afters + befores, captioner.regions)
    assert batch[: len(befores)] != batch[len(befores) :], "a guide that sees tells exchanged images apart"
    prompts = listened(captioner, monkeypatch)
    captioner(befores, afters)
    alone = listened(fresh := captioner_of(artifacts["all"]), monkeypatch)
    for before, after in zip(befores, afters, strict=True):
        fresh([before], [after])
    assert prompts == alone
    assert len({tuple(ids) for ids in alone}) > 1, "else the notes of all are alike"
    fresh.answer(befores[:1], afters[:1], [[Turn("user", "How many roads?")]])
    text = guided_question(batch[0], f"{IMAGE}{IMAGE}How many roads?", captioner.quote)
    assert alone[-1] == captioner.chat.prompt([Turn("user", text)], [(SIDE, SIDE)] * 2), "images between both"


def test_the_guide_runs_once_for_each_pair(
    folder: Path, artifacts: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    captioner = captioner_of(artifacts["all"])
    numbers: list[int] = []
    original = captioner.guide.notes_and_maps
    monkeypatch.setattr(
        captioner.guide, "notes_and_maps", lambda first, *rest: (numbers.append(len(first)), original(first, *rest))[1]
    )
    (first, second, *_) = pairs_of(folder).values()
    dialogue: list[Turn] = []
    for question in ("Did anything change?", "How many roads?", "Please describe the changes."):
        dialogue.append(Turn("user", question))
        (answer,) = captioner.answer([first[0]], [first[1]], [dialogue])
        dialogue.append(Turn("assistant", answer.text))
    assert numbers == [1]
    captioner.describe([first[0], second[0]], [first[1], second[1]], WITH_MAP)
    assert numbers == [1, 1], "of the batch the other pair alone"
    captioner.describe([second[0]] * 2, [second[1]] * 2)
    assert numbers == [1, 1]
    monkeypatch.setattr("idc.systems.changevg.captioner.CACHED_PAIRS", 2)
    captioner.notes_and_maps(*images_of(folder))
    assert len(numbers) == 3, "a batch larger than the memory is seen once"
    captioner.notes_and_maps([first[0]], [first[1]])
    assert len(captioner._cache) == 2
    captioner.notes_and_maps([first[0]], [first[1]])
    assert len(numbers) == 3, "the pair seen last is remembered"


def test_maps_are_the_guides(folder: Path, artifacts: dict[str, Path]) -> None:
    captioner, guide = captioner_of(artifacts["all"]), GuideCaptioner(folder / "guide" / "artifact")
    described, by_guide = (one.describe(*images_of(folder), WITH_MAP) for one in (captioner, guide))
    for ours, theirs in zip(described, by_guide, strict=True):
        assert np.array_equal(ours.change_map, theirs.change_map)
        assert np.array_equal(ours.class_map.classes, theirs.class_map.classes)


def test_the_artifact_has_all_it_needs(folder: Path, artifacts: dict[str, Path], tmp_path: Path) -> None:
    captions = captioner_of(artifacts["all"])(*images_of(folder))
    moved = shutil.copytree(artifacts["all"], tmp_path / "moved")
    shutil.move(folder / "guide", tmp_path / "hidden")
    try:
        assert captioner_of(moved)(*images_of(folder)) == captions
    finally:
        shutil.move(tmp_path / "hidden", folder / "guide")
    supervisions = {supervision_of("changevg", read_artifact(path).config) for path in (moved, moved / "guide")}
    assert len(supervisions) == 2


def test_a_tuned_model_is_no_guide(folder: Path, artifacts: dict[str, Path], tmp_path: Path) -> None:
    assert isinstance(load_captioner(str(artifacts["all"] / "guide")), GuideCaptioner)
    tuned = str(artifacts["all"])
    job = ScoreGuideJob(pairs=str(folder / "pairs"), guide=tuned, out=str(tmp_path / "scores"))
    with pytest.raises(ValueError, match=r"is a tuned language model, not a guide; its guide, if it has one, is .*/gu"):
        score_guide(job)
    with pytest.raises(ValueError, match="is a tuned language model, not a guide"):
        start(tiny_job(str(folder / "pairs"), {"start": tuned}), tmp_path / "run")


def test_a_setting_that_is_gone_is_named_with_the_folder_of_its_artifact(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder / "guide" / "artifact", tmp_path / "copy")
    record = json.loads((copy / "config.json").read_text())
    record["config"]["job"]["model"]["gone"] = 1
    (copy / "config.json").write_text(json.dumps(record))
    with pytest.raises(ValueError, match=rf"^artifact {copy}: job\.model\.gone: .*; another version of this program"):
        load_captioner(str(copy))


def test_tasks_choose_the_rows_and_validation_is_of_each_pairs_captions(folder: Path) -> None:
    for tasks in (["caption", "binary", "count", "location", "dialogue"], ["caption"], ["count", "dialogue"]):
        samples = samples_of(loaders_of(folder, tasks=tasks))
        assert {str(samples.rows[row]["row_id"]).split("/")[1].split("-")[0] for row, _ in samples.order} == set(tasks)
    validation: Any = loaders_of(folder).validation
    scored = [validation.dataset.get(index, 0).dialogue for index in range(len(validation.dataset))]
    assert {row.name.split("/")[0]: list(row.references) for row in scored} == {
        "val-0": ["a road appears", "a new road is built"],
        "val-1": ["a building appears", "a new building is built"],
        "val-2": ["the scene is the same as before"],
    }


def test_questions_without_validation_rows_are_refused_if_these_choose_the_step(folder: Path, tmp_path: Path) -> None:
    unvalidated = write_questions(str(folder / "pairs"), tmp_path / "questions", val_as_train=True)
    with pytest.raises(ValueError, match=r"no validation rows by which train\.keep_best could choose"):
        loaders_of(folder, pairs=unvalidated)


CLASSES = np.zeros((30, 30), np.uint8)
CLASSES[2:8, 2:8] = 2
CLASSES[20:28, 1:9] = 2
CLASSES[:, 11:20] = 1
SEEN = GuideNotes("a road appears .", positions_of_classes(CLASSES, RegionConfig()))
QUESTION = f"Please describe the changes in {IMAGE} and {IMAGE}"


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
    pairs, guide = str(folder / "pairs"), str(folder / "guide" / "artifact")
    monkeypatch.setattr("sys.argv", ["finetune_changevg.py", f"pairs={pairs}", f"guide={guide}", f"out={tmp_path}"])
    finetune_changevg.main()
    scores = json.loads((tmp_path / SCORES).read_text())
    captioner, expected = load_captioner(guide), {name: SplitScores(RegionConfig()) for name in ("train", "val")}
    for row in iter_rows(pairs):
        (classes,) = class_maps_of(captioner, *([decode_image(row[side])] for side in ("before", "after")))
        expected[row["split"]].add(row, positions_of_classes(classes, RegionConfig()), classes)
    assert scores == {name: split.to_dict() for name, split in expected.items()}
    assert [scores[name]["pairs"] for name in ("train", "val")] == [5, 3]
