"""ProCap's two stages as runs: a tiny pretrain and finetune, their artifacts, and the captioner made of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from idc.captioning.contract import Speed
from idc.systems import load_system
from idc.systems.procap.captioner import PairCaptioner
from idc.systems.procap.data import FinetuneDataset, PretrainDataset, ProcedureInfo, collate
from idc.systems.procap.task import FinetuneTask, frame_features, frames_for
from idc.training.artifact import read_artifact
from idc.vision.tokenizer.model import ImageTokenizer
from tests.folders import read_log
from tests.systems.procap.world import ENCODER, World, build_procedures, start

STEM: dict[str, Any] = {**ENCODER, "stem": [8, 16, 16]}
"""Three levels: the patches of 8 pixels of the world's tokenizer. What the stem computes is in ``naive.py``."""


@pytest.fixture(scope="module")
def both_runs(world: World, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folders = {}
    for name, encoder in (("features", ENCODER), ("stem", STEM)):
        folder = folders[name] = tmp_path_factory.mktemp(name)
        steps = {"train.steps": 40, "train.log_every": 5, "train.eval_every": 20}
        start(world.pretrain({**steps, "optim.lr": 3e-3}, encoder=encoder), folder / "pretrain")
        steps = {"train.steps": 30, "train.log_every": 5, "train.eval_every": 15, "beams": 2}
        start(world.finetune(steps, pretrained=str(folder / "pretrain" / "artifact")), folder / "finetune")
    return folders


@pytest.fixture(scope="module")
def runs(both_runs: dict[str, Path]) -> Path:
    return both_runs["features"]


@pytest.mark.parametrize("kind", ["features", "stem"])
def test_both_stages_learn(both_runs: dict[str, Path], kind: str) -> None:
    log = read_log(both_runs[kind] / "pretrain" / "log.jsonl")
    assert log[-1]["msm"] < 0.9 * log[0]["msm"]
    assert {"align", "align_accuracy", "consistency", "consistency_accuracy", "lr/all"} <= set(log[-1])
    assert [line["step"] for line in log if "validation/msm" in line] == [20, 40]
    log = read_log(both_runs[kind] / "finetune" / "log.jsonl")
    assert log[-1]["loss_per_word"] < 0.8 * log[0]["loss_per_word"]
    assert {"lr/encoder", "lr/decoder", "word_accuracy"} <= set(log[-1])
    result = json.loads((both_runs[kind] / "finetune" / "result.json").read_text())
    assert result["metrics"]["CIDEr"] == max(line.get("validation/CIDEr", -1) for line in log)
    first, second = (
        read_artifact(both_runs[kind] / stage / "artifact").state_dict() for stage in ("pretrain", "finetune")
    )
    assert torch.equal(first["encoder.align_token"], second["encoder.align_token"]), "stage 2 starts from stage 1"
    stem = [name for name in first if name.startswith("encoder.stem.")]
    assert len(stem) == (12 if kind == "stem" else 0)
    assert all(not torch.equal(first[name], second[name]) for name in stem)


def test_validation_scores_objects_and_types_by_the_scenes_of_rendered_pairs(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"train.steps": 1, "train.keep_best.metric": ["right_object", "CIDEr"]}
    for shift, right in ((0, True), (1, False)):
        monkeypatch.setattr(
            FinetuneTask,
            "caption",
            lambda _, batch, shift=shift: [texts[0] for texts in np.roll(batch["references"], shift, axis=0)],
        )
        start(world.finetune(settings), tmp_path / str(shift))
        metrics = json.loads((tmp_path / str(shift) / "result.json").read_text())["metrics"]
        assert (metrics["right_object"], metrics["right_type"]) == (1.0, 1.0) if right else metrics["right_type"] < 0.6


@pytest.mark.parametrize("kind", ["features", "stem"])
@pytest.mark.parametrize("speed", ["exact", "fast"])
def test_the_captioner_says_what_validation_says(
    both_runs: dict[str, Path], world: World, kind: str, speed: Speed
) -> None:
    captioner = PairCaptioner(both_runs[kind] / "finetune" / "artifact", speed=speed)
    batches = []
    for path in (world.procedures, world.pixels):
        info = frames_for(captioner.captioner.encoder.config, ProcedureInfo.of(path))
        data = FinetuneDataset(path, info, "val", captions="first", max_length=20, seed=0)
        batches.append(collate([data.get(index, 0) for index in range(len(data))]))
    ends = frame_features(batches[0]["ends"], lambda images: images)
    ids = captioner.captioner.search(ends, beams=2, length_penalty=1.0).ids.tolist()
    assert captioner(*batches[1]["ends"].numpy().swapaxes(0, 1)) == [captioner.vocabulary.decode(row) for row in ids]


def test_an_encoder_with_a_stem_reads_no_stored_features(world: World) -> None:
    job, batches = world.pretrain(encoder=STEM), []
    for path in (world.procedures, world.pixels):
        data = PretrainDataset(path, frames_for(job.encoder, ProcedureInfo.of(path)), "train", job)
        batches.append(collate([data.get(index, 0) for index in range(6)]))
    assert batches[0]["frames"].dtype == torch.uint8
    assert all(torch.equal(value, batches[1][name]) for name, value in batches[0].items())


def test_a_stem_that_does_not_fit_is_refused(world: World, tmp_path: Path) -> None:
    for stem, settings, message in (
        ([8, 16], {}, r"encoder.stem: 2 levels make patches of 4 pixels, .* tokenizer have 8; the number of widths"),
        ([8, 12, 16], {}, r"stem: 12 is not a multiple of 8"),
        ([8, 16, 16], {"procedure": "frames"}, r"procedure: frames are features of the tokenizer; take an encoder"),
    ):
        with pytest.raises(ValueError, match=message):
            start(world.finetune(encoder={**ENCODER, "stem": stem}, **settings), tmp_path / "stage2")


def test_an_artifact_of_stage_1_is_no_captioner_and_its_card_says_so(runs: Path) -> None:
    with pytest.raises(ValueError, match=r"artifact of ProCap's stage 1, which cannot caption; run finetune_procap.py"):
        load_system("procap").load_captioner(runs / "pretrain" / "artifact")
    card = (runs / "pretrain" / "artifact" / "README.md").read_text()
    assert "jobs/finetune_procap.py pretrained=<this folder>" in card
    assert "jobs/caption.py" not in card


def test_a_pretrained_encoder_that_does_not_fit_is_refused(runs: Path, world: World, tmp_path: Path) -> None:
    """Features of another tokenizer would mean something else, with no error from any shape."""
    tokenizer = ImageTokenizer.load(world.tokenizer)
    with torch.no_grad():
        tokenizer.codebook.add_(1.0)
    tokenizer.save(tmp_path / "tokenizer")
    common = {"pairs": world.pairs, "tokenizer": world.tokenizer, "depth": 2, "store_features": True}
    stage_1 = str(runs / "pretrain" / "artifact")
    for name, settings, message in (
        ("words", {"min_word_count": 5}, "was trained with another vocabulary than that of the procedures"),
        ("few", {"num_keyframes": 1}, r"trained on Shapes\(num_keyframes=2.*procedures have.*num_keyframes=1"),
        ("codes", {"tokenizer": str(tmp_path / "tokenizer")}, "was trained with another tokenizer"),
    ):
        procedures = build_procedures(tmp_path / name, {**common, **settings})
        with pytest.raises(ValueError, match=f"pretrained: .*{message}"):
            start(world.finetune(pretrained=stage_1, procedures=procedures), tmp_path / "run")
    with pytest.raises(ValueError, match=r"pretrained: .* is an artifact of stage 2; give the artifact of pretrain"):
        start(world.finetune(pretrained=str(runs / "finetune" / "artifact")), tmp_path / "run")
    assert not (tmp_path / "run" / "result.json").exists()
    ImageTokenizer.load(world.tokenizer).save(tmp_path / "tokenizer")  # it was trained anew in its place
    with pytest.raises(ValueError, match="another tokenizer than the one the procedures were built with"):
        start(world.pretrain(procedures=str(tmp_path / "codes")), tmp_path / "pretrain")
