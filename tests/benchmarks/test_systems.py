"""Captioners of several papers next to each other, at tiny sizes."""

from __future__ import annotations

from benchmarks.captioning import CaptioningConfig
from benchmarks.systems import SystemsConfig, measure_systems
from idc.config import load
from tests.systems.namc.tiny import MODEL
from tests.systems.procap.world import DECODER, ENCODER, TOKENIZER


def test_both_captioners_are_measured_from_images_and_from_features() -> None:
    model = {**MODEL, "image": {"grid": 4, "cnn": "resnet"}}
    cnn = {"embedding_size": 8, "hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1]}
    small = load(
        SystemsConfig, None, {"num_pairs": 2, "repeats": 2, "words": 20, "namc": model, "cnn": cnn, "threads": 1}
    )
    procap = {"tokenizer": TOKENIZER.model_dump(), "encoder": ENCODER, "decoder": DECODER, "vocabulary_size": 20}
    rows = list(measure_systems(small, load(CaptioningConfig, None, {**procap, "num_keyframes": 2, "steps": 6})))
    assert [row.title for row in rows] == [
        f"NAMC from {source} over ProCap from {source}, papers' sizes" for source in ("images", "features")
    ]
    for row in rows:
        assert len(row.above) == len(row.below) == 2
        assert min(row.above + row.below) > 0
    assert "FINER 49" in rows[0].more["published"]
