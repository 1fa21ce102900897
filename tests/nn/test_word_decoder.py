"""The shared text decoder, with and without a cache."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from idc.config import load
from idc.data.text import BOS, PAD, UNK
from idc.nn.config import WordDecoderConfig
from idc.nn.decoding import decode
from idc.nn.word_decoder import WordDecoder

WORDS = 17


def word_decoder() -> WordDecoder:
    torch.manual_seed(2)
    config = WordDecoderConfig(width=32, layers=2, heads=4, feedforward=64, max_length=16)
    return WordDecoder(config, WORDS).eval()


@torch.no_grad()
@pytest.mark.parametrize("beams", [1, 4])
def test_cached_decoding_gives_the_tokens_of_uncached_decoding(beams: int) -> None:
    decoder = word_decoder()
    for parameter in decoder.parameters():
        parameter.add_(0.3 * torch.randn_like(parameter))
    memory = torch.randn(5, 7, 32)
    options: dict[str, Any] = decoder.rules()
    one, two = (decode(decoder, memory, beams=beams, cached=cached, **options) for cached in (True, False))
    assert one.ids.tolist() == two.ids.tolist()
    assert one.ids.shape[1] == 15
    assert len({tuple(ids) for ids in one.ids.tolist()}) > 1
    assert torch.allclose(one.log_probability, two.log_probability, atol=1e-4)


@torch.no_grad()
def test_marks_and_the_unknown_word_are_not_generated() -> None:
    decoder = word_decoder()
    decoder.word_bias[[UNK, PAD, BOS]] += 50
    found = decode(decoder, torch.randn(6, 7, 32), **decoder.rules())
    for ids, length in zip(found.ids.tolist(), found.lengths.tolist(), strict=True):
        assert not {UNK, PAD, BOS} & set(ids[:length])


def test_a_width_that_the_heads_do_not_divide_is_refused() -> None:
    with pytest.raises(ValueError, match="width: 30 is not divisible by heads = 4"):
        load(WordDecoderConfig, None, {"width": 30})
