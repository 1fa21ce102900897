"""Training, the artifact, the captioner: what is stored loads again, and a batch of pairs is its pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from idc.data.images import resize_image
from idc.schema import Turn
from idc.systems import load_captioner, load_remote
from idc.systems.m3diff.captioner import M3DiffCaptioner
from idc.systems.m3diff.model import new_mdp
from idc.systems.m3diff.task import M3DiffTask, train
from idc.training.activation_checkpointing import recompute_activations
from idc.training.artifact import read_artifact
from idc.training.context import LocalContext
from idc.vlm.artifact import find_tuned, load_found
from idc.vlm.base import load_model
from idc.vlm.config import BaseConfig
from idc.vlm.merging import merge
from idc.vlm.samples import collate_samples
from tests.systems.m3diff.small import SQUARE, WIDE, batch_of, job_of, task_of
from tests.vlm.folders import samples, write_instructions, write_pairs
from tests.vlm.models import every_family, found, picture, tiny_folder


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pairs of unequal sizes."""
    return write_pairs(tmp_path_factory.mktemp("data") / "pairs")


def trained(kind: str, pairs: Path, runs: Path, **settings: Any) -> Path:
    job = job_of(kind, pairs, runs, **settings)
    train(job.model_dump(mode="json"), LocalContext(runs / kind))
    return runs / kind / "artifact"


