"""No optimisation changes the numbers; the benchmarks, in small."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from benchmarks import captioning, training
from benchmarks.captioning import CaptioningConfig, Way, make_captioner, make_pairs
from benchmarks.gpu import GpuConfig, measure_gpu
from benchmarks.scoring import ScoringConfig, measure_scoring
from benchmarks.training import TrainingConfig
from idc.systems.procap.config import DecoderConfig, EncoderConfig
from idc.vision.tokenizer.config import TokenizerConfig

TOKENIZER = TokenizerConfig(
    image_size=32, channels=8, channel_mult=(1, 1, 2), res_blocks=1, norm_groups=4, codebook_size=16, latent_dim=12
)
"""32x32 pictures to 8x8 patches."""
ENCODER = EncoderConfig(width=32, layers=2, heads=4, text_length=6, init="normal")
DECODER = DecoderConfig(width=32, layers=2, heads=4, feedforward=64)
TINY = CaptioningConfig(
    tokenizer=TOKENIZER, encoder=ENCODER, decoder=DECODER, vocabulary_size=30, batch_size=3, images_at_once=4, steps=9,
    repeats=2, threads=1,
)  # fmt: skip
TRAINING = TrainingConfig(
    encoder=ENCODER, grid=(3, 4), feature_dim=10, codebook_size=16, vocabulary_size=30, batch_size=4, repeats=2,
    threads=1,
)  # fmt: skip


@pytest.fixture(autouse=True)
def same_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_each_optimisation_gives_the_same_captions() -> None:
    tokenizer, captioner = captioning.make_image_tokenizer(TINY), make_captioner(TINY, 2)
    pairs = make_pairs(6, 32)
    ways = {name: Way(TINY, tokenizer, captioner, speed) for name, speed in TINY.speeds().items()}
    results = {name: way(*pairs) for name, way in ways.items()}
    naive = results.pop("naive")
    assert list(results)[:4] == ["cached decoding", "fused attention", "few images at once", "channels-last"]
    assert len({tuple(row) for row in naive.ids.tolist()}) > 2  # the captions tell the pairs apart
    for other in results.values():
        assert torch.equal(other.ids, naive.ids)
        assert torch.allclose(other.log_probability, naive.log_probability, atol=1e-2)


def test_captioning_is_measured() -> None:
    rows = list(captioning.measure_captioning(TINY))
    assert rows[0].more == {"equal_tokens": "1.0000"}
    assert len(rows) == 4
    assert all(len(row.ratios) == 2 and min(row.ratios) > 0 for row in rows)


def test_a_way_that_says_something_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Way.__call__

    def wrong(way: Way, *pictures: Any) -> Any:
        result = right(way, *pictures)
        return result._replace(ids=result.ids.flip(0)) if way.speed.fused_attention else result

    monkeypatch.setattr(Way, "__call__", wrong)
    with pytest.raises(ValueError, match=r"the optimisations change .* of the naive path's words"):
        list(captioning.measure_captioning(TINY))


def test_stage_1_is_measured() -> None:
    (use,) = training.measure_training(TRAINING)
    assert use.title.startswith("stage 1, fp32, model FLOP/s over its fastest matrix product (4 samples, k = 2")
    assert len(use.above) == 2
    assert use.more["flops_of_a_step"] > 1e6


def test_one_gpu_is_measured_in_small_on_a_cpu() -> None:
    rows = list(measure_gpu(GpuConfig(device="cpu", tiny=True, repeats=1, batch_size=2, pairs=2)))
    tuning = [row for row in rows if "adapters" in row.title]
    assert [row.title.split()[0] for row in tuning] == ["SFT", "SFT", "DPO", "DPO"]
    assert all(min(row.above) > 0 for row in rows)


@pytest.mark.slow
def test_scores_are_compared_with_pycocoevalcap() -> None:
    rows = list(measure_scoring(ScoringConfig(pairs=20, references=2, rounds=1)))
    assert [row.unit for row in rows] == ["s"] * 2


def test_operations_are_counted_once() -> None:
    linear = torch.nn.Linear(16, 24)
    inputs = torch.randn(5, 16, requires_grad=True)
    assert training.count_flops(lambda: linear(inputs).sum().backward()) == 3 * 2 * 5 * 16 * 24
    query, key, value = (torch.randn(2, 3, length, 8, requires_grad=True) for length in (4, 7, 7))

    def attend() -> None:
        torch.nn.functional.scaled_dot_product_attention(query, key, value).sum().backward()

    assert training.count_flops(attend) == 3 * 2 * (2 * 2 * 3 * 4 * 7 * 8)
