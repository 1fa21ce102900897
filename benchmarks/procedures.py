"""Building procedures: speed of several actors over one, and peak memory with more pairs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import Field

from benchmarks.measurement import Measurement, peak_memory_mib, steady_rate, this_environment
from benchmarks.processes import Stamper, apart, say, scratch, stamps_of, turns, written_lines
from cluster.config import ClusterConfig
from cluster.session import session
from idc.config import ConfigModel
from idc.data.pipeline import Source, StageSpec
from idc.data.store import DatasetFolder, Manifest, read_manifest
from idc.systems.procap.procedures.config import ProceduresConfig


class BuildActorsConfig(ConfigModel):
    """Procedures per second with several actors over one, in the steady state."""

    config: str = "jobs/configs/procap/procedures_demo.yaml"
    """YAML file of the build."""
    actors: int = Field(2, ge=2)
    """Actors of the larger build; each has `build.cpus_per_actor` cores and torch threads."""
    num_pairs: int = Field(480, ge=1)
    """Pairs per build."""
    rounds: int = Field(2, ge=1)
    """Builds of each kind."""


class BuildMemoryConfig(ConfigModel):
    """Peak memory of a large build over that of a small one."""

    config: str = "jobs/configs/procap/procedures_demo.yaml"
    """YAML file of the build."""
    num_pairs: int = Field(128, ge=1)
    """Pairs of the small build."""
    times: int = Field(10, ge=2)
    """Pairs of the large build as a multiple of `num_pairs`."""
    rounds: int = Field(1, ge=1)
    """Builds of each kind."""


def build_speed(
    build: ProceduresConfig, num_pairs: int, actors: int, rounds: int, cluster: ClusterConfig
) -> Measurement:
    """Procedures per second with ``actors`` actors over one, in the steady state."""
    kinds = {"one": 1, "several": actors}
    rates: dict[str, list[float]] = {name: [] for name in kinds}
    where = this_environment(max(1, int(build.cpus_per_actor)))
    with scratch() as folder:
        for number, kind in enumerate(turns(tuple(kinds), rounds)):
            config = build.model_copy(update={"actors": kinds[kind], "max_pairs": num_pairs})
            done = apart(_build_once, config.model_dump(mode="json"), str(folder / f"{number}"), cluster.model_dump())
            rates[kind].append(steady_rate(done["stamps"], kinds[kind]))
            say(f"build_actors: {kinds[kind]} actors {rates[kind][-1]:.2f} pairs/s")
    return Measurement(
        part="build_actors",
        title=f"building procedures, {actors} actors over 1 ({num_pairs} pairs, steady state)",
        unit="pairs/s",
        aim=f"at least {0.85 * actors:.1f}",
        above=rates["several"],
        below=rates["one"],
        environment=where,
    )


def _need_pairs(build: ProceduresConfig, there: int, wanted: int) -> None:
    if there < wanted:
        raise ValueError(
            f"build_memory: {build.pairs} has {there} pairs, {wanted} are needed; lower num_pairs or times"
        )


def build_memory(
    build: ProceduresConfig, num_pairs: int, times: int, rounds: int, cluster: ClusterConfig
) -> Measurement:
    """Peak memory of driver and actors with ``times`` times ``num_pairs`` pairs over that with ``num_pairs``.

    It is the sum of the processes' peaks of resident memory, without Ray's daemons.
    """
    kinds = {"small": num_pairs, "large": num_pairs * times}
    _need_pairs(build, read_manifest(build.pairs, kind="pairs").num_rows, kinds["large"])
    peaks: dict[str, list[float]] = {name: [] for name in kinds}
    parts: dict[str, list[dict[str, Any]]] = {name: [] for name in kinds}
    where = this_environment(max(1, int(build.cpus_per_actor)))
    with scratch() as folder:
        for number, kind in enumerate(turns(tuple(kinds), rounds)):
            config = build.model_copy(update={"max_pairs": kinds[kind]})
            done = apart(_build_once, config.model_dump(mode="json"), str(folder / f"{number}"), cluster.model_dump())
            _need_pairs(build, done["pairs"], kinds[kind])
            peaks[kind].append(done["driver_mib"] + sum(done["actors_mib"]))
            parts[kind].append({"driver_mib": done["driver_mib"], "actors_mib": done["actors_mib"]})
            say(f"build_memory: {kinds[kind]} pairs {peaks[kind][-1]:.0f} MiB")
    return Measurement(
        part="build_memory",
        title=f"peak memory of a build, {times} times the pairs over {num_pairs}",
        unit="MiB",
        aim="at most 1.2",
        above=peaks["large"],
        below=peaks["small"],
        more={"processes": parts},
        environment=where,
    )


def _build_once(build: dict[str, Any], run_folder: str, cluster: dict[str, Any]) -> dict[str, Any]:
    """Run one build in this process with its own Ray; return its stamps, peak memory and pairs."""
    from idc.systems.procap.procedures.build import build as build_procedures

    stamps = Path(run_folder) / "stamps"
    stamps.mkdir(parents=True)

    def on_ray(
        folder: DatasetFolder, source: Source, stages: list[StageSpec], *, max_reject_share: float, name: str
    ) -> Manifest:
        from cluster.data import run_chunks_on_ray  # imports Ray, so only after the session has set the environment

        stages = [*stages, replace(stages[-1], cls=Stamper, kwargs={"folder": str(stamps)})]
        return run_chunks_on_ray(folder, source, stages, progress=False, max_reject_share=max_reject_share, name=name)

    with session(ClusterConfig.model_validate(cluster)):
        manifest = build_procedures(
            ProceduresConfig.model_validate(build), str(Path(run_folder) / "procedures"), on_ray
        )
    lines = written_lines(stamps)
    return {
        "stamps": stamps_of(stamps),
        "driver_mib": peak_memory_mib(),
        "actors_mib": [max(line["peak_mib"] for line in written_lines) for written_lines in lines.values()],
        "pairs": manifest.num_rows + manifest.num_rejected,
    }
