"""Mining pairs, apart from the encoders: neighbours and clusters next to faiss alone, two workers over one, and the
recall of the approximate indexes."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from benchmarks.measurement import Measurement, steady_rate, this_environment
from benchmarks.processes import Stamper, apart, say, scratch, stamps_of, turns
from cluster.config import ClusterConfig
from cluster.session import session
from idc.config import ConfigModel
from idc.data.mining.config import FeatureThresholds, IndexConfig, MiningConfig
from idc.data.mining.features_folder import (
    FEATURES,
    LENGTHS,
    THUMBNAIL_VALUES,
    RowRanges,
    feature_schema,
    unit_length,
)
from idc.data.mining.neighbours import FindNeighbours, Shards, build_index, search
from idc.data.mining.targets import ChooseTargets, targets_schema
from idc.data.pipeline import StageSpec, with_errors
from idc.data.store import DatasetFolder

_DIMENSIONS = (768, 1024)  # CLIP ViT-L/14 and DINOv2 ViT-L/14
_PART = 500
_GROUP = 100


class MiningBenchmarkConfig(ConfigModel):
    """Rates of the steps of mining after the encoders, on vectors drawn around random centres."""

    images: int = Field(6_000, ge=100)
    """Images of the collection. The exact search compares each with all others."""
    neighbours: int = Field(50, ge=1)
    """Neighbours per image and feature."""
    query_chunk: int = Field(250, ge=1)
    """Images per chunk."""
    rounds: int = Field(3, ge=1)
    """Rounds, by turns."""
    workers: int = Field(2, ge=1)
    """Workers of the larger run on Ray; 1: not measured."""
    recall_sizes: tuple[int, ...] = (10_000, 100_000)
    """Numbers of vectors for the recall of the approximate indexes; empty: not measured."""
    recall_dimensions: int = Field(96, ge=2)
    """Their dimensions."""
    recall_noise: float = Field(1.5, gt=0)
    """Their deviation from their centre over that of the centres; above 1, groups overlap, and the search is hard."""
    recall_queries: int = Field(500, ge=1)
    """Vectors whose neighbours are compared."""


def measure_mining(config: MiningBenchmarkConfig, cluster: ClusterConfig) -> Iterator[Measurement]:
    """Rows for one core, for several workers, and for the recall of each index and size."""
    where = this_environment(threads=1)
    with scratch() as folder:
        features = str(folder / "features")
        write_features(features, config.images, _DIMENSIONS)
        yield from _one_core(features, config, where)
        if config.workers > 1:
            yield from _workers(features, folder, config, cluster, where)
    for size in config.recall_sizes:
        yield from _recalls(size, config, where)


def grouped(count: int, dimensions: int, seed: int, noise: float = 0.5) -> np.ndarray:
    """Vectors (N, D) of unit length around N / 100 random centres. Every seed has the same groups.

    Args:
        noise: deviation from the centre over that of the centres.
    """
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(max(1, count // _GROUP), dimensions))
    groups = np.random.default_rng(0).integers(0, len(centres), count)
    vectors = centres[groups] + noise * rng.normal(size=(count, dimensions))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def write_features(path: str, count: int, dimensions: tuple[int, int]) -> None:
    """A folder of features of ``count`` images, as the job's first step writes it."""
    starts = range(0, count, _PART)
    folder = DatasetFolder.open_for_build(
        path, kind="image_features", schema=feature_schema(), fingerprint="benchmark", config={}, num_chunks=len(starts)
    )
    cells = [unit_length(grouped(count, size, 1 + seed)) for seed, size in enumerate(dimensions)]
    for part, start in enumerate(starts):
        rows = [
            {"place": i, "image_id": str(i), "height": 1, "width": 1, "thumbnail": bytes(THUMBNAIL_VALUES),
             **{name: cell[i].tobytes() for name, cell in zip(FEATURES, cells, strict=True)},
             **dict.fromkeys(LENGTHS, 1.0)}
            for i in range(start, min(start + _PART, count))
        ]  # fmt: skip
        folder.write_chunk(part, rows)
    folder.finish()


def _stages(features: str, config: MiningBenchmarkConfig) -> list[StageSpec]:
    """The steps of neighbours and of targets, with thresholds that leave an image its group."""
    shards = Shards(features, 100_000, np.zeros(0, np.int64))
    find = {"shards": shards, "config": IndexConfig(), "built": None, "k": config.neighbours, "threads": 1}
    wide = FeatureThresholds(max=1, min=0.2, set_max=0.2, set_min=0.2)
    mining = MiningConfig(encoder="clip_dinov2", clip_dinov2={"clip_thresholds": wide, "dinov2_thresholds": wide})
    return [StageSpec(FindNeighbours, find), StageSpec(ChooseTargets, {"features": features, "config": mining})]


