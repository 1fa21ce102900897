"""ChangeVG as a whole: what it is tuned on is what it is asked, the guide runs once for each pair, and the artifact has
all it needs."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from idc.data.changeimti.config import RegionConfig
from idc.data.images import decode_image
from idc.data.pipeline import run_local
from idc.data.store import iter_rows
from idc.schema import IMAGE, Instruction, Turn
from idc.systems import load_captioner, supervision_of
from idc.systems.changevg.captioner import GuideCaptioner
from idc.systems.changevg.config import GuidedPromptConfig, GuideQuestionsJob, RunGuideJob
from idc.systems.changevg.dialogues import ImtiDialogues, make_loaders
from idc.systems.changevg.guided_captioner import GuidedCaptioner
from idc.systems.changevg.notes import guided_question
from idc.systems.changevg.notes_job import open_notes, open_questions
from idc.systems.changevg.tuning import train
from idc.training.artifact import read_artifact
from idc.training.context import LocalContext
from idc.training.data import Loaders, Mixture
from idc.vlm.captioner import VlmCaptioner
from idc.vlm.merging import merge
from tests.systems.changevg.guided import tuning_job, write_masked, write_questions
from tests.systems.changevg.tiny import SIDE, start, tiny_job
from tests.vlm.models import found, picture

QUOTES: dict[str, dict[str, Any]] = {
    "all": {},
    "no summary": {"quote.summary": False},
    "no regions": {"quote.regions": False},
    "notebook": {"quote.style": "notebook"},
    "other regions": {"regions.without_area": "count", "regions.centroid": "region"},
}
SIDES = ("before", "after")
Pair = tuple[np.ndarray, np.ndarray]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pairs, their questions, a guide, and another one."""
    path = tmp_path_factory.mktemp("guided")
    pairs = write_masked(path / "pairs")
    write_questions(pairs, path / "questions")
    start(tiny_job(pairs, {"train.steps": 40, "train.batch_size": 4}), path / "guide")
    start(tiny_job(pairs, {"train.steps": 1, "train.seed": 8}), path / "other")
    return path


@pytest.fixture(scope="module")
def artifacts(folder: Path) -> dict[str, Path]:
    """A tuned model for each way to quote the notes, and one without a guide."""
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


def samples_of(loaders: Loaders) -> ImtiDialogues:
    samples = loaders.train.dataset
    assert isinstance(samples, ImtiDialogues)
    return samples


def loaders_of(folder: Path, *, guide: str = "guide", **settings: Any) -> Loaders:
    job = tuning_job(str(folder / "questions"), folder / guide / "artifact", **settings)
    return make_loaders(job, found("internvl").family, LocalContext(folder / "loaders"))


class Asked:
    """The ids of every prompt that a captioner's language model reads."""

    def __init__(self, captioner: VlmCaptioner, patch: pytest.MonkeyPatch) -> None:
        self.prompts: list[list[int]] = []
        generate = captioner._generate

        def recorded(pairs: Any, prompts: Sequence[list[int]], *arguments: Any, **options: Any) -> Any:
            self.prompts += prompts
            return generate(pairs, prompts, *arguments, **options)

        patch.setattr(captioner, "_generate", recorded)


# -- the prompt of serving is that of tuning ----------------------------------------------------------------------


