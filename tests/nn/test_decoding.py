"""Greedy and beam search, cached and uncached, over the real text decoders with random weights."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial

import pytest
import torch

from idc.data import text
from idc.nn.config import WordDecoderConfig
from idc.nn.decoding import decode, sample
from idc.nn.word_decoder import WordDecoder
from idc.systems.procap.config import DecoderConfig
from idc.systems.procap.text_decoder import TextDecoder

BOS, EOS, PAD, UNK = 1, 2, 0, 3
VOCABULARY = 17


def make_decoder(seed: int, **settings: object) -> TextDecoder:
    torch.manual_seed(seed)
    config = DecoderConfig(width=32, heads=4, feedforward=64, layers=2, **settings)
    decoder = TextDecoder(config, encoder_width=24, vocabulary_size=VOCABULARY).eval()
    with torch.no_grad():  # far from uniform, so that ties cannot decide; and the pair must matter, not the last word
        for parameter in decoder.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
        for layer in decoder.layers:
            layer.cross_attention.out.weight.mul_(6)
    return decoder


def search(decoder: TextDecoder | WordDecoder, memory: torch.Tensor, **options: object):
    return decode(decoder, memory, bos=BOS, eos=EOS, pad=PAD, max_length=9, banned=(UNK, PAD), **options)


def make_word_decoder() -> WordDecoder:
    """The decoder that several systems share."""
    torch.manual_seed(2)
    decoder = WordDecoder(WordDecoderConfig(width=24, layers=2, heads=4, feedforward=64, max_length=16), VOCABULARY)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return decoder.eval()


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize(
    "make",
    [
        *(partial(make_decoder, seed, scale_by_width=o, official_norm=o) for seed in range(2) for o in (False, True)),
        make_word_decoder,
    ],
)
def test_cached_and_uncached_decoding_agree_token_for_token(
    make: Callable[[], TextDecoder | WordDecoder], beams: int
) -> None:
    decoder = make()
    memory = torch.randn(5, 2, 24)
    cached = search(decoder, memory, beams=beams)
    uncached = search(decoder, memory, beams=beams, cached=False)
    assert torch.equal(cached.ids, uncached.ids)
    assert torch.allclose(cached.log_probability, uncached.log_probability, atol=1e-4)
    assert len({tuple(row) for row in cached.ids.tolist()}) > 1


def test_the_rules_of_a_shared_decoder_ban_marks_and_the_unknown_word() -> None:
    decoder, banned = make_word_decoder(), (text.UNK, text.PAD, text.BOS)
    with torch.no_grad():
        decoder.word_bias[list(banned)] += 50
    decoded = decode(decoder, torch.randn(6, 7, 24), **decoder.rules())
    assert decoded.ids.shape[1] <= 15
    for ids, length in zip(decoded.ids.tolist(), decoded.lengths.tolist(), strict=True):
        assert not set(banned) & set(ids[:length])


def test_banned_words_are_never_generated_and_padding_follows_the_end() -> None:
    decoder = make_decoder(3)
    with torch.no_grad():
        decoder.word_bias[UNK] += 50
    found = search(decoder, torch.randn(8, 11, 24))
    for row, length in zip(found.ids.tolist(), found.lengths.tolist(), strict=True):
        assert UNK not in row
        assert all(token != PAD for token in row[:length])
        assert all(token == PAD for token in row[length:])


def test_wide_beam_finds_the_best_caption_of_all() -> None:
    """With beams enough for every prefix, beam search is exhaustive: compare with the enumeration."""
    decoder = make_decoder(5)
    memory = torch.randn(1, 7, 24)
    words = [word for word in range(VOCABULARY) if word not in (PAD, UNK)]
    best: list[tuple[float, tuple[int, ...]]] = []
    for pair in memory:
        scored = []
        for length in (1, 2, 3):
            for caption in itertools.product(words, repeat=length):
                if EOS in caption[:-1] or (caption[-1] != EOS and length < 3):
                    continue
                with torch.no_grad():
                    logits = decoder(torch.tensor([[BOS, *caption[:-1]]]), pair[None])
                total = logits.log_softmax(-1)[0, torch.arange(length), torch.tensor(caption)].sum().item()
                scored.append((total / length**0.7, caption))
        best.append(max(scored))
    found = decode(
        decoder, memory, bos=BOS, eos=EOS, pad=PAD, max_length=3, banned=(UNK, PAD), beams=250, length_penalty=0.7
    )
    for row, length, total, (score, caption) in zip(
        found.ids.tolist(), found.lengths.tolist(), found.log_probability.tolist(), best, strict=True
    ):
        assert tuple(row[:length]) == caption
        assert total / length**0.7 == pytest.approx(score, abs=1e-4)


def plain_beams(decoder: TextDecoder, memory: torch.Tensor, beams: int, length_penalty: float) -> tuple[int, ...]:
    """Beam search for one pair, a hypothesis at a time: all that can follow are ranked by the scoring rule."""

    def score(hypothesis: tuple[tuple[int, ...], float]) -> float:
        words, total = hypothesis
        return total / len(words) ** length_penalty

    kept: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    for _ in range(9):
        followers = []
        for words, total in kept:
            if words[-1:] == (EOS,):
                followers.append((words, total))
                continue
            with torch.no_grad():
                logs = decoder(torch.tensor([[BOS, *words]]), memory)[0, -1].log_softmax(-1)
            followers += [((*words, w), total + logs[w].item()) for w in range(VOCABULARY) if w not in (UNK, PAD)]
        kept = sorted(followers, key=score, reverse=True)[:beams]
    return max(kept, key=score)[0]


def test_few_beams_that_end_early_are_ranked_as_in_a_plain_search() -> None:
    lengths = set()
    for seed, beams, length_penalty in itertools.product(range(4), (2, 3), (0.5, 1.0, 2.0)):
        decoder, memory = make_decoder(seed), torch.randn(4, 2, 24)
        with torch.no_grad():
            decoder.word_bias[EOS] += 3
        decoded = search(decoder, memory, beams=beams, length_penalty=length_penalty)
        for row, length, pair in zip(decoded.ids.tolist(), decoded.lengths.tolist(), memory, strict=True):
            assert tuple(row[:length]) == plain_beams(decoder, pair[None], beams, length_penalty)
            lengths.add(length)
    assert len(lengths) > 3


@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
@pytest.mark.parametrize("seed", range(2))
def test_the_best_hypotheses_of_a_pair(seed: int, length_penalty: float) -> None:
    """Cached as uncached; the first is the one that is found without asking for more; by the scoring rule, and each
    with its own words' probability."""
    decoder, memory = make_decoder(seed), torch.randn(4, 2, 24)
    with torch.no_grad():
        decoder.word_bias[EOS] += 5  # hypotheses of several lengths
    options = {"beams": 4, "length_penalty": length_penalty}
    best = search(decoder, memory, **options)
    several = search(decoder, memory, hypotheses=3, **options)
    uncached = search(decoder, memory, hypotheses=3, cached=False, **options)
    assert several.ids.shape == (4, 3, 9)
    assert torch.equal(several.ids, uncached.ids)
    for name in ("ids", "log_probability", "lengths"):
        assert torch.equal(getattr(several, name)[:, 0], getattr(best, name))
    scores = several.log_probability / several.lengths.float() ** length_penalty
    assert bool((scores.diff(dim=1) <= 0).all())
    assert several.lengths.unique().numel() > 1
    for pair, (rows, totals, lengths) in enumerate(zip(*(part.tolist() for part in several), strict=True)):
        assert len({tuple(row) for row in rows}) == 3
        for row, total, length in zip(rows, totals, lengths, strict=True):
            assert row[length - 1] == EOS or length == 9
            assert EOS not in row[: length - 1]
            with torch.no_grad():
                logits = decoder(torch.tensor([[BOS, *row[: length - 1]]]), memory[pair : pair + 1])
            words = torch.tensor(row[:length])
            assert logits.log_softmax(-1)[0, torch.arange(length), words].sum().item() == pytest.approx(total, abs=1e-3)


