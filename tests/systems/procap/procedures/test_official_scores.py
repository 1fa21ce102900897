"""The official code's score files: reading, and the confidence the official code makes of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from idc.systems.procap.procedures.official_scores import OfficialScores
from idc.systems.procap.procedures.similarity import Sampling

RNG = np.random.default_rng(0)


def entry(captions: int = 3, dino: bool = True) -> dict[str, Any]:
    out = {name: RNG.random((captions, 9)).tolist() for name in ("bef_inter_sim", "inter_aft_sim")}
    if dino:
        out |= {name: RNG.random(9).tolist() for name in ("bef_inter_dino_score", "inter_aft_dino_score")}
    return out


def read(path: Path, content: Any) -> OfficialScores:
    path.write_text(json.dumps(content))
    return OfficialScores.read(path)


def softmax(values: np.ndarray) -> np.ndarray:
    shares = np.exp(values - values.max())
    return shares / shares.sum()


def squares(of: dict[str, Any], kind: str) -> np.ndarray:
    """The official squared differences of all nine frames."""
    names = ("bef_inter_sim", "inter_aft_sim") if kind == "text" else ("bef_inter_dino_score", "inter_aft_dino_score")
    before, after = (np.atleast_2d(of[name]).mean(axis=0) for name in names)
    return (before - after) ** 2


def weights(scores: OfficialScores, strategy: Any, pair_id: str) -> np.ndarray:
    sampling = Sampling(strategy, scores=scores, mix=0.7)
    return sampling(pair_id, np.zeros((9, 2, 2, 3), np.uint8), np.zeros((9, 1, 1)), [])


def test_the_confidence_is_the_official_codes(tmp_path: Path) -> None:
    clevr = {f"{n:06d}.png": {"sc_sim_matrixes": entry(), "nsc_sim_matrixes": entry(6)} for n in (3, 12)}
    scores = read(tmp_path / "clevr.json", clevr)
    assert scores.num_frames == 9
    assert list(scores.rows) == ["000003c", "000003nc", "000012c", "000012nc"]
    for name, matrix in (("000012c", "sc_sim_matrixes"), ("000012nc", "nsc_sim_matrixes")):
        row = clevr["000012.png"][matrix]
        parts = []
        for strategy, kind in (("visual_text", "text"), ("visual", "visual")):
            np.testing.assert_allclose(weights(scores, strategy, name), 1 - softmax(squares(row, kind)[1:-1]), 1e-5)
            all_of_group = np.concatenate([squares(triple[matrix], kind) for triple in clevr.values()])
            low, high = all_of_group.min(), all_of_group.max()
            parts.append((squares(row, kind) - low) / (high - low))
        mixed = 1 - softmax((0.7 * parts[0] + 0.3 * parts[1])[1:-1])
        np.testing.assert_allclose(weights(scores, "mixed", name), mixed, rtol=1e-5)
    np.testing.assert_allclose(weights(scores, "visual_text", "000999c"), np.full(7, 6 / 7), rtol=1e-6)


def test_other_data_sets_by_their_own_names(tmp_path: Path) -> None:
    scores = read(tmp_path / "spot.json", {"10": entry(1, dino=False), "7nc": entry(2)})
    assert list(scores.rows) == ["10", "7nc"]
    assert scores.groups.tolist() == [0, 0]
    assert (scores.lacking("text"), scores.lacking("visual")) == (0, 1)


def test_what_is_no_score_file_is_refused(tmp_path: Path) -> None:
    both = [{"bef_inter_sim": [[1] * count], "inter_aft_sim": [[1] * count]} for count in (9, 5)]
    for content, message in (
        ([], "has no pairs by name"),
        ({"10": 3}, "'10' holds a int"),
        ({"10": {"bef_inter_sim": [[1, 2, 3]]}}, "'10' has no rows of numbers under bef_inter_sim and inter_aft_sim"),
        ({"10": {"bef_inter_sim": [[1, 2, 3]], "inter_aft_sim": [[1, 2]]}}, "'10' has"),
        ({"10": {"other": 1}}, "no similarities"),
        (dict(zip("12", both, strict=True)), r"one number of frames, but has \[5, 9\]"),
    ):
        with pytest.raises(ValueError, match=message):
            read(tmp_path / "x.json", content)
    (tmp_path / "y.json").write_text("{")
    with pytest.raises(ValueError, match="is not JSON"):
        OfficialScores.read(tmp_path / "y.json")
