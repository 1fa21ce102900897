"""ProCap as a captioner; what it inherits from ``WordCaptioner`` is tested here for all systems that do."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from idc.captioning.contract import SearchOptions, Speed
from idc.data.text import BOS, EOS, PAD
from idc.systems.procap.captioner import DISAGREEMENT, PairCaptioner
from tests.systems.procap.world import Images

FRAMES, PATCHES = 4, 16
SPEEDS: tuple[Speed, ...] = ("exact", "bf16")


@pytest.fixture(scope="module")
def captioner(captioner_artifact: Path) -> PairCaptioner:
    return PairCaptioner(captioner_artifact)


def test_captions_are_those_of_the_description_with_beams_and_candidates_as_asked_for(
    captioner: PairCaptioner, images: Images
) -> None:
    described = captioner.describe(*images)
    assert [one.best.caption for one in described] == captioner(*images)
    assert {(len(one.candidates), one.changed, one.change_map) for one in described} == {(1, None, None)}
    assert captioner.describe([], []) == captioner([], []) == []
    pair = images[0][:1], images[1][:1]
    assert captioner.beams == 3
    greedy = captioner._search(captioner.net.procedure(captioner._features(*pair)), beams=1)
    assert captioner.describe(*pair, SearchOptions(beams=1))[0].best.caption == captioner.text(greedy.ids[0].tolist())
    assert len(captioner.describe(*pair, SearchOptions(candidates=5))[0].candidates) == 5  # by as many beams
    with pytest.raises(ValueError, match="candidates=3 need as many beams, got beams=2; ask for beams=3"):
        captioner.describe(*pair, SearchOptions(beams=2, candidates=3))
    with pytest.raises(ValueError, match="must be at least 1, got beams=None, candidates=0"):
        captioner.describe(*pair, SearchOptions(candidates=0))
    for call in (captioner, captioner.describe):
        with pytest.raises(ValueError, match="1 before and 0 after images: give as many"):
            call(pair[0], [])


def test_candidates_are_different_texts_with_the_probability_of_their_words(
    captioner: PairCaptioner, images: Images
) -> None:
    told = captioner.describe(*images, SearchOptions(candidates=3))
    assert [one.best for one in told] == [one.best for one in captioner.describe(*images)]
    longest = captioner.net.decoder.config.max_length - 1
    for features_GPZ, one in zip(captioner._features(*images), told, strict=True):
        assert len({candidate.caption for candidate in one.candidates}) == 3
        scores = [candidate.log_probability for candidate in one.candidates]
        assert scores == sorted(scores, reverse=True)  # the length penalty is 1
        for candidate in one.candidates:
            ids = captioner.vocabulary.encode(candidate.caption)
            with torch.no_grad():
                logits = captioner.net(features_GPZ[None], torch.tensor([ids[:-1]]))
            each = logits.log_softmax(-1)[0].gather(1, torch.tensor(ids[1:])[:, None])[:longest]
            assert each.mean().item() == pytest.approx(candidate.log_probability, abs=1e-4)


def test_hypotheses_that_read_alike_or_are_none_are_no_candidates(captioner: PairCaptioner) -> None:
    ids, infinite = [[5, EOS, PAD], [5, PAD, EOS], [6, EOS, PAD], [7, EOS, PAD]], float("-inf")
    every = map(captioner._candidate, ids, [2, 3, 2, 2], [-1.0, -1.2, -3.0, infinite])
    candidates = captioner._description(*[np.zeros((4, 4, 3), np.uint8)] * 2, every, 4).candidates
    assert [(candidate.caption, candidate.log_probability) for candidate in candidates] == [
        (captioner.vocabulary.decode([5]), -0.5), (captioner.vocabulary.decode([6]), -1.5),
    ]  # fmt: skip


def slow_map(captioner: PairCaptioner, before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """The formula of ``captioner.py`` step by step, from what the decoder's cross-attention is given."""
    model = captioner.net
    features = captioner._features([before], [after])
    with torch.no_grad():
        procedure = model.procedure(features)
        said = captioner._search(procedure, beams=captioner.beams).ids[0].tolist()
        said = said[: said.index(EOS)] if EOS in said else said
        given: list[tuple[np.ndarray, np.ndarray]] = []
        hooks = [
            layer.cross_attention.register_forward_pre_hook(
                lambda _, inputs: given.append((inputs[0][0].numpy(), inputs[1][0].numpy()))
            )
            for layer in model.decoder.layers
        ]
        model.decoder(torch.tensor([[BOS, *said]]), procedure)
    for hook in hooks:
        hook.remove()
    looked = np.zeros(FRAMES * PATCHES)
    for queries, keys in given:
        heads, _, width = keys.shape
        for word in range(len(said)):
            for head in range(heads):
                score = np.exp([float(queries[head, word] @ key) / math.sqrt(width) for key in keys[head]])
                looked += score / score.sum()
    patches = looked.reshape(FRAMES, PATCHES).sum(axis=0)
    first, last = (part.numpy() - part.numpy().mean(axis=0) for part in (features[0, 0], features[0, -1]))
    apart = [np.linalg.norm(a - b) for a, b in zip(last, first, strict=True)]
    most = max(np.linalg.norm(a) + np.linalg.norm(b) for a, b in zip(last, first, strict=True))
    return (np.array(apart) / most * (1 + patches / patches.max()) / 2).reshape(4, 4)


