"""ProCap's two stages as runs: a tiny pretrain and finetune, their artifacts, and the captioner made of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from idc.data.text import PAD
from idc.systems import load_system
from idc.systems.procap.captioner import CaptioningModel, PairCaptioner
from idc.systems.procap.config import DecoderConfig, EncoderConfig
from idc.systems.procap.data import FinetuneDataset, ProcedureInfo, collate
from idc.systems.procap.task import FinetuneTask, frame_features
from idc.training.artifact import read_artifact
from idc.training.loop import read_log
from idc.vision.tokenizer.model import ImageTokenizer
from tests.systems.procap.world import DECODER, ENCODER, World, build_procedures, start


@pytest.fixture(scope="module")
def runs(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``pretrain`` of 40 steps, and ``finetune`` from it of 30."""
    folder = tmp_path_factory.mktemp("runs")
    steps = {"train.steps": 40, "train.log_every": 5, "train.eval_every": 20}
    start(world.pretrain({**steps, "optim.lr": 3e-3}), folder / "pretrain")
    steps = {"train.steps": 30, "train.log_every": 5, "train.eval_every": 15}
    start(world.finetune(steps, pretrained=str(folder / "pretrain" / "artifact")), folder / "finetune")
    return folder


def test_both_stages_learn(runs: Path) -> None:
    log = read_log(runs / "pretrain" / "log.jsonl")
    assert log[-1]["msm"] < 0.9 * log[0]["msm"]
    assert {"align", "align_accuracy", "consistency", "consistency_accuracy", "lr/all"} <= set(log[-1])
    assert [line["step"] for line in log if "validation/msm" in line] == [20, 40]
    log = read_log(runs / "finetune" / "log.jsonl")
    assert log[-1]["loss_per_word"] < 0.8 * log[0]["loss_per_word"]
    assert {"lr/encoder", "lr/decoder", "word_accuracy"} <= set(log[-1])
    assert [line["step"] for line in log if "validation/CIDEr" in line] == [15, 30]
    result = json.loads((runs / "finetune" / "result.json").read_text())
    assert result["metrics"]["CIDEr"] == max(line.get("validation/CIDEr", -1) for line in log)