@pytest.mark.parametrize("name", [*QUOTES, "no guide"])
def test_a_question_is_put_as_it_was_learned(
    name: str, folder: Path, artifacts: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Token by token, for every answer of every learned dialogue; a caption is the row's that asks for one."""
    captioner, pairs = load_captioner(str(artifacts[name])), pairs_of(folder)
    assert isinstance(captioner, VlmCaptioner)
    guide = None if name == "no guide" else folder / "guide" / "artifact"
    job = tuning_job(str(folder / "questions"), guide, **QUOTES.get(name, {}))
    samples = samples_of(make_loaders(job, captioner.family, LocalContext(folder / "loaders")))
    if isinstance(captioner, GuidedCaptioner):
        assert captioner.regions == (job.regions or RegionConfig())
    asked = Asked(captioner, monkeypatch)
    seen = set()
    for index, (row, _) in enumerate(samples.order):
        stored = Instruction.from_row(samples.rows[row])
        assert stored.of_pair is not None
        before, after = pairs[stored.of_pair]
        sample = samples.get(index, 0).sample
        learned_from = [at for at in range(1, len(sample.ids)) if sample.learned[at] and not sample.learned[at - 1]]
        answers = [number for number, turn in enumerate(stored.turns) if turn.role == "assistant"]
        assert len(learned_from) == len(answers)
        for number, at in zip(answers, learned_from, strict=True):
            captioner.answer([before], [after], [stored.turns[:number]])
            assert asked.prompts.pop() == list(sample.ids[:at])
            seen.add((len(answers) > 1, stored.turns[number].task))
        if len(answers) == 1 and stored.turns[1].task == "caption":
            captioner([before], [after])
            assert asked.prompts.pop() == list(sample.ids[: learned_from[0]])
            captioner.describe([before], [after])
            assert asked.prompts.pop() == list(sample.ids[: learned_from[0]])
    assert {(False, task) for task in ("caption", "binary", "count", "location")} <= seen
    assert (True, "caption") in seen


def test_branches_that_are_left_out_are_in_no_prompt(folder: Path) -> None:
    texts = {}
    for name, settings in QUOTES.items():
        samples = samples_of(loaders_of(folder, **settings))
        texts[name] = [samples.dialogue(row, number).turns[0].text for row, number in samples.order]
    assert all("Caption: " in text and "Count: {" in text for text in texts["all"])
    assert not any("Caption: " in text for text in texts["no summary"])
    assert all("Count: {" in text and "Location: {" in text for text in texts["no summary"])
    assert not any("Count: {" in text or "Location: {" in text for text in texts["no regions"])
    assert all("Caption: " in text for text in texts["no regions"])
    assert not any("Count: {" in text for text in texts["notebook"])


def test_questions_without_images_are_put_behind_the_notes(
    folder: Path, artifacts: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    captioner = captioner_of(artifacts["all"])
    asked = Asked(captioner, monkeypatch)
    ((before, after), *_) = pairs_of(folder).values()
    captioner.answer([before], [after], [[Turn("user", "How many roads?")]])
    ((notes, _),) = captioner.looks([before], [after])
    text = guided_question(notes, f"{IMAGE}{IMAGE}How many roads?", captioner.quote)
    assert asked.prompts == [captioner.chat.prompt([Turn("user", text)], [(SIDE, SIDE)] * 2)]
    captioner.answer([before], [after], [[Turn("user", f"{IMAGE}{IMAGE}")]])
    captioner([before], [after])
    assert asked.prompts[1] == asked.prompts[2], "images alone ask for the caption, whose question quotes notes once"


# -- the guide ----------------------------------------------------------------------------------------------------


def test_a_batch_asks_what_its_pairs_ask_alone(
    folder: Path, artifacts: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    captioner, pairs = captioner_of(artifacts["all"]), list(pairs_of(folder).values())[:3]
    asked, question = Asked(captioner, monkeypatch), [Turn("user", "How many?")]
    for before, after in pairs:
        captioner([before], [after])
        captioner.answer([before], [after], [question])
    alone, asked.prompts = asked.prompts, []
    befores, afters = map(list, zip(*pairs, strict=True))
    captioner(befores, afters)
    captioner.answer(befores, afters, [question] * 3)
    assert asked.prompts == alone[::2] + alone[1::2]
    assert len({tuple(ids) for ids in alone}) == 6, "else the notes of all are alike"


def test_notes_are_those_of_the_pair_in_its_order(folder: Path, artifacts: dict[str, Path]) -> None:
    """A batch, pairs alone, exchanged images and the guide by itself: the notes follow the images."""
    captioner, guide = captioner_of(artifacts["all"]), GuideCaptioner(folder / "guide" / "artifact")
    befores, afters = map(list, zip(*pairs_of(folder).values(), strict=True))
    batch = [notes for notes, _ in captioner.looks(befores + afters, afters + befores)]
    assert batch == guide.observe(befores + afters, afters + befores, captioner.regions)
    alone = [captioner_of(artifacts["all"]).looks([b], [a])[0][0] for b, a in zip(befores, afters, strict=True)]
    assert batch[: len(befores)] == alone
    assert batch[: len(befores)] != batch[len(befores) :], "a guide that sees tells exchanged images apart"
    assert len({(notes.summary, str(notes.positions)) for notes in alone}) > 1, "else all notes are alike"
    samples = samples_of(loaders_of(folder))
    assert samples.notes is not None
    for name, notes in zip(pairs_of(folder), alone, strict=True):
        assert (samples.notes[name].summary, samples.notes[name].positions) == (notes.summary, notes.positions)


def test_the_guide_runs_once_for_each_pair(
    folder: Path, artifacts: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    captioner, numbers = captioner_of(artifacts["all"]), list[int]()
    look = captioner.guide.look

    def counted(befores: Sequence[np.ndarray], *arguments: Any) -> Any:
        numbers.append(len(befores))
        return look(befores, *arguments)

    monkeypatch.setattr(captioner.guide, "look", counted)
    (first, second, *_) = pairs_of(folder).values()
    dialogue: list[Turn] = []
    for question in ("Did anything change?", "How many roads?", "How many buildings?", "Please describe the changes."):
        dialogue.append(Turn("user", question))
        (answer,) = captioner.answer([first[0]], [first[1]], [dialogue])
        dialogue.append(Turn("assistant", answer.text))
    assert numbers == [1]
    captioner.describe([first[0], second[0]], [first[1], second[1]], change_map=True)
    assert numbers == [1, 1], "of the batch the other pair alone"
    captioner.describe([second[0]] * 2, [second[1]] * 2)
    assert numbers == [1, 1]


def test_a_batch_larger_than_the_memory_is_seen_once(
    folder: Path, artifacts: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("idc.systems.changevg.guided_captioner.REMEMBERED", 2)
    captioner, pairs = captioner_of(artifacts["all"]), list(pairs_of(folder).values())
    befores, afters = map(list, zip(*pairs, strict=True))
    runs: list[int] = []
    look = captioner.guide.look

    def counted(*arguments: Any) -> Any:
        runs.append(len(arguments[0]))
        return look(*arguments)

    monkeypatch.setattr(captioner.guide, "look", counted)
    captioner.describe(befores, afters, change_map=True)
    different = {(before.tobytes(), after.tobytes()) for before, after in pairs}
    assert runs == [len(different)] > [2]
    captioner.looks(befores[:1], afters[:1])
    assert len(captioner._looks) == 2


def test_maps_are_the_guides(folder: Path, artifacts: dict[str, Path]) -> None:
    captioner, guide = captioner_of(artifacts["all"]), GuideCaptioner(folder / "guide" / "artifact")
    befores, afters = map(list, zip(*pairs_of(folder).values(), strict=True))
    described = captioner.describe(befores, afters, change_map=True)
    by_guide = guide.describe(befores, afters, change_map=True)
    for ours, theirs in zip(described, by_guide, strict=True):
        assert ours.class_map is not None
        assert theirs.class_map is not None
        assert np.array_equal(ours.change_map, theirs.change_map)
        assert np.array_equal(ours.class_map.classes, theirs.class_map.classes)
        assert ours.class_map.names == theirs.class_map.names
    (plain,) = captioner.describe(befores[:1], afters[:1])
    assert plain.change_map is None
    assert plain.class_map is None


# -- the artifact -------------------------------------------------------------------------------------------------


def test_the_artifact_has_all_it_needs(
    folder: Path, artifacts: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Elsewhere, where neither guide nor questions are."""
    befores, afters = map(list, zip(*pairs_of(folder).values(), strict=True))
    captions = captioner_of(artifacts["all"])(befores, afters)
    moved = tmp_path / "moved"
    shutil.copytree(artifacts["all"], moved)
    hidden = tmp_path / "hidden"
    shutil.move(folder / "guide", hidden)
    try:
        assert captioner_of(moved)(befores, afters) == captions
    finally:
        shutil.move(hidden, folder / "guide")
    saved = read_artifact(moved).config["job"]
    assert saved["regions"] == {"without_area": "drop", "enclosed": "drop", "centroid": "polygon"}
    assert saved["quote"] == GuidedPromptConfig().model_dump(mode="json")
    assert (moved / "guide" / "config.json").read_bytes() == (folder / "guide/artifact/config.json").read_bytes()
    supervision = supervision_of("changevg", read_artifact(moved).config)
    assert supervision != supervision_of("changevg", read_artifact(folder / "guide" / "artifact").config)


def test_without_a_guide_it_is_a_plain_model(artifacts: dict[str, Path]) -> None:
    captioner = load_captioner(str(artifacts["no guide"]))
    assert type(captioner) is VlmCaptioner
    assert not (artifacts["no guide"] / "guide").exists()
    (description,) = captioner.describe([picture(0)], [picture(1)], change_map=True)
    assert description.class_map is None


def test_a_guide_alone_stays_a_captioner_and_a_tuned_model_is_no_guide(
    folder: Path, artifacts: dict[str, Path], tmp_path: Path
) -> None:
    assert isinstance(load_captioner(str(folder / "guide" / "artifact")), GuideCaptioner)
    assert isinstance(load_captioner(str(artifacts["all"] / "guide")), GuideCaptioner)
    tuned = str(artifacts["all"])
    job = RunGuideJob(pairs=str(folder / "pairs"), guide=tuned, out=str(tmp_path / "notes"))
    with pytest.raises(ValueError, match=r"is a tuned language model, not a guide; its guide, if it has one, is .*/gu"):
        open_notes(job)
    with pytest.raises(ValueError, match="is a tuned language model, not a guide"):
        start(tiny_job(str(folder / "pairs"), {"start": tuned}), tmp_path / "run")
    with pytest.raises(ValueError, match=r"a module of its own .*\(guide\), for which a hub folder has no place"):
        merge(read_artifact(tuned), tmp_path / "merged")


# -- what is learned ----------------------------------------------------------------------------------------------


def test_tasks_choose_the_rows(folder: Path) -> None:
    def tasks_of(**settings: Any) -> set[str]:
        samples = samples_of(loaders_of(folder, **settings))
        return {str(samples.rows[row]["row_id"]).split("/")[1].split("-")[0] for row, _ in samples.order}

    assert tasks_of() == {"caption", "binary", "count", "location", "dialogue"}
    assert tasks_of(tasks=["caption"]) == {"caption"}
    assert tasks_of(tasks=["count", "dialogue"]) == {"count", "dialogue"}


def test_validation_is_of_each_pairs_captions(folder: Path) -> None:
    validation = loaders_of(folder).validation
    assert validation is not None
    samples = validation.dataset
    assert isinstance(samples, ImtiDialogues)
    scored = [samples.get(index, 0).scored for index in range(len(samples))]
    references = {row.name.split("/")[0]: list(row.references) for row in scored if row is not None}
    assert references == {
        "val-0": ["a road appears", "a new road is built"],
        "val-1": ["a building appears", "a new building is built"],
        "val-2": ["the scene is the same as before"],
    }
    assert all(row is not None and row.shuffled is not None for row in scored)
    counted = loaders_of(folder, tasks=["count"]).validation
    assert counted is not None
    assert len(counted.dataset) == 6


def take_notes(folder: Path, out: Path, **settings: Any) -> str:
    job = RunGuideJob.model_validate({
        "pairs": str(folder / "pairs"), "guide": str(folder / "guide" / "artifact"), "out": str(out), **settings,
    })  # fmt: skip
    run_local(*open_notes(job), max_reject_share=0.0)
    return job.out


def test_stored_notes_are_read(folder: Path, tmp_path: Path) -> None:
    taken, stored = (
        samples_of(loaders_of(folder, **settings)) for settings in ({}, {"notes": take_notes(folder, tmp_path / "n")})
    )
    assert [taken.get(i, 0).sample.ids for i in range(len(taken))] == [
        stored.get(i, 0).sample.ids for i in range(len(taken))
    ]
    assert taken.notes is not None
    assert stored.notes is not None
    assert {name: notes.to_dict() for name, notes in taken.notes.items()} == {
        name: notes.to_dict() for name, notes in stored.notes.items()
    }


def test_notes_that_do_not_fit_are_refused(folder: Path, tmp_path: Path) -> None:
    notes = take_notes(folder, tmp_path / "notes")
    with pytest.raises(ValueError, match=r"notes: those of .* are of another guide than .*other"):
        loaders_of(folder, guide="other", notes=notes)
    with pytest.raises(ValueError, match=r"counts other regions than the answers; run the guide with regions.centroid"):
        loaders_of(folder, notes=notes, **{"regions.centroid": "region"})
    with pytest.raises(ValueError, match="has no guide's notes; add them first"):
        loaders_of(folder, notes=str(folder / "pairs"))
    few = take_notes(folder, tmp_path / "few", max_pairs=3)
    with pytest.raises(ValueError, match=r"has none on \d pairs of .*questions, such as '(train|val)-"):
        loaders_of(folder, notes=few)


def test_regions_are_those_of_the_learned_answers(folder: Path, tmp_path: Path) -> None:
    questions = write_questions(str(folder / "pairs"), tmp_path / "questions", **{"regions.centroid": "region"})
    notes = take_notes(folder, tmp_path / "notes", regions={"centroid": "region"})
    job = tuning_job(questions, folder / "guide" / "artifact", notes=notes)
    make_loaders(job, found("internvl").family, LocalContext(tmp_path))


def test_questions_that_quote_notes_already_are_refused(folder: Path, tmp_path: Path) -> None:
    job = GuideQuestionsJob(
        instructions=str(folder / "questions"), pairs=take_notes(folder, tmp_path / "n"), out=str(tmp_path / "quoted")
    )
    run_local(*open_questions(job), max_reject_share=0.0)
    guide, more = folder / "guide" / "artifact", {"more_pairs": [job.out]}
    tunings = {"pairs": tuning_job(job.out, guide), "more_pairs": tuning_job(job.instructions, guide, **more)}
    for field, tuning in tunings.items():
        with pytest.raises(ValueError, match=rf"^{field}: .* quotes a guide's notes already .* made of, .*questions"):
            make_loaders(tuning, found("internvl").family, LocalContext(tmp_path))


def test_without_validation_nothing_is_chosen(folder: Path, tmp_path: Path) -> None:
    questions = write_questions(str(folder / "pairs"), tmp_path / "questions", val_as_train=True)
    family, guide = found("internvl").family, folder / "guide" / "artifact"
    with pytest.raises(ValueError, match=r"no validation rows by which train.keep_best could choose"):
        make_loaders(tuning_job(questions, guide), family, LocalContext(tmp_path))
    chosen = make_loaders(tuning_job(questions, guide, **{"train.keep_best": None}), family, LocalContext(tmp_path))
    assert chosen.validation is None
    assert not isinstance(chosen.train.dataset, Mixture)
