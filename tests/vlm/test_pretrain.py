"""Pre-training of a small base model: its samples, its loss, its folder; slow: the whole job, killed and resumed."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cluster.train import launch
from idc.config import ConfigError, load
from idc.data.pipeline import run_local
from idc.data.rendered.config import RenderJob
from idc.data.rendered.render import open_rendering
from idc.data.store import iter_rows
from idc.schema import IMAGE
from idc.training.base import full_hash
from idc.training.loop import read_log
from idc.vlm import pretrain
from idc.vlm.base import find_base, load_model, read_family
from idc.vlm.batch import encode_images, model_inputs
from idc.vlm.config import BaseConfig
from idc.vlm.generate import generate
from idc.vlm.pretrain import SceneCollate, SceneTask, image_distance, swapped
from idc.vlm.pretrain_card import RECIPE
from idc.vlm.pretrain_config import TASKS, PretrainVlmJob
from idc.vlm.scene_samples import RenderedScenes, SceneDialogues, SceneSample, ValidationDialogues
from idc.vlm.start_weights import comparing_head, lively_weights
from tests.folders import write_rows
from tests.training.test_loop import curve
from tests.vlm.models import every_family, found, tiny_folder

ENTRY = "idc.vlm.pretrain:train"


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> str:
    """16 scenes, 32 pairs of 32x32."""
    folder = str(tmp_path_factory.mktemp("rendered") / "pairs")
    scenes = {
        "num_scenes": 16, "width": 32, "height": 32, "samples_per_pixel": 4, "min_objects": 2, "max_objects": 3,
        "jitter": "slight", "min_visible_pixels": 8, "val_share": 0.25, "test_share": 0.1,
    }  # fmt: skip
    run_local(
        *open_rendering(load(RenderJob, None, {"out": folder, "render": scenes, "chunk_size": 16})), progress=False
    )
    return folder


def tiny_job(pairs: str, settings: dict[str, Any] | None = None) -> PretrainVlmJob:
    train = {"steps": 6, "batch_size": 4, "log_every": 1, "seed": 3, "tracking": {"enabled": False}}
    return load(PretrainVlmJob, None, {"pairs": pairs, "train": train, "model.side": 32, **(settings or {})})


def start(job: PretrainVlmJob, run_dir: Path) -> dict[str, Any]:
    payload = job.model_dump(mode="json", exclude={"train"})
    return launch(ENTRY, payload, job.train, run_dir, local=True)


# -- settings and samples ------------------------------------------------------------------------------------------


def test_stages_follow_one_another_and_fill_the_training(pairs: str) -> None:
    job = tiny_job(pairs)
    assert [job.stage_at(done).weights.index(max(job.stage_at(done).weights)) for done in (0, 0.34, 0.36, 0.43, 1)] == [
        0, 0, 1, 2, 2,
    ]  # fmt: skip
    with pytest.raises(ConfigError, match=r"the shares sum to 0\.5"):
        tiny_job(pairs, {"stages": [{"share": 0.5, "describe": 1}]})
    with pytest.raises(ConfigError, match="at least one weight"):
        tiny_job(pairs, {"stages": [{"share": 1.0}]})


def test_samples_are_of_their_stage_and_repeat_exactly(pairs: str) -> None:
    data = SceneDialogues(RenderedScenes(pairs, "train"), tiny_job(pairs), epochs=100)
    tasks = {
        begin: Counter(data.get(index, begin + more).task for index in range(len(data)) for more in range(5))
        for begin in (0, 36, 90)
    }
    assert set(tasks[0]) == {"describe"}
    assert set(tasks[36]) == {"describe", "choose"}
    assert tasks[90].most_common(1)[0][0] == "compare"
    first, again, later = data.get(3, 95), data.get(3, 95), [data.get(3, epoch).turns for epoch in range(90, 99)]
    assert first.turns == again.turns
    assert all(np.array_equal(a, b) for a, b in zip(first.images, again.images, strict=True))
    assert len(set(later)) > 5
    for task, images in (("describe", 1), ("choose", 2), ("compare", 2)):
        sample = next(one for epoch in range(99) for one in [data.get(0, epoch)] if one.task == task)
        assert len(sample.images) == sum(turn.text.count(IMAGE) for turn in sample.turns) == images
        assert [turn.role for turn in sample.turns[:2]] == ["user", "assistant"]


def test_half_of_the_compared_pairs_show_a_change(pairs: str) -> None:
    """In all orders of a scene's images: a change if and only if the objects differ, and then the caption names it."""
    scenes, rng = RenderedScenes(pairs, "train"), np.random.default_rng(0)
    changed, kinds = 0, Counter[str]()
    for number in range(300):
        (first, second), caption, named = scenes.ordered(number % len(scenes), rng)
        differ = first.things != second.things
        assert (named.answer != "none") == differ
        if differ:
            kinds[named.answer.split(":")[0]] += 1
            gone = [thing for thing in first.things if thing not in second.things]
            assert bool(gone) == (not named.answer.startswith("add"))
        assert differ == (caption not in _unchanged())
        changed += differ
    assert 100 < changed < 200
    assert set(kinds) == {"color", "material", "add", "drop", "move"}


