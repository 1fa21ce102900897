"""M3Diff as runs: its mixture of data sets and what of it is refused; training, the artifact, the captioner: what is
stored loads again, and a batch of pairs is its pairs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from idc.captioning.contract import SearchOptions
from idc.config import ConfigError, load, missing_inputs
from idc.data.images import resize_image
from idc.data.schema import Turn
from idc.endpoint.chat_endpoint import EndpointConfig
from idc.systems import load_captioner
from idc.systems.m3diff.captioner import M3DiffCaptioner
from idc.systems.m3diff.config import M3DiffJob
from idc.systems.m3diff.mixture import QUESTIONS, MixtureConfig, check_sets
from idc.systems.m3diff.model import new_mdp
from idc.systems.m3diff.task import M3DiffTask, make_loaders, train, training_parts, validation_samples
from idc.training.artifact import read_artifact
from idc.training.context import LocalContext
from idc.vlm.chat import Chat
from idc.vlm.config import PAIR_PROMPT, BaseConfig
from idc.vlm.logps import token_log_probabilities
from idc.vlm.merging import merge
from idc.vlm.tuning import find_tuned, load_found
from tests.systems.m3diff.small import SQUARE, WIDE, batch_of, job_of, task_of
from tests.vlm.folders import samples, write_instructions, write_pairs, write_rows
from tests.vlm.models import found, picture, tiny_folder

WITH_MAP = SearchOptions(change_map=True)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pairs(tmp_path_factory.mktemp("data") / "pairs")


def trained(kind: str, pairs: Path, runs: Path, **settings: Any) -> Path:
    job = job_of(kind, pairs, runs, **settings)
    train(job.model_dump(mode="json"), LocalContext(runs / kind))
    return runs / kind / "artifact"


@pytest.fixture(scope="module")
def artifact(pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(KIND, pairs, tmp_path_factory.mktemp("runs"))


def captioner_of(path: Path) -> M3DiffCaptioner:
    captioner = load_captioner(str(path))
    assert isinstance(captioner, M3DiffCaptioner)
    return captioner


KIND = "qwen2_5_vl"
"""The family whose images keep their sizes."""
PAIRS = [(SQUARE, SQUARE), (WIDE, WIDE), ((100, 30), SQUARE), (SQUARE, WIDE)]
BEFORES = [picture(2 * number, *before) for number, (before, _) in enumerate(PAIRS)]
AFTERS = [picture(2 * number + 1, *after) for number, (_, after) in enumerate(PAIRS)]


def test_an_image_after_of_another_size_is_resized_to_that_before(pairs: Path) -> None:
    dataset, plain = samples(KIND, pairs, one_size=True), samples(KIND, pairs)
    unequal = [n for n in range(len(plain)) if len(set(plain.dialogue(*plain.order[n]).sizes)) == 2]
    assert unequal
    for index in unequal:
        (before, after), (first, second) = (of.dialogue(*of.order[index]).decoded() for of in (dataset, plain))
        assert np.array_equal(before, first)
        assert np.array_equal(after, resize_image(second, before.shape[:2]))
        assert dataset.length(index, 0) == len(dataset.get(index, 0).sample.ids)


def test_rows_that_are_not_about_two_images_are_refused_by_name(pairs: Path, tmp_path: Path) -> None:
    instructions = write_instructions(tmp_path / "instructions")
    for pairs_of, more in ((instructions, []), (pairs, [str(instructions)])):
        job = job_of("internvl", pairs_of, tmp_path, more_pairs=more)
        with pytest.raises(ValueError, match=r"instructions, row 'row-0': number of images: 1; the model compares"):
            train(job.model_dump(mode="json"), LocalContext(tmp_path / "run"))
    assert not (tmp_path / "run" / "log.jsonl").exists()


def test_the_module_is_a_group_of_its_own_and_stored() -> None:
    task = task_of(KIND, {"optim": {"lr": 3e-5, "weight_decay": 0.1}})
    groups = {group["name"]: group for group in task.param_groups()}
    own = [groups["own"], groups["own_vectors"]]
    assert {id(p) for group in own for p in group["params"]} == {id(p) for p in task.mdp.parameters()}
    assert [(group["lr"], group["weight_decay"]) for group in own] == [(3e-5, 0.1), (3e-5, 0.0)]
    grouped = [id(p) for group in groups.values() for p in group["params"]]
    assert sorted(grouped) == sorted(id(p) for p in task.parameters() if p.requires_grad)
    stored = {name for name in task.checkpoint_keys() if not name.startswith("model.")}
    assert stored == {f"mdp.{name}" for name in task.mdp.state_dict()}


def test_captions_of_unequal_pairs_are_those_of_the_resized_pair_and_a_batch_is_its_pairs(artifact: Path) -> None:
    captioner = captioner_of(artifact)

    def said(befores: list[np.ndarray], afters: list[np.ndarray]) -> tuple[list[str], list[list[float]]]:
        """Of each pair its caption, and the score of another with the map."""
        described = captioner.describe(befores, afters, WITH_MAP)
        scores = captioner.score(befores, afters, [["the cube"]] * len(befores))
        numbers = [[score.total, *one.change_map.ravel()] for (score,), one in zip(scores, described, strict=True)]
        return [one.best.caption for one in described], numbers

    resized = [resize_image(after, before.shape[:2]) for before, after in zip(BEFORES, AFTERS, strict=True)]
    together = said(BEFORES, AFTERS)
    assert together == said(BEFORES, resized)
    dialogues = [[Turn("user", "What changed?")]] * len(BEFORES)
    assert captioner.answer(BEFORES, AFTERS, dialogues) == captioner.answer(BEFORES, resized, dialogues)
    for number, (before, after) in enumerate(zip(BEFORES, AFTERS, strict=True)):
        (text,), (numbers,) = said([before], [after])
        assert text == together[0][number]
        assert numbers == pytest.approx(together[1][number], abs=1e-4)


def test_an_artifact_loaded_captions_as_the_trained_model(
    pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks: list[M3DiffTask] = []
    monkeypatch.setattr("idc.systems.m3diff.task.M3DiffTask", lambda *args: tasks.append(M3DiffTask(*args)) or tasks[0])
    captioner = captioner_of(trained(KIND, pairs, tmp_path))
    task = tasks[0].eval()
    batch = batch_of(task.family, [SQUARE, WIDE])
    with torch.no_grad():
        expected, _ = task.token_losses(batch, task.encode(batch))
        encoded = captioner.encode({key: batch[key] for key in captioner.family.pixel_keys})[0]
        logs, _ = token_log_probabilities(captioner.model, batch, encoded, captioner.family)
    torch.testing.assert_close(-logs, expected, rtol=0, atol=2e-6)  # adapters are merged
    fresh = new_mdp(job_of(KIND, pairs, tmp_path).mdp, found(KIND).family).state_dict()
    assert not any(torch.equal(tensor, fresh[name]) for name, tensor in captioner.mdp.state_dict().items())


def test_the_map_is_zero_for_equal_images_and_large_where_they_differ(pairs: Path, tmp_path: Path) -> None:
    captioner = captioner_of(trained("internvl", pairs, tmp_path))
    before = picture(0)
    after = before.copy()
    after[32:48, 16:32] = 255 - after[32:48, 16:32]  # the patch in row 2, column 1
    same, changed = (one.change_map for one in captioner.describe([before, before], [before, after], WITH_MAP))
    assert (same.max(), same.shape) == (0, (4, 4))
    assert np.unravel_index(changed.argmax(), (4, 4)) == (2, 1)


def test_what_an_artifact_with_a_module_cannot_do_is_one_line(artifact: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has a module of its own .*\(mdp\).*; use the artifact itself"):
        merge(read_artifact(artifact), tmp_path / "merged")
    assert not (tmp_path / "merged").exists()
    with pytest.raises(ValueError, match="an artifact of m3diff has no language model that runs elsewhere"):
        load_captioner(str(artifact), endpoint=EndpointConfig(url="http://127.0.0.1:9/v1", model="x"))


def test_weights_that_are_not_those_of_the_settings_are_refused(artifact: Path, tmp_path: Path) -> None:
    tuned, job, family = read_artifact(artifact), job_of(KIND, tmp_path, tmp_path), found(KIND).family
    base = BaseConfig(source=str(tiny_folder(KIND)))
    for mdp, message in (
        (None, r"has mdp\.\S+, which the base model does not"),
        (new_mdp(job.mdp.model_copy(update={"stacks": 3}), family), r"lacks mdp\.stacks\.2\."),
        (new_mdp(job.mdp.model_copy(update={"levels": (2,)}), family), r"has mdp\.score\.bias as \(2, 32\)"),
    ):
        own = {} if mdp is None else {"mdp": mdp}
        with pytest.raises(ValueError, match=message):
            load_found(tuned, *find_tuned(tuned, base), base, job.tune, own_modules=own)


TRAIN = {
    "epochs": None, "steps": 14, "batch_size": 4, "precision": "fp32", "group_by_length": 0,
}  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Three sets: of 12, 9 and 6 training pairs, a third of which have no, one or two captions each."""
    root = tmp_path_factory.mktemp("data")
    sizes = {"clevr_change": 12, "spot_the_diff": 9, "mine": 6}
    return {name: str(write_pairs(root / name, train=size, val=3)) for name, size in sizes.items()}


