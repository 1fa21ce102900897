"""The start from CLIP and its BPE: a tiny CLIP of transformers, saved in a folder."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import CLIPTokenizer, CLIPVisionConfig, CLIPVisionModel

from idc.systems.procap.data import PretrainDataset, ProcedureInfo
from idc.systems.procap.model import ClipWords, EncoderBlock, clip_blocks
from idc.systems.procap.task import part_of
from idc.training.artifact import read_artifact
from tests.systems.procap.world import ENCODER, World, start

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
