"""The baselines: the constant's CIDEr is the official one, and nearest means nearest."""

from __future__ import annotations

import numpy as np
import pytest

from idc.data.images import encode_png
from idc.evaluation import baselines as baselines
from idc.evaluation.baselines import best_constant, constant_candidates, constant_cider, nearest_captions
from idc.metrics import coco


def references(count: int, seed: int = 0) -> dict[str, list[str]]:
    """Random captions of few words, so that n-grams repeat; ids differ in the number of references."""
    rng = np.random.default_rng(seed)
    words = ["the", "red", "blue", "cube", "ball", "moved", "turned", "green", "was", "added", "removed"]
    return {
        f"p{i}": [" ".join(rng.choice(words, rng.integers(1, 9))) for _ in range(rng.integers(1, 5))]
        for i in range(count)
    }


def test_the_cider_of_a_constant_is_pycocoevalcaps() -> None:
    from pycocoevalcap.cider.cider import Cider

    given = references(30)
    candidates = ["the red cube moved", "ball", "the the the", "unseen words only", given["p3"][0], "the red zebra"]
    expected = [Cider().compute_score(given, {name: [text] for name in given})[0] for text in candidates]
    assert constant_cider(given, candidates) == pytest.approx(expected, abs=1e-12)
    assert len(set(np.round(expected, 6))) > 3, "the candidates must differ for this test to mean anything"
    assert constant_cider({"a": ["the red cube moved"]}, ["the red cube moved"])[0] == 0.0, "not defined for one id"


def test_the_best_constant_beats_every_other_candidate() -> None:
    given = references(40, seed=1)
    candidates = [captions[0] for captions in given.values()]
    best, value = best_constant(given, candidates)
    for text in candidates:
        assert coco.cider(given, dict.fromkeys(given, text)) <= value + 1e-9
    assert coco.cider(given, dict.fromkeys(given, best)) == pytest.approx(value, abs=1e-9)
    with pytest.raises(ValueError, match="no training captions"):
        best_constant(given, [])


def test_candidates_are_the_most_frequent_and_one_of_every_type() -> None:
    train = [
        ("none", ["nothing changed", "no change"]),
        ("none", ["nothing changed", "same"]),
        ("color", ["it turned red", "it is red"]),
        ("color", ["it is red", "it became red"]),
        ("move", ["it moved"]),
        (None, ["what a change"]),
    ]
    assert constant_candidates(train, count=1) == ["nothing changed", "it is red", "it moved", "what a change"]
    assert set(constant_candidates(train, count=100)) == {caption for _, captions in train for caption in captions}


def picture(rng: np.random.Generator, size: tuple[int, int] = (48, 64)) -> np.ndarray:
    return (rng.random((*size, 3)) * 60 + 90).astype(np.uint8)


def pair(name: str, before: np.ndarray, after: np.ndarray, captions: tuple[str, ...] = ()) -> dict:
    return {"pair_id": name, "before": encode_png(before), "after": encode_png(after), "captions": list(captions)}


def with_square(image: np.ndarray, y: int, x: int) -> np.ndarray:
    out = image.copy()
    out[y : y + 12, x : x + 12] = (250, 20, 20)
    return out


def test_the_nearest_pair_has_the_same_change_at_the_same_place() -> None:
    rng = np.random.default_rng(0)
    scene = picture(rng)
    places = {"top left": (2, 2), "top right": (2, 50), "bottom left": (34, 2), "bottom right": (34, 50)}
    train = [pair(f"t {n}", scene, with_square(scene, *at), (f"added {n}", "other")) for n, at in places.items()]
    train += [pair(f"d {n}", with_square(scene, *at), scene, (f"removed {n}",)) for n, at in places.items()]
    train.insert(0, pair("without captions", scene, with_square(scene, 4, 4)))
    noisy = np.clip(scene.astype(int) + rng.integers(-8, 9, scene.shape), 0, 255).astype(np.uint8)
    evaluated = [pair(f"e {n}", noisy, with_square(scene, at[0] + 1, at[1] - 1)) for n, at in places.items()]
    evaluated.append(pair("e drop", with_square(noisy, 34, 50), scene))
    found = nearest_captions(iter(train), iter(evaluated))
    assert found == {f"e {n}": (f"t {n}", f"added {n}") for n in places} | {
        "e drop": ("d bottom right", "removed bottom right")
    }


def test_images_of_different_sizes_are_compared_and_no_captions_are_an_error() -> None:
    rng = np.random.default_rng(2)
    mixed = [pair("a", picture(rng, (40, 40)), picture(rng, (20, 30)), ("x",))]
    assert nearest_captions(mixed, mixed) == {"a": ("a", "x")}
    with pytest.raises(ValueError, match="no training pair has a caption"):
        nearest_captions([pair("b", picture(rng), picture(rng))], mixed)
    assert nearest_captions(mixed, []) == {}


def test_blocks_do_not_change_who_is_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    train = [pair(f"t{i}", picture(rng), picture(rng), (f"caption {i}",)) for i in range(9)]
    evaluated = [pair(f"e{i}", picture(rng), picture(rng)) for i in range(4)]
    whole = nearest_captions(train, evaluated)
    monkeypatch.setattr(baselines, "_BATCH", 2)
    assert nearest_captions(train, evaluated) == whole
    assert nearest_captions(train, train)["t5"] == ("t5", "caption 5")