def _unchanged() -> set[str]:
    from idc.data.rendered.captions import TEMPLATES

    return set(TEMPLATES["none"])


def test_validation_has_every_pair_with_every_task_as_it_is_stored(pairs: str) -> None:
    scenes = RenderedScenes(pairs, "val")
    data = ValidationDialogues(scenes, tiny_job(pairs))
    samples = [data.get(index, 0) for index in range(len(data))]
    assert Counter(sample.task for sample in samples) == dict.fromkeys(TASKS, len(scenes))
    scored = [sample.scored for sample in samples if sample.scored is not None]
    rows = list(iter_rows(pairs, ["pair_id", "captions"], "val"))
    assert [one["pair_id"] for one in scored] == [row["pair_id"] for row in rows]
    assert [sample.turns[1].text for sample in samples if sample.scored] == [row["captions"][0] for row in rows]
    assert len(ValidationDialogues(scenes, tiny_job(pairs, {"validation_pairs": 2}))) == 6


def test_pairs_without_scenes_are_refused(pairs: str, tmp_path: Path) -> None:
    rows = [{**row, "meta": "{}"} for row in iter_rows(pairs, split="train")]
    write_rows(tmp_path / "own", rows)
    with pytest.raises(ValueError, match=r"without a scene in their meta; give a folder made by jobs/render.py"):
        RenderedScenes(str(tmp_path / "own"), "train")


# -- the loss, for every family ------------------------------------------------------------------------------------


def test_texts_are_swapped_within_a_task_and_not_with_neighbours() -> None:
    tasks = ["describe"] * 4 + ["compare"] * 2 + ["choose"]
    assert swapped(tasks) == [2, 3, 0, 1, 5, 4, 6]


def task_of(kind: str, pairs: str) -> tuple[SceneTask, list[SceneSample]]:
    """With weights of its own: tests of other modules share the model of :mod:`tests.vlm.models`."""
    folder = tiny_folder(kind, side=64)
    base = BaseConfig(source=str(folder), dtype="float32")
    job = tiny_job(pairs, {"model.family": kind, "model.side": 64})
    model = load_model(folder, base)
    lively_weights(model, torch.Generator().manual_seed(0))
    data = ValidationDialogues(RenderedScenes(pairs, "val"), job)
    return SceneTask(job, model, found(kind).family), [data.get(index, 0) for index in range(len(data))]


@every_family
def test_every_weight_that_is_trained_gets_a_gradient_and_images_count(kind: str, pairs: str) -> None:
    task, samples = task_of(kind, pairs)
    count = len(samples) // 3
    batch = SceneCollate(task.family)([samples[0], samples[1], samples[2 * count], samples[2 * count + 1]])
    loss, _ = task.training_step(batch)
    loss.backward()
    none = [name for name, one in task.model.named_parameters() if one.requires_grad and one.grad is None]
    assert none == []
    grouped = {id(one) for group in task.param_groups() for one in group["params"]}
    assert grouped == {id(one) for one in task.parameters() if one.requires_grad}
    first = next(one for name, one in task.model.named_parameters() if "patch_embed" in name)
    assert first.grad is not None
    assert float(first.grad.abs().max()) > 1e-4, "from the answers to the first layer of the tower"
    with torch.no_grad():
        encoded = encode_images(task.model, batch, task.family)
        right = task._losses(batch, encoded)
        assert float(right.mean()) == pytest.approx(float(loss), rel=1e-5)
        alone = SceneCollate(task.family)(samples[2 * count : 2 * count + 1])
        single = task._losses(alone, encode_images(task.model, alone, task.family))
        assert float(single[0]) == pytest.approx(float(right[2]), abs=1e-4), "alone as in a batch"