def _one_core(features: str, config: MiningBenchmarkConfig, where: Any) -> Iterator[Measurement]:
    rates: dict[str, list[float]] = {"ours": [], "faiss": [], "targets": []}
    for kind in turns(("ours", "faiss"), config.rounds):
        seconds_by_kind = apart(_steps_once if kind == "ours" else _faiss_once, features, config.model_dump())
        for name, seconds in seconds_by_kind.items():
            rates[name].append(config.images / seconds)
        say(f"mining: {kind} {seconds_by_kind}")
    size = f"{config.images:,} images, {_DIMENSIONS[0]} and {_DIMENSIONS[1]} dimensions, k = {config.neighbours}"
    yield Measurement(
        part="mining",
        title=f"neighbours under both features on one core, exact, over faiss alone ({size})",
        unit="images per CPU second",
        better="higher",
        aim="at least 0.8",
        above=rates["ours"],
        below=rates["faiss"],
        more={"million_comparisons_per_second": 2 * config.images * float(np.median(rates["ours"])) / 1e6},
        environment=where,
    )
    yield Measurement(
        part="mining",
        title=f"thresholds, clusters and targets on one core ({size})",
        unit="images per CPU second",
        better="higher",
        aim="none",
        above=rates["targets"],
        environment=where,
    )


def _steps_once(features: str, config: dict[str, Any]) -> dict[str, float]:
    """CPU seconds of both steps over all images; the first chunk, which loads the index, counts."""
    settings = MiningBenchmarkConfig.model_validate(config)
    find, choose = (stage.build() for stage in _stages(features, settings))
    source = RowRanges(features, settings.query_chunk)
    choose(find(source.read(0)))  # imports, the memory-mapped file
    find = _stages(features, settings)[0].build()
    seconds = {"ours": 0.0, "targets": 0.0}
    for chunk in range(source.num_chunks):
        batch = with_errors(source.read(chunk))
        began = time.process_time()
        neighbours = find(batch)
        middle = time.process_time()
        choose(neighbours)
        seconds["ours"] += middle - began
        seconds["targets"] += time.process_time() - middle
    return seconds


def _faiss_once(features: str, config: dict[str, Any]) -> dict[str, float]:
    """CPU seconds of faiss's own flat index over the same vectors in memory."""
    import faiss

    faiss.omp_set_num_threads(1)
    shards = Shards(features, 100_000, np.zeros(0, np.int64))
    vectors = [shards.vectors(0, name)[1] for name in FEATURES]
    began = time.process_time()
    for matrix in vectors:
        index = faiss.IndexFlatIP(matrix.shape[1])
        index.add(matrix)
        index.search(matrix, config["neighbours"] + 1)
    return {"faiss": time.process_time() - began}


def _workers(
    features: str, folder: Path, config: MiningBenchmarkConfig, cluster: ClusterConfig, where: Any
) -> Iterator[Measurement]:
    counts = {"one": 1, "several": config.workers}
    rates: dict[str, list[float]] = {name: [] for name in counts}
    alone: dict[str, list[float]] = {name: [] for name in counts}
    for number, kind in enumerate(turns(tuple(counts), config.rounds)):
        run_folder = folder / f"run-{number}"
        settings = config.model_dump()
        stamps = apart(_on_ray, features, str(run_folder), counts[kind], settings, cluster.model_dump())
        rates[kind].append(steady_rate(stamps, counts[kind]))
        alone[kind].append(_faiss_together(features, settings, counts[kind]))
        say(f"mining: {counts[kind]} workers {rates[kind][-1]:.1f} images/s, faiss alone {alone[kind][-1]:.1f}")
    limit = float(np.median(alone["several"]) / np.median(alone["one"]))
    yield Measurement(
        part="mining",
        title=f"neighbours and targets on Ray, {config.workers} workers over 1 (steady state)",
        unit="images/s",
        aim=f"at least {0.85 * config.workers:.1f}",
        above=rates["several"],
        below=rates["one"],
        more={"share_of_the_limit": float(np.median(rates["several"]) / np.median(rates["one"])) / limit},
        environment=where,
    )
    yield Measurement(
        part="mining",
        title=f"the machine's limit: {config.workers} independent processes of faiss over 1",
        unit="images/s",
        aim="none",
        better="neither",
        above=alone["several"],
        below=alone["one"],
        environment=where,
    )