def test_the_change_map_is_its_formula(captioner: PairCaptioner, images: Images) -> None:
    for before, after, one in zip(*images, captioner.describe(*images, SearchOptions(change_map=True)), strict=True):
        np.testing.assert_allclose(one.change_map, slow_map(captioner, before, after), atol=1e-5)
        assert 0 <= one.change_map.min() <= one.change_map.max() <= 1


def test_equal_images_have_a_dark_map_and_a_patch_that_differs_shines(captioner: PairCaptioner, images: Images) -> None:
    before = images[0][0]
    painted = before.copy()
    painted[8:16, 16:24] = 255 - painted[8:16, 16:24]
    same, other = captioner.describe([before] * 2, [before, painted], SearchOptions(change_map=True))
    assert same.change_map.max() < 1e-4
    assert np.unravel_index(other.change_map.argmax(), (4, 4)) == (1, 2)
    assert same.evidence[DISAGREEMENT] < other.evidence[DISAGREEMENT] < 0


def test_given_captions_have_the_probability_of_the_search(captioner: PairCaptioner, images: Images) -> None:
    described = captioner.describe(*images, SearchOptions(beams=1))
    own = [one.best.caption for one in described]
    long = "the big red cube, that is left of it, has moved"
    scored = captioner.score(*images, [[own[i], long, ""][: 1 + i] for i in range(len(own))])
    assert [len(scores) for scores in scored] == [1, 2, 3, 3, 3, 3]
    expected = [one.best.log_probability for one in described]
    assert [scores[0].mean for scores in scored] == pytest.approx(expected, abs=1e-4)
    for scores, caption in zip(scored, own, strict=True):
        assert scores[0].tokens == len(captioner.vocabulary.encode(caption)) - 1
        assert scores[0].total == pytest.approx(scores[0].mean * scores[0].tokens)
    assert scored[2][2].tokens == 1, "the empty caption is its end token"
    alone = captioner.score([images[0][4]], [images[1][4]], [[long]])
    assert scored[4][1].total == pytest.approx(alone[0][0].total, abs=1e-4)
    assert captioner.score(images[0][:1], images[1][:1], [[]]) == [[]]
    with pytest.raises(ValueError, match="1 lists of captions for 6 pairs"):
        captioner.score(*images, [["no change"]])


def test_captions_of_no_words_and_of_all_steps(captioner_artifact: Path, images: Images) -> None:
    changeable = PairCaptioner(captioner_artifact)
    with torch.no_grad():
        changeable.net.decoder.word_bias[EOS] += 100
    for one in changeable.describe(*images, SearchOptions(change_map=True)):
        assert one.best.caption == ""
        assert one.change_map is not None
        assert np.isfinite(one.change_map).all()
    with torch.no_grad():
        changeable.net.decoder.word_bias[EOS] -= 200
    described = changeable.describe(*images, SearchOptions(beams=1))
    steps = changeable.net.decoder.config.max_length - 1
    found = changeable.score(*images, [[one.best.caption, one.best.caption + " and on"] for one in described])
    for one, (scored, longer) in zip(described, found, strict=True):
        assert scored.tokens == longer.tokens == steps
        assert scored.mean == pytest.approx(one.best.log_probability, abs=1e-4)


def test_samples_have_the_probability_that_score_gives_them(captioner: PairCaptioner, images: Images) -> None:
    drawn = captioner.sample(*images, 4, seed=3)
    assert drawn == captioner.sample(*images, 4, seed=3)
    assert drawn != captioner.sample(*images, 4, seed=4)
    scores = captioner.score(*images, [[one.caption for one in own] for own in drawn])
    for own, scored in zip(drawn, scores, strict=True):
        assert [one.log_probability for one in own] == pytest.approx([one.mean for one in scored], abs=1e-3)
    greedy = captioner.describe(*images, SearchOptions(beams=1))
    cold = captioner.sample(*images, 2, temperature=1e-4)
    assert [{one.caption for one in own} for own in cold] == [{one.best.caption} for one in greedy]


def test_bf16_says_nearly_the_same(captioner_artifact: Path, images: Images) -> None:
    described = (
        PairCaptioner(captioner_artifact, speed=speed).describe(*images, SearchOptions(beams=1)) for speed in SPEEDS
    )
    for one, same in zip(*described, strict=True):
        assert one.best.log_probability == pytest.approx(same.best.log_probability, abs=0.2)