@every_family
def test_a_pair_among_other_samples_is_captioned_from_its_own_images(
    kind: str, pairs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Images are encoded once for losses and captions; captions of small random models do not tell images apart, so
    what the language model is given is compared."""
    task, samples = task_of(kind, pairs)
    validation = ValidationDialogues(RenderedScenes(pairs, "val"), task.job)
    scored = [one for one in (validation.get(index, 0) for index in range(len(validation))) if one.scored is not None]
    samples = [replace(one, listing=None) for one in samples]  # only pairs are asked
    read: list[list[torch.Tensor]] = []

    def watched(model: Any, batch: Any, encoded: Any, *rest: Any) -> Any:
        read.append([tokens.clone() for tokens in task.family.tokens_of(encoded)])
        return generate(model, batch, encoded, *rest)

    monkeypatch.setattr(pretrain, "generate", watched)
    gather = SceneCollate(task.family)
    task.eval()
    with torch.no_grad():
        for several in ([samples[0], scored[0], samples[1], scored[1]], [scored[0]], [scored[1]]):
            batch = gather(several)
            assert len(task._answers(batch, encode_images(task.model, batch, task.family))) == len(batch["scored"])
    together, alone = read[0], read[1] + read[2]
    for one, other in zip(together, alone, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
    assert float((together[1] - together[3]).abs().max()) > 1e-3, "the images after of two pairs are alike"


@pytest.mark.parametrize("kind", ["internvl", "llava_onevision"])
def test_the_second_image_is_compared_with_the_first_from_the_start(kind: str, pairs: str) -> None:
    """The tokens of the second image attend to their places in the first."""
    task, samples = task_of(kind, pairs)
    distance = image_distance(task.family, samples[0].images[0].shape[:2])
    comparing_head(task.model, distance, torch.Generator().manual_seed(0))
    task.model.set_attn_implementation("eager")
    batch = SceneCollate(task.family)(samples[-2:])
    with torch.no_grad():
        inputs = model_inputs(batch, encode_images(task.model, batch, task.family), task.family)
        found = task.model.model(**inputs, output_attentions=True).attentions[0][:, 0]
    for row in range(2):
        places = np.flatnonzero(batch["input_ids"][row] == task.family.image_id)
        first, second = np.split(places, 2)
        assert set(second - first) == {distance}
        assert float(found[row, second, first].mean()) > 0.8


def test_a_run_goes_on_from_the_weights_and_words_of_another(pairs: str, tmp_path: Path) -> None:
    """And its folder has the settings and figures of both on its card."""
    single = [{"share": 1.0, "describe": 1.0}]
    start(tiny_job(pairs, {"train.steps": 2, "train.eval_every": 2, "stages": single}), tmp_path / "one")
    first = tmp_path / "one" / "artifact"
    settings = {
        "start": str(first),
        "train.steps": 1,
        "train.eval_every": 1,
        "stages": [{"share": 1.0, "compare": 1.0}],
    }
    later = {name: value for name, value in settings.items() if name != "start"}
    job = load(PretrainVlmJob, None, {**tiny_job(pairs, later).model_dump(exclude={"model"}), "start": str(first)})
    start(job, tmp_path / "two")
    begun, ended = (
        dict(load_model(folder, BaseConfig(source=str(folder))).named_parameters())
        for folder in (first, tmp_path / "two" / "start")
    )
    assert all(torch.equal(tensor, ended[name]) for name, tensor in begun.items())
    second = tmp_path / "two" / "artifact"
    assert (second / "tokenizer.json").read_bytes() == (first / "tokenizer.json").read_bytes()
    recipe = json.loads((second / RECIPE).read_text())
    assert [made["settings"]["stages"][0].get("compare") for made in recipe["trainings"]] == [None, 1.0]
    assert recipe["trainings"][0] == json.loads((first / RECIPE).read_text())["trainings"][0]
    assert recipe["sha256"] == full_hash(second)
    card = (second / "README.md").read_text()
    assert "| 2 of 4 | 100%: describe 1 |" in card
    assert "| 1 of 4 | 100%: compare 1 |" in card
    with pytest.raises(ConfigError, match="model: is that of start; leave it out"):
        tiny_job(pairs, {"start": str(first)})


def test_the_tokenizer_has_whole_words_of_captions_where_no_stage_compares(pairs: str, tmp_path: Path) -> None:
    job = tiny_job(pairs, {"train.steps": 1, "stages": [{"share": 1.0, "describe": 1.0}]})
    start(job, tmp_path)
    tokenizer = read_family(tmp_path / "start", tmp_path / "start", None).tokenizer
    words = [
        word for row in iter_rows(pairs, ["captions"], "train") for text in row["captions"] for word in text.split()
    ]
    common = [f" {word}" for word, count in Counter(words).items() if count > 8]
    assert {" scene", " changed"} & set(common)
    assert [word for word in common if len(tokenizer.encode(word)) > 1] == []


def test_a_run_writes_a_folder_that_transformers_reads(pairs: str, tmp_path: Path) -> None:
    """With the curve of sight in its log and on its page."""
    from transformers import AutoModelForImageTextToText

    result = start(tiny_job(pairs, {"train.steps": 4, "train.eval_every": 2}), tmp_path)
    log = [line for line in read_log(tmp_path / "log.jsonl") if "validation/compare" in line]
    assert [line["step"] for line in log] == [2, 4]
    for task in TASKS:
        right, wrong = (log[-1][f"validation/{task}{end}"] for end in ("", "_shuffled"))
        assert log[-1][f"validation/{task}_right_minus_shuffled"] == pytest.approx(right - wrong)
        assert result["metrics"][f"{task}_right_minus_shuffled"] == log[-1][f"validation/{task}_right_minus_shuffled"]
    assert "compare_right_minus_shuffled" in (tmp_path / "report.html").read_text()
    folder = tmp_path / "artifact"
    base = find_base(BaseConfig(source=str(folder)))
    assert base.family.name == "internvl"
    assert base.family.tokenizer.chat_template
    model = AutoModelForImageTextToText.from_pretrained(folder, output_loading_info=True)
    assert not any(model[1].values())
    ours = load_model(folder, BaseConfig(source=str(folder)))
    trained = dict(ours.named_parameters())
    assert all(torch.equal(one, trained[name]) for name, one in model[0].named_parameters())
    begun = dict(load_model(tmp_path / "start", BaseConfig(source=str(tmp_path / "start"))).named_parameters())
    assert not torch.equal(begun["model.multi_modal_projector.linear_1.weight"],
                           trained["model.multi_modal_projector.linear_1.weight"])  # fmt: skip
    assert json.loads((folder / "config.json").read_text())["model_type"] == "internvl"


@pytest.mark.slow
def test_a_killed_run_resumes_as_if_undisturbed(pairs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = tiny_job(pairs, {"train.steps": 8, "train.checkpoint_every": 2, "train.eval_every": 4})
    start(job, tmp_path / "whole")
    real, calls = SceneTask._losses, []

    def killed(self: SceneTask, batch: Any, encoded: Any) -> Any:
        calls.append(1)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return real(self, batch, encoded)

    monkeypatch.setattr(SceneTask, "_losses", killed)
    with pytest.raises(KeyboardInterrupt):
        start(job, tmp_path / "killed")
    monkeypatch.undo()
    start(job, tmp_path / "killed")
    assert curve(tmp_path / "whole") == curve(tmp_path / "killed")
    files = [(tmp_path / name / "artifact" / "model.safetensors").read_bytes() for name in ("whole", "killed")]
    assert files[0] == files[1]


@pytest.mark.slow
def test_it_sees_after_some_hundred_steps(tmp_path: Path) -> None:
    """Of single images, with the settings of the small preset and fewer scenes."""
    folder = str(tmp_path / "pairs")
    demo = load(RenderJob, str(Path(__file__).parents[2] / "jobs/configs/render/demo.yaml"), {"out": folder})
    job = load(RenderJob, None, {**demo.model_dump(mode="json"), "render.num_scenes": 300})
    run_local(*open_rendering(job), progress=False)
    preset = str(Path(__file__).parents[2] / "jobs/configs/vlm/pretrain_small.yaml")
    settings = {"pairs": folder, "stages": [{"share": 1.0, "describe": 1.0}], "train.steps": 200,
                "train.eval_every": 100, "validation_pairs": 30, "train.tracking.enabled": False}  # fmt: skip
    start(load(PretrainVlmJob, preset, settings), tmp_path / "run")
    log = [line for line in read_log(tmp_path / "run" / "log.jsonl") if "validation/describe" in line]
    assert log[-1]["validation/describe_right_minus_shuffled"] < -0.1  # a blind model has 0
    assert log[-1]["validation/describe"] < log[0]["validation/describe"]
