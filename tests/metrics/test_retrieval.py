"""Retrieval of pairs and captions."""

from __future__ import annotations

import numpy as np
import pytest

from idc.metrics.retrieval import retrieval


def test_ranks_are_counted_both_ways() -> None:
    # pair 0 has captions 0 and 1, pair 1 caption 2, pair 2 caption 3
    owner = np.array([0, 0, 1, 2])
    similarity = np.array([[0.9, 0.1, 0.8, 0.0], [0.2, 0.5, 0.7, 0.3], [0.1, 0.4, 0.1, 0.2]])
    found = retrieval(similarity, owner, ranks=(1, 2))
    # caption 0 finds pair 0 first, caption 1 third, caption 2 second, caption 3 second
    assert found["text_to_pair_R1"] == pytest.approx(1 / 4)
    assert found["text_to_pair_R2"] == pytest.approx(3 / 4)
    # pair 0: its best caption 0.9 is the best; pair 1: 0.7 against 0.5, 0.3; pair 2: 0.2 against 0.4 and 0.1
    assert found["pair_to_text_R1"] == pytest.approx(2 / 3)
    assert found["pair_to_text_R2"] == pytest.approx(1)
    assert found["chance_R1"] == pytest.approx(1 / 3)
    assert found["chance_R2"] == pytest.approx(2 / 3)


def test_what_cannot_tell_pairs_apart_gets_chance() -> None:
    owner = np.repeat(np.arange(20), 3)
    found = retrieval(np.zeros((20, 60)), owner)
    assert retrieval(np.eye(3), np.arange(3))["pair_to_text_R10"] == 1, "fewer pairs than ranks"
    for k in (1, 5, 10):
        assert found[f"text_to_pair_R{k}"] == pytest.approx(k / 20)
        assert found[f"pair_to_text_R{k}"] == pytest.approx(k / 20)
        assert found[f"chance_R{k}"] == k / 20


def test_a_pair_without_caption_is_refused() -> None:
    with pytest.raises(ValueError, match="1 pairs have no caption, the first of them number 1"):
        retrieval(np.zeros((3, 2)), np.array([0, 2]))
