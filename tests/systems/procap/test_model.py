"""ProCap's two networks and their losses, against what the paper and the official code do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from idc.data.text import BOS, EOS, PAD, Vocabulary
from idc.systems.procap.captioner import CaptioningModel
from idc.systems.procap.config import DecoderConfig, EncoderConfig, FinetuneJob, LossConfig, PretrainJob
from idc.systems.procap.model import PretrainHeads, ProcedureEncoder, Shapes, TextDecoder
from idc.systems.procap.task import FinetuneTask, PretrainTask

SHAPES = Shapes(num_keyframes=2, grid=(2, 3), feature_dim=8, codebook_size=11, vocabulary_size=20)
PAPER = Shapes(num_keyframes=2, grid=(14, 14), feature_dim=256, codebook_size=1024, vocabulary_size=80)
SMALL = {"width": 16, "layers": 2, "heads": 2, "text_length": 5, "init": "normal"}
OFFICIAL = {"separator": True, "consistency_sees_text": False, "queries_only": False}
DECODER = {"width": 16, "layers": 1, "heads": 2, "feedforward": 32, "dropout": 0.0, "max_length": 8}


def make_encoder(**settings: Any) -> ProcedureEncoder:
    """Of random weights far from their small initial values, so that every input would matter."""
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


# -- losses -------------------------------------------------------------------------------------------------------


class Fake(torch.nn.Module):
    """Stands in for the encoder: hands out given hidden states, of the patches that are read, and keeps what it was
    asked."""

    def __init__(self, align: Tensor, consistency: Tensor, frames: Tensor):
        super().__init__()
        self.out = align, consistency, frames
        self.asked: tuple[Any, ...] = ()

    def forward(self, stage: str, *inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        assert stage == "modeling"
        self.asked = inputs
        align, consistency, frames = self.out
        read = inputs[4].flatten(1)
        return align, consistency, frames[: len(read)][read]


def pretrain_task(loss: LossConfig | None = None, **settings: Any) -> PretrainTask:
    torch.manual_seed(0)
    job = PretrainJob(procedures=".", encoder=EncoderConfig(**SMALL), loss=loss or LossConfig(), **settings)
    return PretrainTask(job, SHAPES, PAD, lambda images: images)


def batch_of(count: int = 2) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(3)
    masked = torch.rand(count, 4, 6, generator=random) < 0.5
    masked[0] = True
    entire = torch.zeros(count, dtype=torch.bool)
    entire[0] = True
    return {
        "frames": features(count),
        "tokens": torch.randint(0, 11, (count, 4, 6), generator=random),
        "masked": masked,
        "entire": entire,
        "text": TEXT.repeat(count // 2, 1),
        "other_text": OTHER_TEXT.repeat(count // 2, 1),
        "warped": features(count, seed=9),
        "redone_at": torch.zeros(0, 2, dtype=torch.long),
        "redone": torch.zeros(0, 8, 8, 3, dtype=torch.uint8),
    }


def faked(loss: LossConfig) -> tuple[PretrainTask, Fake, dict[str, Tensor], Tensor, Tensor, Tensor]:
    """A task on given hidden states of 2 samples, 2 with wrong captions, 2 with warped frames."""
    task = pretrain_task(loss)
    random = torch.Generator().manual_seed(5)
    align, consistency = (torch.randn(6, 16, generator=random) for _ in range(2))
    frames = torch.randn(6, 24, 16, generator=random)
    encoder = Fake(align, consistency, frames)
    task.encoder = encoder  # type: ignore[assignment]
    return task, encoder, batch_of(), align, consistency, frames


@torch.no_grad()
def test_masked_sequence_modeling_is_the_cross_entropy_of_masked_patches() -> None:
    """Eq. 6, written out: the mean over a sample's masked patches, then over the samples."""
    task, _, batch, _, _, frames = faked(LossConfig(align=0.0, consistency=0.0, msm=2.0))
    loss, logs = task.training_step(batch)
    probability = task.heads.msm(frames[:2]).softmax(-1)
    samples = []
    for b in range(2):
        values = [
            -probability[b, 6 * f + p, batch["tokens"][b, f, p]].log()
            for f in range(4)
            for p in range(6)
            if batch["masked"][b, f, p]
        ]
        samples.append(sum(values) / len(values))
    assert float(logs["msm"]) == pytest.approx(float(sum(samples)) / 2, rel=1e-5)
    assert float(loss) == pytest.approx(float(sum(samples)), rel=1e-5)
    assert "align" not in logs
    assert "consistency" not in logs