def test_validation_scores_objects_and_types_by_the_scenes_of_rendered_pairs(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Captions that are references of their pairs name every object and type; those of the pairs before do not."""
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


def test_stage_2_learns_all_captions_of_a_pair_in_a_step(world: World, tmp_path: Path) -> None:
    start(world.finetune({"captions": "all", "train.steps": 30}), tmp_path / "run")
    log = read_log(tmp_path / "run" / "log.jsonl")
    assert log[-1]["loss_per_word"] < 0.8 * log[0]["loss_per_word"]


def test_stage_2_starts_from_the_encoder_of_stage_1(runs: Path, world: World, tmp_path: Path) -> None:
    """With learning rates of 0 the encoder in the artifact of stage 2 is that of stage 1."""
    rates = {"encoder_optim.lr": 0.0, "decoder_optim.lr": 0.0, "train.steps": 1}
    start(world.finetune(rates, pretrained=str(runs / "pretrain" / "artifact")), tmp_path / "run")
    first = read_artifact(runs / "pretrain" / "artifact", system="procap").state_dict()
    second = read_artifact(tmp_path / "run" / "artifact", system="procap").state_dict()
    names = [name for name in first if name.startswith("encoder.")]
    assert len(names) > 20
    assert all(torch.equal(first[name], second[name]) for name in names)
    trained = read_artifact(runs / "finetune" / "artifact", system="procap").state_dict()
    moved = {name for name in names if not torch.equal(first[name], trained[name])}
    assert "encoder.mask_embedding" in moved
    assert "encoder.blocks.0.attention.qkv.weight" in moved
    assert "encoder.align_token" not in moved  # only stage 1 reads it


def test_the_artifact_captions_pairs_of_any_size(runs: Path) -> None:
    captioner = load_system("procap").load_captioner(runs / "finetune" / "artifact")
    random = np.random.default_rng(0)
    sizes = [(32, 32), (48, 64), (17, 200), (1, 1)]
    befores, afters = (
        [random.integers(0, 255, (*size, 3), dtype=np.uint8) for size in order] for order in (sizes, sizes[::-1])
    )
    captions = captioner(befores, afters)
    assert len(captions) == 4
    assert all(isinstance(caption, str) for caption in captions)
    words = set(" ".join(captions).replace(";", " ;").replace(",", " ,").split())
    assert words <= set(captioner.vocabulary.words)
    assert captions[1:2] == captioner(befores[1:2], afters[1:2])  # alone or in a batch
    assert captioner([], []) == []
    with pytest.raises(ValueError, match="1 before and 0 after images: give as many"):
        captioner(befores[:1], [])


def test_the_captioner_says_what_validation_says(runs: Path, world: World) -> None:
    """Pixels through the artifact's own tokenizer, or stored features: the same captions."""
    captioner = PairCaptioner(runs / "finetune" / "artifact")
    info = ProcedureInfo.of(world.pixels)
    options: dict[str, Any] = {"captions": "first", "max_length": 20, "seed": 0}
    stored = FinetuneDataset(world.procedures, ProcedureInfo.of(world.procedures), "val", **options)
    pixels = FinetuneDataset(world.pixels, info, "val", **options)
    for index in range(len(stored)):
        ends = pixels.get(index, 0)["ends"]
        found = captioner.captioner.search(
            torch.from_numpy(stored.get(index, 0)["ends"])[None].float(), beams=1, length_penalty=1.0
        )
        assert captioner([ends[0]], [ends[1]]) == [captioner.vocabulary.decode(found.ids[0].tolist())]


def test_the_artifact_records_what_it_was_trained_on(runs: Path, world: World, tmp_path: Path) -> None:
    derived = read_artifact(runs / "finetune" / "artifact")
    assert derived.trained_on == "rendered scenes at 32x32 pixels (14 training pairs)"
    card = (derived.path / "README.md").read_text()
    assert "Trained on rendered scenes at 32x32 pixels (14 training pairs)." in card
    start(world.finetune({"train.steps": 1, "trained_on": "toy blocks"}), tmp_path / "run")
    captioner = PairCaptioner(tmp_path / "run" / "artifact")
    assert captioner.trained_on == "toy blocks"
    head = json.loads((tmp_path / "run" / "artifact" / "config.json").read_text())
    assert head.pop("trained_on") == "toy blocks"
    (tmp_path / "run" / "artifact" / "config.json").write_text(json.dumps(head))
    assert PairCaptioner(tmp_path / "run" / "artifact").trained_on is None  # an artifact of an earlier version


def test_a_stage_1_artifact_is_no_captioner(runs: Path) -> None:
    with pytest.raises(ValueError, match=r"artifact of ProCap's stage 1, which cannot caption; run finetune_procap.py"):
        load_system("procap").load_captioner(runs / "pretrain" / "artifact")


def test_the_card_of_a_stage_1_artifact_leads_to_stage_2_and_not_to_captions(runs: Path) -> None:
    first = (runs / "pretrain" / "artifact" / "README.md").read_text()
    assert "jobs/finetune_procap.py pretrained=<this folder>" in first
    assert "jobs/caption.py" not in first
    assert "Describes in words" not in first
    second = (runs / "finetune" / "artifact" / "README.md").read_text()
    assert "jobs/caption.py --artifact <this folder>" in second


def test_a_stage_2_artifact_is_no_pretrained_encoder(runs: Path, world: World, tmp_path: Path) -> None:
    job = world.finetune(pretrained=str(runs / "finetune" / "artifact"))
    with pytest.raises(ValueError, match=r"pretrained: .* is an artifact of stage 2; give the artifact of pretrain"):
        start(job, tmp_path / "run")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"vocabulary": True}, "pretrained: .* was trained with another vocabulary than that of the procedures"),
        ({"num_keyframes": 1}, r"pretrained: .* trained on Shapes\(num_keyframes=2.*procedures have.*num_keyframes=1"),
    ],
    ids=["vocabulary", "keyframes"],
)
def test_a_pretrained_encoder_of_other_procedures_is_refused(
    runs: Path, world: World, tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    other = {"pairs": world.pairs, "tokenizer": world.tokenizer, "depth": 2, "store_features": True}
    if settings.pop("vocabulary", False):
        other["min_word_count"] = 5
    procedures = build_procedures(tmp_path / "procedures", {**other, **settings})
    job = world.finetune(pretrained=str(runs / "pretrain" / "artifact"), procedures=procedures)
    with pytest.raises(ValueError, match=message):
        start(job, tmp_path / "run")
    assert not (tmp_path / "run" / "result.json").exists()


def test_an_artifact_without_its_tokenizer_says_so(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "finetune" / "artifact", tmp_path / "artifact")
    shutil.rmtree(tmp_path / "artifact" / "tokenizer")
    with pytest.raises(ValueError, match=r"is incomplete, tokenizer/config.json"):
        PairCaptioner(tmp_path / "artifact")


def test_another_tokenizer_than_that_of_the_procedures_is_refused(runs: Path, world: World, tmp_path: Path) -> None:
    """Its features would mean something else, with no error from any shape."""
    tokenizer = ImageTokenizer.load(world.tokenizer)
    with torch.no_grad():
        tokenizer.codebook.add_(1.0)
    tokenizer.save(tmp_path / "tokenizer")
    settings = {"pairs": world.pairs, "depth": 2, "tokenizer": str(tmp_path / "tokenizer"), "store_features": True}
    procedures = build_procedures(tmp_path / "procedures", settings)
    job = world.finetune(pretrained=str(runs / "pretrain" / "artifact"), procedures=procedures)
    with pytest.raises(ValueError, match=r"pretrained: .* was trained with another tokenizer"):
        start(job, tmp_path / "finetune")
    ImageTokenizer.load(world.tokenizer).save(tmp_path / "tokenizer")  # it was trained anew in its place
    with pytest.raises(ValueError, match="another tokenizer than the one the procedures were built with"):
        start(world.pretrain(procedures=procedures), tmp_path / "pretrain")


def test_a_tiny_captioner_overfits_eight_pairs(world: World) -> None:
    """On eight pairs with one caption each it reaches a word accuracy above 0.9, and greedy search says them again."""
    torch.manual_seed(0)
    info = ProcedureInfo.of(world.procedures)
    data = FinetuneDataset(world.procedures, info, "train", captions="first", max_length=20, seed=0)
    batch = collate([data.get(index, 0) for index in range(8)])
    job = world.finetune(captions="first")
    task = FinetuneTask(job, EncoderConfig.model_validate(ENCODER), info.shapes, info.vocabulary, lambda images: images)
    optimizer = torch.optim.AdamW([p for p in task.parameters() if p.requires_grad], lr=4e-3)
    accuracy = 0.0
    for _ in range(400):
        loss, logs = task.training_step(batch)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(task.parameters(), 1.0)
        optimizer.step()
        accuracy = float(logs["word_accuracy"])
        if accuracy > 0.99:
            break
    assert accuracy > 0.9
    said = task.eval().caption(batch)
    first = [references[0] for references in batch["references"]]
    assert np.mean([a == b for a, b in zip(said, first, strict=True)]) >= 0.75


def test_shapes_of_the_captioner(world: World) -> None:
    info = ProcedureInfo.of(world.procedures)
    captioner = CaptioningModel(
        EncoderConfig.model_validate(ENCODER), DecoderConfig.model_validate(DECODER), info.shapes
    )
    ends = torch.randn(2, 2, 16, 16)
    ids = torch.full((2, 7), PAD)
    assert captioner.procedure(ends).shape == (2, 4 * 16, 32)
    assert captioner(ends, ids).shape == (2, 7, info.shapes.vocabulary_size)
    found = captioner.eval().search(ends, beams=2, length_penalty=1.0)
    assert found.ids.shape == (2, 19)  # of at most 20 with the begin token


def test_features_of_pixels_are_the_tokenizers(world: World) -> None:
    tokenizer = ImageTokenizer.load(world.tokenizer)
    pixels = np.random.default_rng(0).integers(0, 255, (2, 3, 32, 32, 3), dtype=np.uint8)
    made = frame_features(torch.from_numpy(pixels), tokenizer.features)
    assert made.shape == (2, 3, 16, 16)
    images = torch.from_numpy(pixels[1]).permute(0, 3, 1, 2) / 255
    with torch.no_grad():
        torch.testing.assert_close(made[1], tokenizer.features(images), rtol=1e-4, atol=1e-4)
