"""Training, the artifact, the captioner: what is stored loads again, and a batch of pairs is its pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from idc.data.images import resize_image
from idc.data.schema import Turn
from idc.endpoint.chat_endpoint import EndpointConfig
from idc.systems import load_captioner
from idc.systems.m3diff.captioner import M3DiffCaptioner
from idc.systems.m3diff.model import new_mdp
from idc.systems.m3diff.task import M3DiffTask, train
from idc.training.artifact import read_artifact
from idc.training.context import LocalContext
from idc.vlm.config import BaseConfig
from idc.vlm.logps import token_log_probabilities
from idc.vlm.merging import merge
from idc.vlm.tuning import find_tuned, load_found
from tests.systems.m3diff.small import SQUARE, WIDE, batch_of, job_of, task_of
from tests.vlm.folders import samples, write_instructions, write_pairs
from tests.vlm.models import found, picture, tiny_folder


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
        described = captioner.describe(befores, afters, change_map=True)
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
    same, changed = (one.change_map for one in captioner.describe([before, before], [before, after], change_map=True))
    assert same is not None
    assert changed is not None
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
