"""Retrieval between pairs and captions: R@k in both directions, as in CLIP4IDC, and at chance."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

RANKS = (1, 5, 10)


def retrieval(similarity: np.ndarray, owner: np.ndarray, ranks: Sequence[int] = RANKS) -> dict[str, float]:
    """Shares of queries whose right answer is among the k best.

    text to pair: each caption retrieves its pair among all pairs. pair to text: each pair retrieves among all sets of
    captions, a set counting with its best caption (the official evaluation of pairs with several captions). Only a
    pair's own captions are right for it, also where another pair has the same words. Among equal similarities the
    right answer has a random rank, and its expectation is taken: a constant similarity scores at chance.

    Args:
        similarity: (N, C), pairs by captions.
        owner: (C,) the pair of each caption; every pair has at least one.
        ranks: the k.

    Returns:
        ``text_to_pair_R1``, ..., ``pair_to_text_R1``, ..., and ``chance_R1``, ...: k / N, the same both ways.
    """
    pairs, captions = similarity.shape
    assert owner.shape == (captions,)
    if missing := sorted(set(range(pairs)) - set(owner.tolist())):
        raise ValueError(f"{len(missing)} pairs have no caption, the first of them number {missing[0]}")
    sets = np.full((pairs, pairs), -np.inf, dtype=similarity.dtype)
    for caption, pair in enumerate(owner):
        np.maximum(sets[:, pair], similarity[:, caption], out=sets[:, pair])
    out = {}
    for name, rows, right in (("text_to_pair", similarity.T, owner), ("pair_to_text", sets, np.arange(pairs))):
        matching = rows[np.arange(len(rows)), right][:, None]
        better, equal = (rows > matching).sum(1), (rows == matching).sum(1)
        for k in ranks:
            out[f"{name}_R{k}"] = float(np.clip((k - better) / equal, 0, 1).mean())
    return out | {f"chance_R{k}": min(1.0, k / pairs) for k in ranks}
