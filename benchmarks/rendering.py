"""Rendering: pairs per second and core, and where the time goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from pydantic import Field

from benchmarks.measurement import Measurement, this_environment
from benchmarks.processes import apart, say, turns
from idc.config import ConfigModel, load
from idc.data.rendered.config import RenderConfig, RenderJob


class RenderingConfig(ConfigModel):
    """Pairs rendered per second on one core."""

    small: str = "jobs/configs/render/demo.yaml"
    """YAML file of small scenes."""
    small_scenes: int = Field(60, ge=1)
    """Small scenes rendered in a round."""
    large: str = "jobs/configs/render/clevr_change.yaml"
    """YAML file of large scenes."""
    large_scenes: int = Field(1, ge=1)
    """Large scenes rendered in a round."""
    rounds: int = Field(3, ge=1)
    """Rounds, each in a process of its own, by turns."""


def measure_rendering(config: RenderingConfig) -> Iterator[Measurement]:
    """One figure per YAML file: the same scenes in every round, after one that is not counted."""
    where = this_environment(threads=1)
    sizes = {config.small: config.small_scenes, config.large: config.large_scenes}
    renders = {path: load(RenderJob, path, {"out": "(none)"}).render for path in sizes}
    rounds: dict[str, list[dict[str, Any]]] = {path: [] for path in sizes}
    for path in turns(tuple(sizes), config.rounds):
        rounds[path].append(apart(_render, renders[path].model_dump(mode="json"), sizes[path]))
        say(f"rendering: {path} {rounds[path][-1]}")
    for path, render in renders.items():
        yield Measurement(
            part="rendering",
            title=f"pairs rendered per second on one core, {render.width}x{render.height}, "
            f"{render.samples_per_pixel} samples a pixel, {render.min_objects} to {render.max_objects} objects",
            unit="pairs/s",
            aim="none",
            above=[figures["pairs_per_second"] for figures in rounds[path]],
            below=[],
            more={"scenes": sizes[path], "percent_of_time": [figures["percent"] for figures in rounds[path]]},
            environment=where,
        )


def _render(settings: dict[str, Any], num_scenes: int) -> dict[str, Any]:
    """Render scenes 1 to ``num_scenes`` in this process; return the rate, and the share of each step in percent."""
    from idc.data.rendered import render as module

    stage = module.RenderScenes(RenderConfig.model_validate(settings))
    seconds: dict[str, float] = {}

    def timed(owner: Any, name: str, step: str) -> None:
        function: Callable[..., Any] = getattr(owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            result = function(*args, **kwargs)
            seconds[step] = seconds.get(step, 0.0) + time.perf_counter() - began
            return result

        setattr(owner, name, call)

    timed(module, "draw_scene", "drawing scenes and masks")
    timed(module, "change_captions", "captions")
    timed(module, "scene_dict", "loading scenes")
    timed(stage.mi, "load_dict", "loading scenes")
    timed(stage.mi, "render", "light paths")
    timed(module, "without_sparks", "tone mapping")
    timed(module, "to_srgb", "tone mapping")
    timed(module, "encode_png", "PNG")
    stage.pairs(0)  # the first pair takes longer than the others
    seconds.clear()
    began = time.perf_counter()
    for index in range(1, num_scenes + 1):
        stage.pairs(index)
    total = time.perf_counter() - began
    percent = {step: round(100 * value / total, 1) for step, value in seconds.items()}
    return {
        "pairs_per_second": 2 * num_scenes / total,
        "percent": {**percent, "rest": round(100 - sum(percent.values()), 1)},
    }
