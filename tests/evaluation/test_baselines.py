"""The baselines: the constant's CIDEr is the official one, nearest means nearest, the trained one is any evaluation of
the same pairs; and what one evaluation leaves for the next."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from idc.config import load, missing_inputs
from idc.data.images import encode_png
from idc.data.pipeline import run_local
from idc.data.schema import ChangePair
from idc.evaluation import baselines as baselines
from idc.evaluation import record as ev
from idc.evaluation.baselines import best_constant, constant_candidates, constant_cider, nearest_captions, training_of
from idc.evaluation.config import EvaluateJob
from idc.evaluation.job import finished_evaluation, run_evaluation
from idc.evaluation.record import evaluation_table
from idc.evaluation.score import ScoreCache
from idc.metrics import coco
from idc.sweep.steps import score_baselines
from tests.folders import write_rows


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
    value = coco.cider(given, dict.fromkeys(given, best_constant(given, candidates)))
    for text in candidates:
        assert coco.cider(given, dict.fromkeys(given, text)) <= value + 1e-9
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
    assert found == {f"e {n}": f"added {n}" for n in places} | {"e drop": "removed bottom right"}


def test_images_of_different_sizes_are_compared_and_no_captions_are_an_error() -> None:
    rng = np.random.default_rng(2)
    mixed = [pair("a", picture(rng, (40, 40)), picture(rng, (20, 30)), ("x",))]
    assert nearest_captions(mixed, mixed) == {"a": "x"}
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
    assert nearest_captions(train, train)["t5"] == "caption 5"


# ------------------------------------------------------------------------------------------------- the trained baseline


RED = {"size": "small", "color": "red", "material": "metal", "shape": "cube", "x": 0.0}
BLUE = {"size": "large", "color": "blue", "material": "rubber", "shape": "sphere", "x": 1.0}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with 4 training and 6 test pairs of which every second lost its red cube."""
    monkeypatch.chdir(tmp_path)
    rows = []
    for i in range(10):
        kind = ("none", "drop")[i % 2]
        grey = encode_png(np.full((8, 8, 3), 10 * i, np.uint8))
        meta = {"before": [RED, BLUE], "after": [BLUE] if kind == "drop" else [RED, BLUE]}
        texts = ("the red cube is gone", f"the small red cube {i} is gone") if kind == "drop" else ("no change", "same")
        split = "train" if i < 4 else "test"
        rows.append(ChangePair(f"p{i}", grey, grey, texts, kind, split, source="rendered:x", meta=meta).to_row())
    store(Path("pairs"), rows)
    for name, caption in (("right", "the red cube is gone"), ("wrong", "the blue sphere is gone")):
        lines = [
            {"pair_id": f"p{i}", "caption": "no change" if i % 2 == 0 or i == 5 else caption} for i in range(4, 10)
        ]
        Path(f"{name}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return tmp_path


def store(path: Path, rows: list[dict[str, Any]]) -> None:
    write_rows(path, rows, fingerprint=str(path))


def job(name: str, out: str = "", **settings: Any) -> EvaluateJob:
    arguments = {"predictions": f"{name}.jsonl", "pairs": "pairs", "out": out or f"out/{name}", "resamples": 0,
             "metrics": ["BLEU", "CIDEr"], "spice": False}  # fmt: skip
    return load(EvaluateJob, None, {**arguments, **settings})


def test_its_scores_and_claims_are_those_of_its_own_evaluation(world: Path) -> None:
    other = run_evaluation(job("right"))
    evaluation = run_evaluation(job("wrong", trained_baseline="out/right"))
    trained = evaluation.baselines["trained"]
    assert (trained.scores, trained.subsets, trained.types) == (other.scores, other.subsets, other.types)
    assert trained.hallucination == other.hallucination
    assert (trained.hallucination.object.right, trained.hallucination.object.total) == (2, 3)
    assert evaluation.hallucination.object.right == 0
    assert "right.jsonl" in trained.what
    text = evaluation_table(evaluation)
    assert "baseline: trained" in text
    assert "baseline: trained: object 66.7%" in text
    assert finished_evaluation(job("wrong", trained_baseline="out/right")) == evaluation
    with pytest.raises(ValueError, match="evaluation of other inputs"):
        finished_evaluation(job("wrong"))


def test_the_untrained_baselines_have_claims_too(world: Path) -> None:
    evaluation = run_evaluation(job("right", constant_candidates=5))
    nearest, constant = evaluation.baselines["nearest"].hallucination, evaluation.baselines["constant"].hallucination
    assert constant.pairs == nearest.pairs == 6
    assert (nearest.object.right, nearest.object.total) == (3, 3), "every pair is nearest to the last training pair"
    assert evaluation.baselines["constant"].caption == "the red cube is gone"
    assert (constant.object.right, constant.invented_change.right) == (3, 3)


def test_the_constant_is_a_caption_of_the_training_split(world: Path) -> None:
    """Also where one of the evaluated split would score higher."""
    rows = [
        ChangePair(f"t{i}", b"", b"", ("a car has left", "a car is gone"), "drop", "train").to_row() for i in range(3)
    ]
    rows += [ChangePair(f"p{i}", b"", b"", ("no change", "same"), "none", "test").to_row() for i in range(4, 10)]
    store(Path("other"), rows)
    constant = run_evaluation(job("right", pairs="other", constant_candidates=5, nearest_train_pairs=0)).baselines[
        "constant"
    ]
    assert constant.caption in ("a car has left", "a car is gone")


@pytest.mark.parametrize(
    ("system", "config", "result", "words"),
    [
        ("toy", None, None, "toy"),
        ("toy", None, {"training_samples": 3692, "seconds": 129.6, "cores": 2},
         "toy, trained on 3,692 pairs in 130 s on 2 cores"),
        ("procap", {"job": {}}, None, "procap (supervision: captions)"),
        ("twincap", {"job": {"supervision": {"heads": 0.1, "dense": 0.3}}}, None,
         "twincap (supervision: captions and scene graphs)"),
        ("namc", {"job": {"pretrained": "runs/a/artifact"}}, None,
         "namc (supervision: captions and generated descriptions)"),
        ("sft", {}, None, "sft (supervision: captions, on a base taught before)"),
        ("zeroshot", {}, None, "zeroshot (supervision: none)"),
    ],
)  # fmt: skip
def test_how_it_was_trained_is_read_from_its_run(
    system: str, config: dict[str, Any] | None, result: dict[str, Any] | None, words: str, tmp_path: Path
) -> None:
    (tmp_path / "artifact").mkdir()
    record = {"system": system, **({} if config is None else {"config": config})}
    (tmp_path / "artifact" / "config.json").write_text(json.dumps(record))
    if result is not None:
        (tmp_path / "result.json").write_text(json.dumps(result))
    assert str(training_of(str(tmp_path / "artifact"))) == words
    assert training_of("nowhere") is None


def test_another_evaluation_is_refused_with_its_difference_before_anything_is_captioned(world: Path) -> None:
    refused = [
        ({"split": "train", "nearest_train_pairs": 0}, "not the same split: here train, in out/right test"),
        ({"protocol": "levir_words"}, "not the same protocol: here levir_words, in out/right coco"),
        ({"metrics": ["ROUGE-L", "CIDEr"]}, "not the same metrics: here ROUGE-L, CIDEr, in out/right no ROUGE-L"),
        ({"max_pairs": 4}, "not the same pairs: here 4 pairs, in out/right 6; 'p8' is only in one of them"),
    ]
    run_evaluation(job("right"))
    for settings, message in refused:
        with pytest.raises(ValueError, match=f"trained_baseline: {message}"):
            run_evaluation(job("wrong", trained_baseline="out/right", **settings))
    rows = ev.load_predictions("out/right")
    ev.save(
        "out/altered", ev.load_evaluation("out/right"), [rows[0].model_copy(update={"references": ["x"]}), *rows[1:]]
    )
    with pytest.raises(ValueError, match=r"not the same references: here \['no change', 'same'\].*\['x'\] for 'p4'"):
        run_evaluation(job("wrong", trained_baseline="out/altered"))
    assert not Path("out/wrong").exists()
    assert missing_inputs(job("wrong", trained_baseline="out/nowhere")) != []


def test_a_sweep_scores_it_once_with_the_other_baselines(world: Path) -> None:
    run_evaluation(job("right"))
    settings = {"split": "test", "pairs": "pairs", "trained_baseline": "out/right", "metrics": ["BLEU", "CIDEr"],
                "spice": False, "resamples": 0}  # fmt: skip
    scores = score_baselines({"job": settings}, "out/baselines", run_local)
    assert scores.keys() == {"constant", "nearest", "trained"}
    assert scores["trained"] == ev.load_evaluation("out/right").scores


# ------------------------------------------------------------------------------------------------------------ the cache


class Made:
    def __init__(self, value: Any) -> None:
        self.value, self.times = value, 0

    def __call__(self) -> Any:
        self.times += 1
        return self.value


def test_a_value_is_made_once_for_what_it_depends_on(tmp_path: Path) -> None:
    make = Made({"CIDEr": 0.1 + 0.2, "texts": ["a", "b"]})
    for _ in range(2):
        assert ScoreCache(tmp_path / "cache", 1).get("x", ["a", 1], make) == make.value
    assert make.times == 1
    ScoreCache(tmp_path / "cache", 1).get("x", ["a", 2], make)
    ScoreCache(tmp_path / "cache", 2).get("x", ["a", 1], make)
    ScoreCache(tmp_path / "cache", 1).get("y", ["a", 1], make)
    assert make.times == 4, "other inputs, another version, another name"
    ScoreCache().get("x", ["a", 1], make)
    assert make.times == 5


def test_a_damaged_file_is_made_anew(tmp_path: Path) -> None:
    cache, make = ScoreCache(tmp_path), Made([1.5])
    cache.get("x", 0, make)
    [path] = tmp_path.iterdir()
    good = path.read_bytes()
    for damage in (b"", good[: len(good) // 2], good.replace(b"1.5", b"2.5"), b"[]", b"{}", b"\xff\xfe"):
        path.write_bytes(damage)
        assert cache.get("x", 0, make) == [1.5]
        assert path.read_bytes() == good
    assert make.times == 7


def test_without_write_access_nothing_is_cached_and_nothing_fails(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    make = Made(1)
    for _ in range(2):
        assert ScoreCache(tmp_path / "file" / "below").get("x", 0, make) == 1
    assert make.times == 2
