"""ProCap's procedure encoder, against what the paper and the official code do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from idc.data.text import PAD
from idc.systems.procap.captioner import CaptioningModel
from idc.systems.procap.config import DecoderConfig, EncoderConfig
from idc.systems.procap.model import PretrainHeads, ProcedureEncoder, Shapes

SHAPES = Shapes(num_keyframes=2, grid=(2, 3), feature_dim=8, codebook_size=11, vocabulary_size=20)
PAPER = Shapes(num_keyframes=2, grid=(14, 14), feature_dim=256, codebook_size=1024, vocabulary_size=80)
SMALL = {"width": 16, "layers": 2, "heads": 2, "text_length": 5, "init": "normal"}
OFFICIAL = {"separator": True, "consistency_sees_text": False, "queries_only": False}
DECODER = {"width": 16, "layers": 1, "heads": 2, "feedforward": 32, "dropout": 0.0, "max_length": 8}


def make_encoder(**settings: Any) -> ProcedureEncoder:
    """An encoder with random weights far from their small initial values, so that every input matters."""
    torch.manual_seed(0)
    encoder = ProcedureEncoder(EncoderConfig(**{**SMALL, **settings}), SHAPES)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return encoder.eval()


def features(batch: int = 2, frames: int = 4, seed: int = 1) -> Tensor:
    return torch.randn(batch, frames, 6, 8, generator=torch.Generator().manual_seed(seed))


def text(*rows: list[int]) -> Tensor:
    return torch.tensor([row + [PAD] * (5 - len(row)) for row in rows])


TEXT = text([5, 6, 7], [8, 9])
OTHER_TEXT = text([10, 6, 7], [8, 11])


def modeling(encoder: ProcedureEncoder, frames: Tensor, masked: Tensor, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return encoder("modeling", frames, masked, ids, PAD)


def differs(a: Tensor, b: Tensor) -> bool:
    return float((a - b).abs().max()) > 1e-3


def same(a: Tensor, b: Tensor) -> bool:
    return float((a - b).abs().max()) < 1e-5


# -- stage 1 ------------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_with_entire_masking_the_encoder_sees_the_caption_and_no_frame() -> None:
    encoder, everything = make_encoder(), torch.ones(2, 4, 6, dtype=torch.bool)
    out = modeling(encoder, features(), everything, TEXT)
    assert [part.shape for part in out] == [(2, 16), (2, 16), (2, 24, 16)]
    for one, other in zip(out, modeling(encoder, features(seed=2), everything, TEXT), strict=True):
        assert same(one, other)
    for one, other in zip(out, modeling(encoder, features(), everything, OTHER_TEXT), strict=True):
        assert differs(one, other)
    assert differs(out[2][:, 0], out[2][:, 1])  # masked patches keep their positions


@torch.no_grad()
def test_a_masked_patch_is_hidden_and_the_others_are_not() -> None:
    encoder = make_encoder()
    masked = torch.zeros(2, 4, 6, dtype=torch.bool)
    masked[:, 2, 4] = True
    changed = features()
    changed[:, 2, 4] += 1 + torch.randn(8)
    assert same(modeling(encoder, features(), masked, TEXT)[2], modeling(encoder, changed, masked, TEXT)[2])
    changed[:, 1, 0] += 1 + torch.randn(8)
    assert differs(modeling(encoder, features(), masked, TEXT)[2], modeling(encoder, changed, masked, TEXT)[2])


@torch.no_grad()
@pytest.mark.parametrize("separator", [False, True])
@pytest.mark.parametrize("sees_text", [True, False])
def test_only_the_papers_consistency_token_sees_the_caption(separator: bool, sees_text: bool) -> None:
    """In one block: through frames, which see everything, the caption reaches the official token from the second on."""
    encoder = make_encoder(layers=1, separator=separator, consistency_sees_text=sees_text)
    masked = torch.zeros(2, 4, 6, dtype=torch.bool)
    align, consistency, frames = modeling(encoder, features(), masked, TEXT)
    other_align, other_consistency, other_frames = modeling(encoder, features(), masked, OTHER_TEXT)
    assert differs(consistency, other_consistency) is sees_text
    assert same(consistency, other_consistency) is not sees_text
    assert differs(align, other_align)
    assert differs(frames, other_frames)
    assert differs(consistency, modeling(encoder, features(seed=2), masked, TEXT)[1])


def masked_entries(mask: Tensor) -> set[tuple[int, int]]:
    assert set(mask.unique().tolist()) == {0.0, float("-inf")}
    return {(int(row), int(column)) for row, column in mask.isinf().nonzero()}


def sequences(encoder: ProcedureEncoder, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, Tensor | None]]:
    """(length, attention mask) of every call of the first block from now on."""
    seen: list[tuple[int, Tensor | None]] = []
    first = encoder.blocks[0]
    run = first.forward

    def spy(x: Tensor, mask: Tensor | None) -> Tensor:
        seen.append((x.shape[1], mask))
        return run(x, mask)

    monkeypatch.setattr(first, "forward", spy)
    return seen


@torch.no_grad()
def test_the_papers_sequences_and_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = make_encoder(text_length=5)
    seen = sequences(encoder, monkeypatch)
    modeling(encoder, features(), torch.zeros(2, 4, 6, dtype=torch.bool), TEXT)
    encoder("procedure", features(frames=2))
    assert seen == [(1 + 5 + 1 + 4 * 6, None), (4 * 6, None)]


@torch.no_grad()
def test_the_official_sequences_and_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    """With n_T = 24: stage 1 hides 0..24 from the separator (25) and 0..25 from the consistency token (26). Stage 2 has
    no alignment token and the same mask, so it hits the consistency token (25) and the first patch (26)."""
    encoder = make_encoder(**OFFICIAL, text_length=24)
    seen = sequences(encoder, monkeypatch)
    ids = torch.full((2, 24), PAD)
    modeling(encoder, features(), torch.zeros(2, 4, 6, dtype=torch.bool), ids)
    out = encoder("procedure", features(frames=2))
    assert out.shape == (2, 24, 16)
    (length_1, mask_1), (length_2, mask_2) = seen
    assert (length_1, length_2) == (1 + 24 + 2 + 24, 24 + 2 + 24)
    blind = {(25, column) for column in range(25)} | {(26, column) for column in range(26)}
    assert mask_1 is not None
    assert mask_2 is not None
    assert masked_entries(mask_1) == masked_entries(mask_2) == blind


def test_at_the_papers_size_the_sequences_are_as_long_as_published() -> None:
    with torch.device("meta"):
        paper = ProcedureEncoder(EncoderConfig(layers=1, init="normal"), PAPER)
        official = ProcedureEncoder(EncoderConfig(layers=1, init="normal", **OFFICIAL), PAPER)
        ids, masked = torch.zeros(1, 24, dtype=torch.long), torch.zeros(1, 4, 196, dtype=torch.bool)
        for encoder, stage_1, stage_2 in ((paper, 810, 784), (official, 811, 810)):
            lengths: list[int] = []
            encoder.blocks[0].register_forward_pre_hook(lambda _, inputs, to=lengths: to.append(inputs[0].shape[1]))
            _, _, frames = encoder("modeling", torch.zeros(1, 4, 196, 256), masked, ids, PAD)
            assert frames.shape == (1, 784, 768)
            assert encoder("procedure", torch.zeros(1, 2, 196, 256)).shape == (1, 784, 768)
            assert lengths == [stage_1, stage_2]


# -- stage 2 ------------------------------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("settings", [{}, OFFICIAL], ids=["paper", "official"])
def test_the_procedure_depends_on_both_images_their_order_and_the_mask_embedding(settings: dict[str, Any]) -> None:
    encoder, ends = make_encoder(**settings), features(frames=2)
    out = encoder("procedure", ends)
    for end in (0, 1):
        changed = ends.clone()
        changed[:, end, 3] += 1 + torch.randn(8)
        assert differs(out, encoder("procedure", changed))
    assert differs(out, encoder("procedure", ends.flip(1)))
    encoder.mask_embedding.add_(torch.randn(16))
    assert differs(out, encoder("procedure", ends))


@torch.no_grad()
def test_the_queries_are_copies_of_the_mask_embedding() -> None:
    """Stage 2 is stage 1 with the inner frames masked, but for the control tokens: with these it agrees exactly."""
    encoder = make_encoder()
    seen: list[Tensor] = []
    encoder.blocks[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    everything = features()
    masked = torch.zeros(2, 4, 6, dtype=torch.bool)
    masked[:, 1:3] = True
    modeling(encoder, everything, masked, TEXT)
    encoder("procedure", everything[:, [0, 3]])
    control = 1 + 5 + 1
    assert torch.equal(seen[0][:, control:], seen[1])


@torch.no_grad()
def test_the_official_text_slot_holds_the_first_words_of_the_vocabulary() -> None:
    official, paper = make_encoder(**OFFICIAL), make_encoder()
    for encoder, matters in ((official, True), (paper, False)):
        before = encoder("procedure", features(frames=2))
        encoder.text_embedding.weight[:5] += 1.0 + torch.randn(5, 16)
        assert differs(before, encoder("procedure", features(frames=2))) is matters
        encoder.text_embedding.weight[5:] += 1.0
        changed = encoder("procedure", features(frames=2))
        encoder.align_token += 1.0
        assert same(changed, encoder("procedure", features(frames=2)))


# -- parts and sizes ----------------------------------------------------------------------------------------------


@torch.no_grad()
def test_attention_is_pytorchs_with_packed_projections() -> None:
    encoder = make_encoder()
    ours = encoder.blocks[0].attention
    theirs = torch.nn.MultiheadAttention(16, 2, batch_first=True).eval()
    theirs.in_proj_weight.copy_(ours.qkv.weight)
    theirs.in_proj_bias.copy_(ours.qkv.bias)
    theirs.out_proj.weight.copy_(ours.out.weight)
    theirs.out_proj.bias.copy_(ours.out.bias)
    x = torch.randn(2, 9, 16)
    mask = torch.zeros(9, 9)
    mask[3, :3] = float("-inf")
    for given in (None, mask):
        expected = theirs(x, x, x, attn_mask=given, need_weights=False)[0]
        torch.testing.assert_close(ours(x, given), expected, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_a_block_is_clips() -> None:
    encoder = make_encoder()
    block, x = encoder.blocks[0], torch.randn(2, 5, 16)
    middle = x + block.attention(block.norm_attention(x), None)
    hidden = F.linear(block.norm_mlp(middle), block.widen.weight, block.widen.bias)
    expected = middle + F.linear(hidden * torch.sigmoid(1.702 * hidden), block.narrow.weight, block.narrow.bias)
    torch.testing.assert_close(block(x, None), expected, rtol=1e-5, atol=1e-5)


def count(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_the_paper_size_has_the_official_number_of_weights() -> None:
    """12 CLIP ViT-B/32 blocks (85,054,464 weights, as published), LayerNorm and Linear from 256 to 768, axial positions
    4 + 14 + 14, a mask embedding; two decoder layers of 512 and 2048, a projection 768 -> 768 -> 512, 80 words."""
    block = (2304 * 768 + 2304) + (768 * 768 + 768) + 2 * (2 * 768) + (3072 * 768 + 3072) + (768 * 3072 + 768)
    assert 12 * block == 85_054_464
    with torch.device("meta"):
        paper = CaptioningModel(EncoderConfig(init="normal"), DecoderConfig(), PAPER)
        official = CaptioningModel(
            EncoderConfig(init="normal", **OFFICIAL), DecoderConfig(scale_by_width=True, official_norm=True), PAPER
        )
        heads = PretrainHeads(768, 1024)
    for captioner in (paper, official):
        encoder, decoder = captioner.encoder, captioner.decoder
        assert count(encoder.blocks) == 85_054_464
        assert count(encoder.feature_norm) + count(encoder.feature_in) == 512 + 256 * 768 + 768
        positions = (encoder.frame_positions, encoder.row_positions, encoder.column_positions)
        assert [tuple(p.shape) for p in positions] == [(4, 1, 1, 768), (1, 14, 1, 768), (1, 1, 14, 768)]
        layer = 8 * 512 * 512 + 3 * 2 * 512 + (512 * 2048 + 2048) + (2048 * 512 + 512)
        assert count(decoder.layers) == 2 * layer
        assert count(decoder.project) == (768 * 768 + 768) + (768 * 512 + 512) + 2 * 512
        assert decoder.words.shape == (80, 512)
        assert count(decoder) == 2 * layer + 985_344 + 80 * 512 + 80
        assert encoder.text_positions.shape == (24, 768)
        assert encoder.text_embedding.weight.shape == (80 + 24, 768)  # words of the captions, and 24 paddings
    assert count(official.encoder) - count(paper.encoder) == 768  # the separator
    assert count(heads) == 3 * 1536 + (1024 * 768 + 1024) + 2 * (768 + 1)
