"""The rendering benchmark renders what its YAML files say and accounts for all of the time."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.rendering import RenderingConfig, measure_rendering

TINY = "render: {width: 32, height: 32, samples_per_pixel: 1, max_objects: 3, min_visible_pixels: 1}\n"


def test_a_figure_per_size_with_the_shares_of_all_steps(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(TINY)
    (tmp_path / "large.yaml").write_text(TINY.replace("32", "48"))
    paths = {"small": str(tmp_path / "small.yaml"), "large": str(tmp_path / "large.yaml")}
    small, large = measure_rendering(RenderingConfig(**paths, small_scenes=2, large_scenes=1, rounds=2))
    assert "32x32" in small.title
    assert "48x48" in large.title
    for one in (small, large):
        assert len(one.above) == 2
        assert min(one.above) > 0
        for percent in one.more["percent_of_time"]:
            assert {"light paths", "PNG", "drawing scenes and masks", "rest"} <= set(percent)
            assert sum(percent.values()) == pytest.approx(100, abs=0.5)
            assert min(percent.values()) >= 0
