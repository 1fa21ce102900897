"""Change maps against masks: the three numbers by hand, the baselines, and their way through an evaluation."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import average_precision_score

from idc.captioning.contract import SearchOptions
from idc.config import load
from idc.data.images import decode_image, resize_image
from idc.data.pipeline import run_local
from idc.data.store import iter_rows
from idc.evaluation.config import EvaluateJob
from idc.evaluation.job import finished_evaluation, run_evaluation
from idc.evaluation.record import evaluation_table, load_evaluation
from idc.metrics.change_maps import BLOB, MODEL, PIXELS, average_precision, blob, score_map, score_pair, summarise_maps
from idc.systems import load_captioner
from tests.systems.procap.world import World


def test_the_numbers_by_hand() -> None:
    """Of the pixels from the highest down, the first, the third and the fifth are in the mask."""
    values = np.array([[9.0, 8.0, 7.5], [0.002, 0.001, 0.0]])
    mask = np.array([[True, False, True], [False, True, False]])
    points, precision, overlap = score_map(values, mask)
    assert points == 1
    assert precision == pytest.approx((1 / 1 + 2 / 3 + 3 / 5) / 3)
    assert overlap == pytest.approx(2 / 4)  # Otsu parts the upper row from the lower one
    assert score_map(-values, mask)[0] == 0
    assert score_map(np.ones((2, 3)), mask)[1:] == [pytest.approx(0.5), 0]


@pytest.mark.parametrize("values_at_most", [3, 10**6])
def test_average_precision_is_that_of_scikit_learn_also_for_equal_values(values_at_most: int) -> None:
    random = np.random.default_rng(0)
    values, mask = random.integers(0, values_at_most, (30, 40)).astype(np.float32), random.random((30, 40)) < 0.1
    expected = average_precision_score(mask.ravel(), values.ravel())
    assert average_precision(mask, values) == pytest.approx(expected, rel=1e-12)


def test_a_pair_and_its_baselines() -> None:
    before = np.full((16, 24, 3), 100, np.uint8)
    after = before.copy()
    after[4:7, 6:11] = 200
    mask = np.zeros((16, 24, 3), np.uint8)
    mask[4:7, 6:11] = 170
    right = np.zeros((4, 4))
    right[1, 1] = 1
    found = score_pair(right, before, after, mask)
    assert found[0] == pytest.approx(15 / 384)
    means = summarise_maps([found, None])
    assert means.pairs == 1
    assert means.scores[PIXELS] == {"pointing": 1, "AP": 1, "IoU": 1}
    assert means.scores[MODEL]["pointing"] == 1
    assert means.scores[MODEL]["AP"] > 0.7
    assert means.scores[BLOB]["pointing"] == 0
    assert blob((5, 9))[2, 0] == pytest.approx(np.exp(-((4 / (9 / 4)) ** 2) / 2)), "a quarter of the width"
    assert score_pair(right, before, after, np.zeros_like(mask)) is None
    assert summarise_maps([None]) is None
    doubled = mask.repeat(2, axis=0).repeat(2, axis=1)
    assert score_pair(right, resize_image(before, (8, 12)), after, doubled) == pytest.approx(found)


def job(world: World, artifact: Path, out: Path, **settings: object) -> EvaluateJob:
    given = {
        "pairs": world.pairs, "artifact": str(artifact), "out": str(out), "metrics": ["CIDEr"], "batch_size": 3,
        "nearest_train_pairs": 0, "constant_candidates": 0, "resamples": 0, "spice": False,
    }  # fmt: skip
    return load(EvaluateJob, None, {**given, **settings})


def test_an_evaluation_with_change_maps(world: World, captioner_artifact: Path, tmp_path: Path) -> None:
    captioner = load_captioner(str(captioner_artifact))
    loading, runner = lambda: captioner, partial(run_local, progress=False)
    plain = run_evaluation(job(world, captioner_artifact, tmp_path / "plain"), loading, runner)
    assert plain.change_maps is None
    with_maps = job(world, captioner_artifact, tmp_path / "maps", change_maps=True)
    found = run_evaluation(with_maps, loading, runner)
    assert found.scores == pytest.approx(plain.scores)
    rows = [row for row in iter_rows(world.pairs, split="test") if row["change_type"] != "none"]
    expected = []
    for row in rows:
        before, after, mask = (decode_image(row[name]) for name in ("before", "after", "mask"))
        [told] = captioner.describe([before], [after], SearchOptions(change_map=True))
        assert told.change_map is not None
        expected.append(score_pair(told.change_map, before, after, mask))
    means = summarise_maps(expected)
    assert found.change_maps.pairs == means.pairs == len(rows)
    for way, numbers in means.scores.items():
        assert found.change_maps.scores[way] == pytest.approx(numbers, abs=1e-3)
    text = evaluation_table(load_evaluation(tmp_path / "maps"))
    assert f"change maps of {len(rows)} changed pairs against their masks" in text
    assert finished_evaluation(with_maps) == found