def mixture_of(folders: dict[str, str], **settings: Any) -> MixtureConfig:
    return load(MixtureConfig, None, {"sets": {name: {"pairs": path} for name, path in folders.items()}, **settings})


def chat() -> Chat:
    return Chat(found("internvl").family)


def test_each_set_has_its_question_and_its_way_with_several_captions(folders: dict[str, str]) -> None:
    question = "<image> and <image>: what is different?"
    mixture = mixture_of(folders, **{"sets.mine.prompt.text": question})
    parts = training_parts(mixture, chat(), seed=0)
    questions = {name: part.dialogue(1, 0).turns[0].text for name, part in parts.items()}
    assert questions["clevr_change"].endswith(QUESTIONS["clevr_change"])
    assert questions["spot_the_diff"].endswith("Describe one change in one sentence.")
    assert questions["mine"] == question
    assert mixture.prompt_of("omnidiff").text.endswith(QUESTIONS["omnidiff"]), "also of a set that is not trained on"
    assert mixture.prompt_of("another").text == PAIR_PROMPT
    # of three pairs one has no caption, one has one and one has two
    assert {name: len(part) for name, part in parts.items()} == {"clevr_change": 12, "spot_the_diff": 9, "mine": 4}
    each = mixture_of(folders, **{"sets.mine.captions": "each", "sets.clevr_change.captions": "one"})
    assert [len(part) for part in training_parts(each, chat(), seed=0).values()] == [8, 9, 6]