@torch.no_grad()
@pytest.mark.parametrize("skips", [False, True])
def test_alignment_and_consistency_are_equations_7_and_8(skips: bool) -> None:
    config = LossConfig(msm=0.0, align=0.5, consistency=3.0, align_skips_entire=skips)
    task, _, batch, align, consistency, _ = faked(config)
    loss, logs = task.training_step(batch)
    aligned = task.heads.align(align)[:, 0].sigmoid()
    terms = [float(-aligned[b].log() - (1 - aligned[2 + b]).log()) for b in range(2)]
    # Sample 0 is entirely masked; the official mean is over the samples that count.
    expected = terms[1] if skips else (terms[0] + terms[1]) / 2
    assert float(logs["align"]) == pytest.approx(expected, rel=1e-5)
    order = task.heads.consistency(consistency)[:, 0].sigmoid()
    in_time = sum(float(-order[b].log() - (1 - order[4 + b]).log()) for b in range(2)) / 2
    assert float(logs["consistency"]) == pytest.approx(in_time, rel=1e-5)
    assert float(loss) == pytest.approx(0.5 * expected + 3 * in_time, rel=1e-5)
    right = (aligned[:2] > 0.5).sum() + (aligned[2:4] < 0.5).sum()
    assert float(logs["align_accuracy"]) == pytest.approx(float(right) / 4)


@torch.no_grad()
@pytest.mark.parametrize("negative", ["other_caption", "swap_halves"])
def test_what_the_encoder_is_asked_for_the_negatives(negative: str) -> None:
    task, encoder, batch, *_ = faked(LossConfig(align_negative=negative))  # type: ignore[arg-type]
    task.training_step(batch)
    frames, masked, ids, pad, read = encoder.asked
    assert pad == PAD
    assert torch.equal(read, batch["masked"])
    assert torch.equal(frames, torch.cat([batch["frames"], batch["frames"], batch["warped"]]))
    assert torch.equal(masked, batch["masked"].repeat(3, 1, 1))  # the warped frames have the sample's own mask
    wrong = OTHER_TEXT if negative == "other_caption" else TEXT.flip(0)
    assert torch.equal(ids, torch.cat([TEXT, wrong, TEXT]))


@torch.no_grad()
def test_without_a_caption_condition_there_is_no_alignment() -> None:
    task = pretrain_task(caption_condition=False)
    assert "align" not in task.training_step(batch_of())[1]


def test_the_pretraining_loss_does_not_depend_on_how_a_batch_is_cut() -> None:
    task, batch = pretrain_task(), batch_of(4)
    whole = task.training_step(batch)[0].detach()
    parts = [{key: value[i : i + 1] if len(value) else value for key, value in batch.items()} for i in range(4)]
    mean = sum(float(task.training_step(part)[0].detach()) for part in parts) / 4
    assert float(whole) == pytest.approx(mean, rel=1e-5)


def test_every_part_of_stage_1_learns_but_unused_words() -> None:
    task = pretrain_task()
    task.encoder.mask_embedding.data.normal_()
    loss, _ = task.training_step(batch_of())
    loss.backward()
    without = [name for name, p in task.named_parameters() if p.grad is None or not p.grad.any()]
    assert without == []
    assert task.encoder.text_embedding.weight.grad[15].abs().sum() == 0  # a word that no caption has


def finetune_task(**settings: Any) -> FinetuneTask:
    torch.manual_seed(0)
    encoder = EncoderConfig(**{**SMALL, **settings.pop("encoder", {})})
    job = FinetuneJob(procedures=".", decoder=DecoderConfig(**DECODER), **settings)
    vocabulary = Vocabulary([f"word{chr(97 + n)}" for n in range(SHAPES.vocabulary_size - 4)])
    return FinetuneTask(job, encoder, SHAPES, vocabulary, lambda images: images)


CAPTIONS = {
    "ends": features(frames=2),
    "ids": torch.tensor([[BOS, 5, 6, PAD], [BOS, 7, 8, 9]]),
    "targets": torch.tensor([[5, 6, EOS, PAD], [7, 8, 9, EOS]]),
}


@torch.no_grad()
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_captioning_loss_is_equation_10(smoothing: float) -> None:
    """The sum over a caption's words, the mean over captions; label smoothing gives its share to the other words."""
    task = finetune_task(label_smoothing=smoothing)
    loss, logs = task.training_step(CAPTIONS)
    log_p = task.captioner(CAPTIONS["ends"], CAPTIONS["ids"]).log_softmax(-1)
    total = words = right = 0.0
    per_word = []
    for b, length in enumerate((3, 4)):
        terms, hits = [], []
        for t in range(length):
            goal = int(CAPTIONS["targets"][b, t])
            target = torch.full((20,), smoothing / 19)
            target[goal] = 1 - smoothing
            terms.append(float(-(target * log_p[b, t]).sum()))
            hits.append(float(int(log_p[b, t].argmax()) == goal))
        total += sum(terms) / 2
        words += length
        per_word.append(sum(terms) / length)
        right += sum(hits) / length / 2
    assert float(loss) == pytest.approx(total, rel=1e-5)
    assert float(logs["loss_per_word"]) == pytest.approx(sum(per_word) / 2, rel=1e-5)
    assert float(logs["word_accuracy"]) == pytest.approx(right, rel=1e-5)


