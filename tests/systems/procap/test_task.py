"""ProCap's two stages as runs: a tiny pretrain and finetune, their artifacts, and the captioner made of them; the
variants of the paper's tables 4, 10, 11 and 14 and figure 7; the start from CLIP and its BPE."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import CLIPTokenizer, CLIPVisionConfig, CLIPVisionModel

from idc.captioning.contract import SearchOptions, Speed
from idc.data.images import decode_image
from idc.data.store import iter_rows
from idc.data.text import PAD
from idc.systems import load_system
from idc.systems.procap.captioner import PairCaptioner
from idc.systems.procap.config import SCHEMES, MaskingConfig
from idc.systems.procap.data import FinetuneDataset, PretrainDataset, ProcedureInfo, collate
from idc.systems.procap.model import ClipWords, EncoderBlock, clip_blocks
from idc.systems.procap.task import PretrainTask, frame_features, frames_for, part_of
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
    measured = {f"validation/{name}" for name in ("CIDEr", "right_type", "right_object")}
    assert {"lr/encoder", "lr/decoder", "word_accuracy"} | measured <= set(log[-1])
    result = json.loads((both_runs[kind] / "finetune" / "result.json").read_text())
    assert result["metrics"]["CIDEr"] == max(line.get("validation/CIDEr", -1) for line in log)
    first, second = (
        read_artifact(both_runs[kind] / stage / "artifact").state_dict() for stage in ("pretrain", "finetune")
    )
    assert torch.equal(first["encoder.align_token"], second["encoder.align_token"]), "stage 2 starts from stage 1"
    stem = [name for name in first if name.startswith("encoder.stem.")]
    assert len(stem) == (12 if kind == "stem" else 0)
    assert all(not torch.equal(first[name], second[name]) for name in stem)


@pytest.mark.parametrize("kind", ["features", "stem"])
@pytest.mark.parametrize("speed", ["exact", "fast"])
def test_the_captioner_says_what_validation_says(
    both_runs: dict[str, Path], world: World, kind: str, speed: Speed
) -> None:
    captioner = PairCaptioner(both_runs[kind] / "finetune" / "artifact", speed=speed)
    batches = []
    for path in (world.procedures, world.pixels):
        info = frames_for(captioner.net.encoder.config, ProcedureInfo.of(path))
        data = FinetuneDataset(path, info, "val", captions="first", max_length=20, seed=0)
        batches.append(collate([data.get(index, 0) for index in range(len(data))]))
    ends = frame_features(batches[0]["ends"], lambda images: images)
    ids = captioner.net.search(ends, beams=2, length_penalty=1.0).ids.tolist()
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


PATCHES = 16
"""n_I of the world."""


def test_the_explicit_captioner_makes_the_frames_itself(world: World, tmp_path: Path) -> None:
    settings = {"train.steps": 2, "validation_pairs": 2, "procedure": "frames"}
    start(world.finetune(settings), tmp_path)
    captioner = PairCaptioner(tmp_path / "artifact")
    row = next(row for row in iter_rows(world.procedures, split="val") if row["change_type"] != "none")
    pairs = {pair["pair_id"]: pair for pair in iter_rows(world.pairs, split="val")}
    before, after = (decode_image(pairs[row["pair_id"]][side]) for side in ("before", "after"))
    assert captioner.explicit is not None
    frames = captioner.explicit([before, after], [after, before])
    assert frames.shape == (2, 4, PATCHES, 16)
    stored = torch.from_numpy(np.frombuffer(row["features"], np.float16).reshape(5, PATCHES, 16).copy()).float()
    numbers = [[n for n in range(5) if torch.allclose(frame, stored[n], rtol=5e-3, atol=5e-3)] for frame in frames[0]]
    assert all(numbers), "each is a frame of the stored procedure"
    assert (numbers[0][0], numbers[-1][-1]) == (0, 4)
    alone = captioner.explicit([before], [after])
    torch.testing.assert_close(alone, frames[:1], rtol=1e-4, atol=1e-4, msg="the same draw in any company")
    described = captioner.describe([before, after], [after, before], SearchOptions(change_map=True))
    assert captioner([before], [after]) == [described[0].best.caption]
    assert described[0].change_map is not None


@pytest.mark.parametrize(("on", "caption"), [
    ({"msm"}, True), ({"align"}, True), ({"consistency"}, True), ({"msm", "align", "consistency"}, True),
    ({"msm", "consistency"}, False),
])  # fmt: skip
def test_a_loss_that_is_off_costs_nothing(world: World, on: set[str], caption: bool) -> None:
    weights = {f"loss.{name}": float(name in on) for name in ("msm", "align", "consistency")}
    job, info = world.pretrain(weights, caption_condition=caption), ProcedureInfo.of(world.procedures)
    task = PretrainTask(job, info.shapes, PAD, ImageTokenizer.load(info.tokenizer).features)
    data = PretrainDataset(job.procedures, info, "train", job)
    seen: list[tuple[int, int]] = []
    task.encoder.blocks[0].register_forward_pre_hook(lambda _, inputs: seen.append(tuple(inputs[0].shape[:2])))
    loss, logs = task.training_step(collate([data.get(index, 0) for index in range(4)]))
    loss.backward()
    assert on == {name for name in logs if "accuracy" not in name}
    assert seen == [(4 * (1 + len(on - {"msm"})), 1 + 12 * caption + 1 + 4 * PATCHES)]
    assert ("other_text" in data.get(0, 0), "warped" in data.get(0, 0)) == ("align" in on, "consistency" in on)
    assert all((parameter.grad is not None) == parameter.requires_grad for parameter in task.parameters())
    heads = {name.split(".")[0] for name, parameter in task.heads.named_parameters() if parameter.requires_grad}
    assert heads == on


def test_a_scheme_is_removed_or_varied_by_one_key() -> None:
    """Table 11: the others in proportion. Figure 7: one at p, the others at (1 - p) / 3."""
    probabilities = {"random": 0.7, "entire": 0.1, "in_block": 0.1, "out_of_block": 0.1}
    for removed in SCHEMES:
        shares = dict(zip(SCHEMES, MaskingConfig(varied=removed).probabilities(), strict=True))
        expected = {scheme: share / (1 - probabilities[removed]) for scheme, share in probabilities.items()} | {
            removed: 0.0
        }
        assert shares == pytest.approx(expected)
    assert MaskingConfig(varied="in_block", varied_to=0.4).probabilities() == pytest.approx((0.2, 0.2, 0.4, 0.2))
    only: dict[str, Any] = {"random": 1.0, "entire": 0.0, "in_block": 0.0, "out_of_block": 0.0, "varied": "random"}
    for fault, settings in {
        "varied_to: 0.3 needs the scheme that it is for; set varied too": {"varied_to": 0.3},
        "varied: without random no scheme is left, as the others have probability 0": only,
    }.items():
        with pytest.raises(ValueError, match=fault):
            MaskingConfig.model_validate(settings)


LETTERS = "abcdefghijklmnopqrstuvwxyz!,0123456789"
MARKS = ["<|startoftext|>", "<|endoftext|>"]
SYMBOLS = ["!", *sorted(set(LETTERS) - {"!"}), *(f"{letter}</w>" for letter in LETTERS), "re", "red</w>", "ch", *MARKS]
SIZE = len(SYMBOLS)


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("clip")
    torch.manual_seed(0)
    config = CLIPVisionConfig(
        hidden_size=32, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4, image_size=32, patch_size=16
    )
    model = CLIPVisionModel(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    vocabulary = {symbol: index for index, symbol in enumerate(SYMBOLS)}
    CLIPTokenizer(vocab=vocabulary, merges=[("r", "e"), ("re", "d</w>"), ("c", "h")]).save_pretrained(folder)
    return str(folder)


@torch.no_grad()
def test_the_encoders_blocks_become_clips_and_of_another_size_are_refused(clip: str) -> None:
    blocks = nn.ModuleList(EncoderBlock(32, 4) for _ in range(2))
    blocks.load_state_dict(part_of(clip_blocks(clip, layers=2, width=32, heads=4), "blocks."))
    vision = CLIPVisionModel.from_pretrained(clip).eval()
    x = torch.randn(2, 9, 32)
    seen: list[torch.Tensor] = []
    inner = next(module for name, module in vision.named_modules() if name.endswith("encoder"))
    inner.layers[1].register_forward_hook(lambda _, __, out: seen.append(out[0] if isinstance(out, tuple) else out))
    inner(inputs_embeds=x)
    ours = x
    for block in blocks:
        ours = block(ours, None)
    torch.testing.assert_close(ours, seen[0], atol=1e-5, rtol=1e-4)
    with pytest.raises(ValueError, match=r"clip: .* has 3 blocks .* the encoder has 4 blocks"):
        clip_blocks(clip, layers=4, width=32, heads=4)


def test_stage_1_starts_from_clip_and_reads_bpe_without_marks(clip: str, world: World, tmp_path: Path) -> None:
    symbols = ["red</w>", "c", "u", "b", "e</w>", "!</w>"]
    words = ClipWords(clip, SIZE)
    assert words.encode("Red  CUBE!")[1:-1] == CLIPTokenizer.from_pretrained(clip).convert_tokens_to_ids(symbols)
    with pytest.raises(ValueError, match=r"encoder.text_vocabulary: 49408, but the tokenizer of"):
        ClipWords(clip, 49_408)
    settings = {"encoder.text_vocabulary": SIZE, "optim.lr": 0.0, "optim.warmup_lr": 0.0, "train.steps": 1}
    job = world.pretrain(settings, clip=clip, clip_tokenizer=clip)
    start(job, tmp_path / "pretrain")
    artifact = read_artifact(tmp_path / "pretrain" / "artifact", system="procap")
    state = artifact.state_dict()
    for name, tensor in clip_blocks(clip, 2, 32, 4).items():
        assert torch.equal(state[f"encoder.{name}"], tensor)
    assert state["encoder.text_embedding.weight"].shape == (SIZE + ENCODER["text_length"], 32)

    data = PretrainDataset(world.procedures, ProcedureInfo.of(world.procedures), "train", job, words)
    possible = [words.encode(text)[1:-1][: ENCODER["text_length"]] for text in data.rows[0]["captions"]]
    assert [int(index) for index in data.get(0, 0)["text"] if index != 0] in possible
    start(world.finetune({"train.steps": 1}, pretrained=str(artifact.path)), tmp_path / "finetune")
