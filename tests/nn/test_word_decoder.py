"""The shared text decoder: with and without a cache, causal, with one embedding or two."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from idc.config import load
from idc.data.text import BOS, PAD, UNK
from idc.decoding import decode
from idc.nn.config import WordDecoderConfig
from idc.nn.word_decoder import WordDecoder

WORDS = 17


def word_decoder(tied: bool = True) -> WordDecoder:
    torch.manual_seed(2)
    config = WordDecoderConfig(width=32, layers=2, heads=4, feedforward=64, max_length=16)
    return WordDecoder(config, WORDS, tied).eval()


@torch.no_grad()
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("beams", [1, 4])
def test_cached_decoding_gives_the_tokens_of_uncached_decoding(beams: int, tied: bool) -> None:
    decoder = word_decoder(tied)
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


@torch.no_grad()
def test_the_decoder_does_not_look_ahead() -> None:
    decoder, memory = word_decoder(), torch.randn(1, 5, 32)
    ids = torch.tensor([[1, 5, 6, 7]])
    other = ids.clone()
    other[0, 2] = 9
    one, two = decoder(ids, memory), decoder(other, memory)
    assert torch.allclose(one[:, :2], two[:, :2], atol=1e-6)
    assert not torch.allclose(one[:, 2], two[:, 2])


def test_an_untied_decoder_has_an_output_embedding_of_its_own() -> None:
    tied, untied = word_decoder(), word_decoder(tied=False)
    assert set(untied.state_dict()) - set(tied.state_dict()) == {"out_words"}
    ids, memory = torch.tensor([[1, 5, 6]]), torch.randn(1, 5, 32)
    before = untied(ids, memory)
    with torch.no_grad():
        untied.words[9] += 1  # a word that the decoder did not read
        tied_before = tied(ids, memory)
        tied.words[9] += 1
        assert torch.equal(untied(ids, memory), before)
        assert not torch.equal(tied(ids, memory)[..., 9], tied_before[..., 9])


def test_a_width_that_the_heads_do_not_divide_is_refused() -> None:
    with pytest.raises(ValueError, match="width: 30 is not divisible by heads = 4"):
        load(WordDecoderConfig, None, {"width": 30})