@torch.no_grad()
def test_the_decoder_does_not_look_ahead() -> None:
    captioner = finetune_task().captioner.eval()
    changed = CAPTIONS["ids"].clone()
    changed[:, 3] = 12
    one, other = (captioner(CAPTIONS["ends"], ids) for ids in (CAPTIONS["ids"], changed))
    assert same(one[:, :3], other[:, :3])
    assert differs(one[:, 3], other[:, 3])


@pytest.mark.parametrize("settings", [{}, OFFICIAL], ids=["paper", "official"])
def test_what_only_stage_1_reads_is_not_trained_in_stage_2(settings: dict[str, Any]) -> None:
    task = finetune_task(encoder=settings)
    loss, _ = task.training_step(CAPTIONS)
    loss.backward()
    trained = {name for group in task.param_groups() for name in _names(task, group["params"])}
    without = {name for name, p in task.named_parameters() if p.grad is None}
    assert trained.isdisjoint(without)
    assert trained | without == {name for name, _ in task.named_parameters()}
    stage_1_only = {"align_token", "consistency_token", "text_positions", "text_embedding.weight"}
    expected = {"align_token"} if settings else stage_1_only
    assert without == {f"captioner.encoder.{name}" for name in expected}
    state = set(task.state_dict())
    assert without <= state  # kept in the artifact


def _names(task: torch.nn.Module, parameters: list[torch.nn.Parameter]) -> list[str]:
    wanted = {id(parameter) for parameter in parameters}
    return [name for name, parameter in task.named_parameters() if id(parameter) in wanted]


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
    hidden = block.widen(block.norm_mlp(middle))
    expected = middle + block.narrow(hidden * torch.sigmoid(1.702 * hidden))
    torch.testing.assert_close(block(x, None), expected, rtol=1e-5, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("official", [False, True])
def test_the_decoder_written_out(official: bool) -> None:
    """Post-norm, no biases in attention, tied embeddings times sqrt(E), sinusoids; scores over sqrt(64) or sqrt(512)
    and the norm by the unbiased deviation where official."""
    torch.manual_seed(1)
    config = DecoderConfig(**{**DECODER, "scale_by_width": official, "official_norm": official})
    decoder = TextDecoder(config, 16, 20).eval()
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    ids, memory_in = CAPTIONS["ids"], torch.randn(2, 24, 16)
    layer = decoder.layers[0]

    def norm(module: Any, x: Tensor) -> Tensor:
        if not official:
            return F.layer_norm(x, (16,), module.weight, module.bias)
        deviation = (x - x.mean(-1, keepdim=True)).pow(2).sum(-1, keepdim=True).div(15).sqrt()
        return module.weight * (x - x.mean(-1, keepdim=True)) / (deviation + 1e-6) + module.bias

    def attend(module: Any, x: Tensor, y: Tensor, causal: bool) -> Tensor:
        parts = []
        for head in range(2):
            rows = slice(8 * head, 8 * head + 8)
            q, k, v = x @ module.q.weight.T[:, rows], y @ module.k.weight.T[:, rows], y @ module.v.weight.T[:, rows]
            scores = q @ k.transpose(1, 2) / (16 if official else 8) ** 0.5
            if causal:
                scores = scores + torch.full(scores.shape[1:], float("-inf")).triu(1)
            parts.append(scores.softmax(-1) @ v)
        return torch.cat(parts, -1) @ module.out.weight.T

    memory = decoder.project(memory_in)
    x = 4.0 * decoder.words[ids]
    for position in range(4):
        for i in range(8):
            angle = position * 10_000 ** (-2 * i / 16)
            x[:, position, 2 * i] += torch.tensor(angle).sin()
            x[:, position, 2 * i + 1] += torch.tensor(angle).cos()
    x = norm(layer.norm_self, x + attend(layer.self_attention, x, x, causal=True))
    x = norm(layer.norm_cross, x + attend(layer.cross_attention, x, memory, causal=False))
    x = norm(layer.norm_feedforward, x + layer.narrow(layer.widen(x).relu()))
    expected = x @ decoder.words.T + decoder.word_bias
    torch.testing.assert_close(decoder(ids, memory_in), expected, rtol=1e-4, atol=1e-4)


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