def mixture_job(folders: dict[str, str], **settings: Any) -> M3DiffJob:
    sets = {name: {"pairs": path} for name, path in folders.items()}
    return load(M3DiffJob, None, {
        "mixture.sets": sets, "base.source": str(tiny_folder("internvl")), "generation.max_new_tokens": 4,
        "tune.lora.rank": 2, "mdp.heads": 2, "train": TRAIN, **settings,
    })  # fmt: skip


def test_training_has_every_sample_of_every_set_and_validation_pairs_only_if_asked(
    folders: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    family = found("internvl").family
    job = mixture_job(folders, **{"mixture.validate_on": "spot_the_diff"})
    loaders = make_loaders(job, family, LocalContext(tmp_path))
    assert "clevr_change 12, spot_the_diff 9, mine 4" in capsys.readouterr().err
    assert len(loaders.train.dataset) == 25
    assert loaders.validation is not None
    validation = validation_samples(job.mixture, chat(), 0)
    assert validation.folder == folders["spot_the_diff"]
    assert validation.dialogue(0, 0).turns[0].text.endswith(QUESTIONS["spot_the_diff"])
    settings = {"mixture.train_on_val": True, "train.keep_best": None}
    trained_on_all = make_loaders(mixture_job(folders, **settings), family, LocalContext(tmp_path))
    assert trained_on_all.validation is None
    assert len(trained_on_all.train.dataset) == 25 + 9


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"mixture.sets.a": {"pairs": "a", "prompt": {"text": "What?"}}}, r"sets\.a\.prompt\.text: <image>"),
        ({"mixture.sets.a": {"pairs": "/"}, "mixture.sets.b": {"pairs": "/"}}, "'/' is the folder of 'a' too"),
        ({"mixture.validate_on": "mine", "mixture.train_on_val": True}, "train_on_val=true trains on the"),
        ({"mixture.without": ["mine", "clevr_change", "spot_the_diff"]}, r"without: leaves out all sets \("),
        ({"mixture.without": ["main"]}, "without: 'main' is not one of the sets; did you mean 'mine'"),
        ({"mixture.without": ["mine"], "mixture.validate_on": "mine"}, "validate_on: 'mine' is not one of the sets"),
    ],
)  # fmt: skip
def test_faults_of_a_mixture_are_named(folders: dict[str, str], settings: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        mixture_job(folders, **settings)


@pytest.mark.parametrize(
    ("manifest", "reason"),
    [
        (None, "it has no manifest.json; import it first"),
        ({"complete": False}, "is not complete; run "),
        ({"extra": {"images": False}}, "has annotations alone, no images"),
        ({"kind": "procedures"}, "not pairs"),
        ({}, "has the same rows as 'mine'"),
    ],
)
def test_a_set_that_cannot_be_trained_on_is_one_line_with_the_command_that_imports_it(
    manifest: dict[str, Any] | None, reason: str, folders: dict[str, str], tmp_path: Path
) -> None:
    path = tmp_path / "copy" / "manifest.json"
    if manifest is not None:
        shutil.copytree(folders["mine"], path.parent)
        path.write_text(json.dumps({**json.loads(path.read_text()), **manifest}))
    mixture = mixture_of({"mine": folders["mine"], "spot_the_diff_multi": str(path.parent)})
    with pytest.raises(ValueError, match=r"^mixture\.sets\.spot_the_diff_multi: ") as caught:
        check_sets(mixture)
    message = str(caught.value)
    assert reason in message
    assert "\n" not in message
    if manifest == {}:
        assert "mixture.without=[spot_the_diff_multi]" in message
    else:
        command = f"format=spot_the_diff spot_the_diff.protocol=multi source=FOLDER out={path.parent}"
        assert f"python jobs/import_dataset.py {command}" in message
        assert missing_inputs(mixture) == [message.removeprefix("mixture.")], "the command line refuses it too"


def test_a_split_without_captions_is_refused(folders: dict[str, str], tmp_path: Path) -> None:
    row = {"pair_id": "1", "before": b"", "after": b"", "captions": [], "change_type": None, "mask": None,
           "source": "", "meta": "", "split": "train"}  # fmt: skip
    bare = write_rows(tmp_path / "bare", [row, {**row, "pair_id": "2", "split": "val", "captions": ["a"]}])
    with pytest.raises(ValueError, match=r"mixture\.sets\.mine: .* has no captions; import the data set with its "):
        check_sets(mixture_of({"mine": bare}))
    unvalidated = write_pairs(tmp_path / "none", train=3, val=0)
    mixture = mixture_of({"mine": str(unvalidated), "clevr_change": folders["clevr_change"]})
    with pytest.raises(ValueError, match=r"mixture\.validate_on: the validation split of 'mine' .*: clevr_change"):
        validation_samples(mixture, chat(), 0)
