"""The benchmark of the vision-language stack at a tiny size."""

from __future__ import annotations

import pytest

from benchmarks.vision_language import VlmBenchmarkConfig, measure_vision_language
from idc.config import load


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["qwen2_5_vl", "internvl"])
def test_a_family_is_measured(kind: str) -> None:
    small = {"families": [kind], "width": 32, "layers": 1, "num_pairs": 2, "new_tokens": 3, "steps": 2, "repeats": 2}
    rows = {row.title: row for row in measure_vision_language(load(VlmBenchmarkConfig, None, {**small, "threads": 1}))}
    generation, training, captions, loop = rows.values()
    assert [row.title.split(",")[0] for row in rows.values()] == [
        "generation",
        "training",
        "two captions of a pair",
        "a training step in the loop over the model's own",
    ]
    for row in rows.values():
        assert len(row.above) == 2
        assert min(row.above + row.below) > 0
        assert kind in row.title
    assert training.more["vision_passes"] == generation.more["vision_passes"] == 1
    assert captions.more["vision_passes"] == "2 and 1"
    assert training.more["tokens"] > generation.more["tokens"] == 2 * 3
    assert training.more["MiB_above_the_loaded_model"] > 0.1
    assert loop.more["percent_outside_the_model"] < 100