def test_impossible_beam_count_is_refused() -> None:
    with pytest.raises(ValueError, match="beams=0"):
        search(make_decoder(0), torch.randn(1, 3, 24), beams=0)
    for wrong in (0, 4):
        with pytest.raises(ValueError, match=f"hypotheses={wrong}: beams=3 give 1 to 3"):
            search(make_decoder(0), torch.randn(1, 3, 24), beams=3, hypotheses=wrong)


def test_samples_follow_the_distribution_and_keep_its_rules() -> None:
    """Captions of one token, many of them: frequencies are the model's probabilities without the banned words."""
    decoder, memory = make_decoder(2), torch.randn(2, 5, 24)
    options = {"bos": BOS, "eos": EOS, "pad": PAD, "banned": (UNK, PAD)}
    with torch.no_grad():
        exact = decoder(torch.full((2, 1), BOS), memory)[:, 0]
    found = sample(decoder, memory, torch.rand(2, 4000, 1), max_length=1, **options)
    assert found.ids.shape == (2, 4000, 1)
    allowed = exact.index_fill(1, torch.tensor([UNK, PAD]), float("-inf")).softmax(-1)
    for row, ids in zip(allowed, found.ids.squeeze(-1), strict=True):
        assert torch.allclose(torch.bincount(ids, minlength=VOCABULARY) / 4000, row, atol=0.03)
    assert torch.allclose(found.log_probability, exact.log_softmax(-1).gather(1, found.ids.squeeze(-1)), atol=1e-4)
    with torch.no_grad():
        decoder.word_bias[EOS] += 3  # captions of several lengths
    longer = sample(decoder, memory, torch.rand(2, 50, 9), max_length=9, **options)
    assert longer.lengths.unique().numel() > 1
    for row, length in zip(longer.ids.flatten(0, 1).tolist(), longer.lengths.flatten().tolist(), strict=True):
        assert row[length - 1] == EOS or length == 9
        assert EOS not in row[: length - 1]
        assert all(token == PAD for token in row[length:])
    with pytest.raises(ValueError, match="temperature=0"):
        sample(decoder, memory, torch.rand(2, 1, 1), max_length=1, temperature=0, **options)