def _on_ray(features: str, run_folder: str, workers: int, config: dict[str, Any], cluster: dict[str, Any]) -> list[Any]:
    """Run both steps on a Ray of its own; return the stamps of the chunks."""
    settings = MiningBenchmarkConfig.model_validate(config)
    stamps = Path(run_folder) / "stamps"
    stamps.mkdir(parents=True)
    stages = [replace(stage, concurrency=workers) for stage in _stages(features, settings)]
    stages.append(replace(stages[-1], cls=Stamper, kwargs={"folder": str(stamps)}))
    source = RowRanges(features, settings.query_chunk)
    folder = DatasetFolder.open_for_build(
        str(Path(run_folder) / "targets"), kind="mining_targets", schema=targets_schema(), fingerprint="benchmark",
        config={}, num_chunks=source.num_chunks,
    )  # fmt: skip
    with session(ClusterConfig.model_validate(cluster)):
        from cluster.data import run_chunks_on_ray  # imports Ray, so only after the session has set the environment

        run_chunks_on_ray(folder, source, stages, progress=False)
    return stamps_of(stamps)


def _faiss_together(features: str, config: dict[str, Any], processes: int) -> float:
    """Images per second of this many processes that search at the same time with faiss alone, together."""
    context = multiprocessing.get_context("spawn")
    ready = context.Barrier(processes)
    seconds: Any = context.Array("d", processes)
    running = [
        context.Process(target=_faiss_beside, args=(features, config, ready, seconds, i)) for i in range(processes)
    ]
    for process in running:
        process.start()
    for process in running:
        process.join()
    if any(process.exitcode for process in running):
        raise RuntimeError(f"a process of faiss ended with status {[process.exitcode for process in running]}")
    return processes * float(config["images"]) / max(list(seconds))


def _faiss_beside(features: str, config: dict[str, Any], ready: Any, seconds: Any, number: int) -> None:
    """:func:`_faiss_once` in step with other processes."""
    import faiss

    faiss.omp_set_num_threads(1)
    shards = Shards(features, 100_000, np.zeros(0, np.int64))
    indexes = []
    for name in FEATURES:
        vectors = shards.vectors(0, name)[1]
        index = faiss.IndexFlatIP(vectors.shape[1])
        index.add(vectors)
        indexes.append((index, vectors))
    ready.wait()
    began = time.perf_counter()
    for index, vectors in indexes:
        index.search(vectors, config["neighbours"] + 1)
    seconds[number] = time.perf_counter() - began


def _recalls(size: int, config: MiningBenchmarkConfig, where: Any) -> Iterator[Measurement]:
    """Recall of IVF and HNSW with the job's defaults against exact, on the same vectors."""
    recalls = apart(recall_once, size, config.model_dump())
    for kind, figures in recalls.items():
        say(f"mining: {kind}, {size} vectors: {figures}")
        yield Measurement(
            part="mining",
            title=f"recall of the {config.neighbours} nearest, {kind} against exact ({size:,} random vectors around "
            f"{size // _GROUP:,} centres, {config.recall_dimensions} dimensions, noise {config.recall_noise:g})",
            unit="share",
            aim="none",
            better="higher",
            above=[figures["recall"]],
            more={name: value for name, value in figures.items() if name != "recall"},
            environment=where,
        )


def recall_once(size: int, config: dict[str, Any]) -> dict[str, dict[str, float]]:
    """By index: recall, queries per second of it and of the exact index, and seconds to build it; one thread."""
    import faiss

    faiss.omp_set_num_threads(1)
    settings = MiningBenchmarkConfig.model_validate(config)
    vectors = grouped(size, settings.recall_dimensions, 0, settings.recall_noise)
    numbers = np.linspace(0, size - 1, min(settings.recall_queries, size)).astype(np.int64)
    members, k = np.arange(size), settings.neighbours

    def timed(index: Any) -> tuple[np.ndarray, float]:
        began = time.perf_counter()
        ids, _ = search(index, members, vectors[numbers], numbers, k)
        return ids, len(numbers) / (time.perf_counter() - began)

    exact, exact_rate = timed(build_index(vectors, IndexConfig()))
    out: dict[str, dict[str, float]] = {}
    for config_ in (IndexConfig(kind="ivf"), IndexConfig(kind="hnsw")):
        began = time.perf_counter()
        index = build_index(vectors, config_)
        built = time.perf_counter() - began
        ids, rate = timed(index)
        hits = sum(len(set(row.tolist()) & set(other.tolist())) for row, other in zip(ids, exact, strict=True))
        out[config_.kind] = {
            "recall": hits / exact.size,
            "queries_per_second": rate,
            "exact_queries_per_second": exact_rate,
            "build_seconds": built,
        }
    return out