@pytest.fixture(scope="module")
def artifacts(pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    runs = tmp_path_factory.mktemp("runs")
    return {kind: trained(kind, pairs, runs) for kind in ("qwen2_5_vl", "internvl")}


def captioner_of(path: Path) -> M3DiffCaptioner:
    captioner = load_captioner(str(path))
    assert isinstance(captioner, M3DiffCaptioner)
    return captioner


PAIRS = [(SQUARE, SQUARE), (WIDE, WIDE), ((100, 30), SQUARE), (SQUARE, WIDE)]
BEFORES = [picture(2 * number, *before) for number, (before, _) in enumerate(PAIRS)]
AFTERS = [picture(2 * number + 1, *after) for number, (_, after) in enumerate(PAIRS)]


# -- what is trained ----------------------------------------------------------------------------------------------


def test_the_module_is_a_group_of_its_own_and_stored() -> None:
    task = task_of("internvl", {"optim": {"lr": 3e-5, "weight_decay": 0.1}})
    groups = {group["name"]: group for group in task.param_groups()}
    own = [groups["own"], groups["own_vectors"]]
    assert {id(p) for group in own for p in group["params"]} == {id(p) for p in task.mdp.parameters()}
    assert [(group["lr"], group["weight_decay"]) for group in own] == [(3e-5, 0.1), (3e-5, 0.0)]
    assert {id(p) for p in groups["own_vectors"]["params"]} >= {id(score.bias) for score in task.mdp.scores}
    given = [id(p) for group in groups.values() for p in group["params"]]
    assert sorted(given) == sorted(id(p) for p in task.parameters() if p.requires_grad)
    assert {name for name in task.stored() if not name.startswith("model.")} == {
        f"mdp.{name}" for name in task.mdp.state_dict()
    }


@every_family
def test_recomputed_activations_change_nothing(kind: str) -> None:
    losses, gradients = [], []
    for again in (False, True):
        task = task_of(kind).train()
        if again:
            recompute_activations(task)
        torch.manual_seed(5)
        loss = task.training_step(batch_of(task.family, [SQUARE, WIDE]))[0]
        loss.backward()
        losses.append(float(loss.detach()))
        gradients.append({name: p.grad for name, p in task.named_parameters() if p.grad is not None})
    assert losses[0] == losses[1]
    assert gradients[0].keys() == gradients[1].keys()
    assert all(torch.equal(gradients[0][name], gradients[1][name]) for name in gradients[0])


@every_family
def test_a_bfloat16_base_with_the_module_in_float32(kind: str) -> None:
    net = load_model(tiny_folder(kind), BaseConfig(source="-", dtype="bfloat16"))
    plain = task_of(kind)
    task = M3DiffTask(net, plain.family, plain.tune, plain.generation, plain.mdp, plain.optim).train()
    with torch.autocast("cpu", torch.bfloat16):
        loss = task.training_step(batch_of(task.family, [SQUARE, WIDE]))[0]
    loss.backward()
    trained = [p for p in task.parameters() if p.requires_grad]
    assert {p.dtype for p in trained} == {torch.float32}
    assert all(p.grad is not None and p.grad.isfinite().all() for p in trained)


# -- pairs --------------------------------------------------------------------------------------------------------


def test_an_image_after_of_another_size_is_resized_to_that_before(pairs: Path) -> None:
    """In training; its length is known without decoding, and the loss is that of the resized pair."""
    kind = "qwen2_5_vl"
    dataset, plain = samples(kind, pairs, one_size=True), samples(kind, pairs)
    unequal = [n for n in range(len(plain)) if len(set(plain.dialogue(*plain.order[n]).sizes)) == 2]
    assert unequal
    for index in unequal:
        dialogue = dataset.dialogue(*dataset.order[index])
        before, after = dialogue.decoded()
        given = plain.dialogue(*plain.order[index]).decoded()
        assert np.array_equal(before, given[0])
        assert np.array_equal(after, resize_image(given[1], before.shape[:2]))
        assert not np.array_equal(after.shape, given[1].shape)
        assert dialogue.sizes == [before.shape[:2]] * 2
        sample = dataset.get(index, 0).sample
        assert dataset.length(index, 0) == len(sample.ids)
        assert sample.pixels["image_grid_thw"][0].tolist() == sample.pixels["image_grid_thw"][1].tolist()


def test_captions_of_unequal_pairs_are_those_of_the_resized_pair(artifacts: dict[str, Path]) -> None:
    captioner = captioner_of(artifacts["qwen2_5_vl"])
    resized = [resize_image(after, before.shape[:2]) for before, after in zip(BEFORES, AFTERS, strict=True)]
    texts = [["the cube"], ["red"], ["the large sphere"], ["x"]]
    question = [[Turn("user", "What changed?")]] * 4
    given, same = (
        (
            captioner(BEFORES, afters),
            captioner.score(BEFORES, afters, texts),
            captioner.sample(BEFORES, afters, 2),
            [one.text for one in captioner.answer(BEFORES, afters, question)],
            [one.change_map.tolist() for one in captioner.describe(BEFORES, afters, change_map=True)],
        )
        for afters in (AFTERS, resized)
    )
    assert given == same


def test_rows_that_are_not_about_two_images_are_refused_by_name(pairs: Path, tmp_path: Path) -> None:
    instructions = write_instructions(tmp_path / "instructions")
    for pairs_of, more in ((instructions, []), (pairs, [str(instructions)])):
        job = job_of("internvl", pairs_of, tmp_path, more_pairs=more)
        with pytest.raises(ValueError, match=r"instructions, row 'row-0': it has 1 image, and the model compares"):
            train(job.model_dump(mode="json"), LocalContext(tmp_path / "run"))
    assert not (tmp_path / "run" / "log.jsonl").exists()


def test_a_base_without_the_levels_is_refused_before_its_weights_are_read(
    pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any) -> None:
        raise AssertionError("weights were read")

    monkeypatch.setattr("idc.vlm.system.load_model", never)
    job = job_of("internvl", pairs, tmp_path, mdp={"levels": [15, 18, 21, 24]})
    with pytest.raises(ValueError, match="vision tower has 2 layers and no level 15; take levels from 0 to 2"):
        train(job.model_dump(mode="json"), LocalContext(tmp_path / "run"))


# -- artifact and captioner ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "internvl"])
def test_an_artifact_loaded_captions_as_the_trained_model(
    kind: str, pairs: Path, artifacts: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logits and captions of the task at its end, and of the artifact."""
    tasks: list[M3DiffTask] = []
    monkeypatch.setattr("idc.systems.m3diff.task.M3DiffTask", lambda *args: tasks.append(M3DiffTask(*args)) or tasks[0])
    path = trained(kind, pairs, tmp_path)
    task, captioner = tasks[0].eval(), captioner_of(path)
    batch = batch_of(task.family, [SQUARE, WIDE])
    with torch.no_grad():
        expected, _ = task.token_losses(batch, task.encode(batch))
        found_now, _ = task_losses(captioner, batch)
    torch.testing.assert_close(found_now, expected, rtol=0, atol=2e-6)  # adapters are merged
    fresh = new_mdp(job_of(kind, pairs, tmp_path).mdp, found(kind).family)
    stored = read_artifact(path).state_dict()
    assert {name for name in stored if name.startswith("mdp.")} == {f"mdp.{name}" for name in fresh.state_dict()}
    moved = {name for name, one in captioner.mdp.state_dict().items() if not torch.equal(one, fresh.state_dict()[name])}
    assert len(moved) == len(fresh.state_dict())
    again = captioner_of(artifacts[kind])  # of another run with the same settings
    texts = [["the cube", "a red sphere"]] * 4
    assert captioner(BEFORES, AFTERS) == again(BEFORES, AFTERS)
    assert captioner.score(BEFORES, AFTERS, texts) == again.score(BEFORES, AFTERS, texts)


def task_losses(captioner: M3DiffCaptioner, batch: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    from idc.vlm.logps import token_log_probabilities

    encoded = captioner.encode({key: batch[key] for key in captioner.family.pixel_keys})[0]
    logs, rows = token_log_probabilities(captioner.model, batch, encoded, captioner.family)
    return -logs, rows


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "internvl"])
def test_a_batch_of_pairs_is_its_pairs(kind: str, artifacts: dict[str, Path]) -> None:
    """Captions, candidates, scores and maps, of pairs of several sizes."""
    captioner = captioner_of(artifacts[kind])
    together = captioner.describe(BEFORES, AFTERS, beams=3, candidates=2, change_map=True)
    scores = captioner.score(BEFORES, AFTERS, [["the cube"]] * 4)
    for number, one in enumerate(together):
        (alone,) = captioner.describe([BEFORES[number]], [AFTERS[number]], beams=3, candidates=2, change_map=True)
        assert [c.caption for c in one.candidates] == [c.caption for c in alone.candidates]
        np.testing.assert_allclose(one.change_map, alone.change_map, atol=1e-5)
        (single,) = captioner.score([BEFORES[number]], [AFTERS[number]], [["the cube"]])
        assert single[0].total == pytest.approx(scores[number][0].total, abs=1e-4)


def test_the_map_is_zero_for_equal_images_and_large_where_they_differ(artifacts: dict[str, Path]) -> None:
    captioner = captioner_of(artifacts["internvl"])
    before = picture(0)
    after = before.copy()
    after[32:48, 16:32] = 255 - after[32:48, 16:32]  # the patch in row 2, column 1
    same, changed = captioner.describe([before, before], [before, after], change_map=True)
    assert same.change_map is not None
    assert changed.change_map is not None
    assert same.change_map.max() == 0
    assert same.change_map.shape == (4, 4)
    assert np.unravel_index(changed.change_map.argmax(), (4, 4)) == (2, 1)
    assert changed.evidence["change_peak"] == pytest.approx(float(changed.change_map.max()))


def test_what_an_artifact_with_a_module_cannot_do_is_one_line(artifacts: dict[str, Path], tmp_path: Path) -> None:
    from idc.chat_endpoint import EndpointConfig

    artifact = read_artifact(artifacts["internvl"])
    with pytest.raises(ValueError, match=r"has a module of its own .*\(mdp\).*; use the artifact itself"):
        merge(artifact, tmp_path / "merged")
    assert not (tmp_path / "merged").exists()
    with pytest.raises(ValueError, match="an artifact of m3diff has no language model that runs elsewhere"):
        load_remote(str(artifact.path), EndpointConfig(url="http://127.0.0.1:9/v1", model="x"))


@pytest.mark.parametrize("mdp", [{}, None])
def test_that_the_artifact_cannot_be_merged_is_said_before_the_training(
    mdp: Any, pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained("internvl", pairs, tmp_path, mdp=mdp, **{"train.steps": 1})
    before, counted, _ = capsys.readouterr().err.partition("training dialogues")
    assert counted
    assert ("the artifact will have mdp next to the language model" in before) == (mdp is not None)


def test_weights_that_are_not_those_of_the_settings_are_refused(artifacts: dict[str, Path], tmp_path: Path) -> None:
    artifact = read_artifact(artifacts["internvl"])
    job = job_of("internvl", tmp_path, tmp_path)
    family = found("internvl").family
    base = BaseConfig(source=str(tiny_folder("internvl")))
    for mdp, message in (
        (None, r"has mdp\.\S+, which the base model does not"),
        (new_mdp(job.mdp.model_copy(update={"stacks": 3}), family), r"lacks mdp\.stacks\.2\."),
        (new_mdp(job.mdp.model_copy(update={"score": "scalar"}), family), r"has mdp\.scores\.0\.bias as \(2, 32\)"),
    ):
        own = {} if mdp is None else {"mdp": mdp}
        with pytest.raises(ValueError, match=message):
            load_found(artifact, *find_tuned(artifact, base), base, job.tune, own_modules=own)


def test_a_task_validates_with_the_images_of_other_rows(pairs: Path) -> None:
    """The shuffled images of a dialogue are a pair at one size too."""
    from functools import partial

    from idc.training.data import EvalLoader
    from idc.vlm.chat import Chat
    from idc.vlm.config import PromptConfig
    from idc.vlm.samples import DialogueSamples

    task = task_of("qwen2_5_vl").eval()
    dataset = DialogueSamples(str(pairs), "val", Chat(task.family), PromptConfig(), 0, validation=True, one_size=True)
    loader = EvalLoader(dataset, 4, 0, 1, partial(collate_samples, family=task.family))
    found_now = task.validate(loader, LocalContext(pairs.parent / "run"))
    assert found_now["loss"] > 0
    assert abs(found_now["right_minus_shuffled"]) < 0.1
