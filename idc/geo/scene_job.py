"""A pair of GeoTIFFs to one map, polygons and a sentence.

    tiles/              one row per tile: caption and map (:mod:`idc.geo.tile_captions`)
    change_map.tif      the map of the scene: 0 to 254, 255 where nothing was compared
    changes.tif         what counts as changed: 0, or the number of the class from 1 on
    changes.geojson     its connected parts as polygons, in longitude and latitude
    summary.json        the sentence, counts, areas; written last

The map of the scene and the numbers of its parts are in memory: some 20 bytes a pixel.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import rasterio

from idc.captioning.apply import DescribeOptions
from idc.captioning.loading import CaptionerLoader, LoadCaptioner
from idc.data.files import explain_write_errors, locate
from idc.data.images import decode_image
from idc.data.pipeline import ChunkResult, NumberSource, StageSpec, run_local
from idc.data.store import Manifest, fingerprint, iter_rows, read_manifest
from idc.geo.config import SceneJob
from idc.geo.polygons import SceneChange, changes_of, class_name
from idc.geo.rasters import ScenePair, gdal, open_scene
from idc.geo.scene_sentence import scene_sentence
from idc.geo.tile_captions import NO_DATA, STEPS, CaptionTiles, open_tiles
from idc.geo.tiles import Tiling
from idc.metrics.changes import says_no_change
from idc.util.atomic import read_object, replacing, write_json, write_text

TILES, SUMMARY = "tiles", "summary.json"
MAP, CHANGES = "change_map.tif", "changes.tif"
POLYGONS = "changes.geojson"
_DERIVED = ("threshold", "min_area")
"""Settings on which the result depends, besides the tiles."""
_VERSION = 1
"""Incremented when the same tiles and settings would give another result."""


@dataclass(frozen=True)
class SceneResult:
    """The result of a job.

    Attributes:
        summary: the content of summary.json.
        done: tiles that this run has read; the others were done before.
    """

    summary: dict[str, Any]
    done: int

    @property
    def sentence(self) -> str:
        """What changed in the scene."""
        return str(self.summary["sentence"])

    def text(self) -> str:
        """The result as text for the terminal."""
        tiles = self.summary["tiles"]
        counts = f"{tiles['all']} tiles, {tiles['captioned']} captioned"
        if self.done < tiles["all"]:
            counts += f", {tiles['all'] - self.done} of all done before"
        if tiles["unreadable"]:
            counts += f", {tiles['unreadable']} unreadable"
        lines = [counts]
        if tiles["warned"]:
            lines.append(f"{tiles['warned']} tiles have a warning: {self.summary['warning']}")
        return "\n".join([*lines, self.sentence])


def caption_scene(
    job: SceneJob,
    run: Callable[..., Manifest] = run_local,
    local: bool = True,
    overwrite: bool = False,
    load: LoadCaptioner | None = None,
) -> SceneResult:
    """Caption the tiles that are not captioned yet, and write the result if it is not there.

    Args:
        run: runs the chunks: :func:`idc.data.pipeline.run_local`, or the same in processes or on a cluster.
        local: ``run`` uses this machine, with torch's default number of threads.
        overwrite: replace a result of other images or settings in ``job.out``; tiles of the same images and captioner
            are kept.
        load: loads the captioner; by default that of ``job.artifact``.

    Raises:
        ValueError: the images cannot be compared, the captioner has no map, or ``job.out`` holds something else.
    """
    scene = open_scene(job)
    tiling = Tiling(scene.height, scene.width, job.tile, job.overlap)
    source = NumberSource(tiling.count, job.chunk_size)
    if load is None:
        threads = None if local else max(1, int(job.cpus_per_actor))
        load = CaptionerLoader(job.artifact, job, job.gpus_per_actor, threads)
    out = Path(job.out)
    folder = open_tiles(job, scene, source.num_chunks, str(out / TILES), overwrite)
    content = fingerprint(_VERSION, folder.manifest.fingerprint, [getattr(job, name) for name in _DERIVED])
    earlier = read_object(out / SUMMARY)
    same = earlier is not None and earlier.get("fingerprint") == content
    if earlier is not None and not same and not overwrite:
        raise ValueError(
            f"{out} holds changes by other settings; choose another folder, or pass --overwrite (tiles of the same "
            "images and captioner are kept)"
        )
    kwargs = {"scene": scene, "tiling": tiling, "load": load, "batch_size": job.batch_size}
    kwargs["options"] = DescribeOptions(job.beams, change_map=True)
    stage = StageSpec(
        CaptionTiles, kwargs, num_cpus=job.cpus_per_actor, num_gpus=job.gpus_per_actor, concurrency=job.actors
    )
    results: list[ChunkResult] = []
    run(folder, source, [stage], name="tiles", max_reject_share=job.max_reject_share, watch=results.append)
    done = sum(result.num_rows + result.num_rejects for result in results)
    if earlier is not None and same and not done:
        return SceneResult(earlier, done)
    with explain_write_errors(locate(job.out)), gdal():
        (out / SUMMARY).unlink(missing_ok=True)
        summary = {"fingerprint": content, **_merged(job, scene, tiling, out)}
        write_json(out / SUMMARY, summary)
    return SceneResult(summary, done)


@dataclass
class _Map:
    """The map of the scene, put together from its tiles, and their texts.

    Attributes:
        grey: the map, uint8 (H, W), :data:`NO_DATA` where nothing was compared.
        kinds: class of every pixel that changed, uint8 (H, W); 0 elsewhere.
        captions: number of a tile -> caption and confidence.
        names: of the classes, the first is what did not change; empty for a captioner without.
        warning: of the captioner about tiles that it is not familiar with, ``warned`` of them.
    """

    grey: np.ndarray
    kinds: np.ndarray
    captions: dict[int, tuple[str, float]]
    verdicts: Counter[str]
    names: tuple[str, ...] = ()
    warning: str | None = None
    warned: int = 0
    unreadable: int = 0


def _merged(job: SceneJob, scene: ScenePair, tiling: Tiling, out: Path) -> dict[str, Any]:
    tiles = _read_map(out / TILES, tiling, job.threshold)
    borders = [span.first for span in tiling.rows], [span.first for span in tiling.columns]
    changes, tallies, inside = changes_of(
        tiles.kinds, tiles.grey, scene.transform, scene.crs, job.min_area, tiles.names, borders
    )
    _write_raster(out / MAP, tiles.grey, scene, NO_DATA)
    _write_raster(out / CHANGES, tiles.kinds * inside, scene)
    features = [
        change.feature(change.number, change.part.value / STEPS, *_caption_of(change, tiles)) for change in changes
    ]
    lines = ",\n".join(json.dumps(feature) for feature in features)
    write_text(out / POLYGONS, f'{{"type": "FeatureCollection", "features": [\n{lines}\n]}}\n')
    compared = int((tiles.grey != NO_DATA).sum())
    share = compared / (scene.width * scene.height)
    totals = [sum(getattr(tally, name) for tally in tallies.values()) for name in ("count", "area")]
    return {
        "sentence": scene_sentence(tallies, job.min_area, share),
        "changes": totals[0],
        "area_m2": round(totals[1], 2),
        "classes": {class_name(name): tally.to_dict() for name, tally in tallies.items()},
        "compared": share,
        "tiles": {
            "all": tiling.count,
            "captioned": len(tiles.captions),
            "unreadable": tiles.unreadable,
            "warned": tiles.warned,
            "verdicts": dict(sorted(tiles.verdicts.items())),
        },
        "warning": tiles.warning,
        "artifact": job.artifact,
        "before": job.before,
        "after": job.after,
        "width": scene.width,
        "height": scene.height,
    }


def _read_map(folder: Path, tiling: Tiling, threshold: float) -> _Map:
    """A tile that is not there was not compared."""
    grey = np.full((tiling.height, tiling.width), NO_DATA, np.uint8)
    scene = _Map(grey, np.zeros_like(grey), {}, Counter(), unreadable=read_manifest(folder).num_rejected)
    least = max(1, math.ceil(round(STEPS * threshold, 6)))
    for row in iter_rows(folder):
        if row["caption"] is None:
            continue
        scene.captions[row["tile"]] = (row["caption"], row["confidence"])
        scene.verdicts[row["verdict"]] += 1
        if row["warning"] is not None:
            scene.warning, scene.warned = row["warning"], scene.warned + 1
        rows, columns = (slice(span.first, span.last) for span in tiling[row["tile"]])
        grey[rows, columns] = values = decode_image(row["map"])[..., 0]
        changed = (values >= least) & (values != NO_DATA)
        scene.kinds[rows, columns] = changed
        if row["names"]:
            scene.names = tuple(row["names"])
            scene.kinds[rows, columns] = changed * decode_image(row["classes"])[..., 0]
    return scene


def _caption_of(change: SceneChange, tiles: _Map) -> tuple[str, float]:
    """Caption and confidence of one of a part's tiles: of those whose caption has the class in it, else of those whose
    caption names a change, else of all, the one that holds most of the part."""
    captions: Counter[tuple[str, float]] = Counter()
    for tile, pixels in change.part.tiles.items():
        captions[tiles.captions[tile]] += pixels

    def rank(caption: tuple[str, float]) -> tuple[bool, bool, int]:
        text = caption[0]
        return change.name is not None and change.name in text.lower(), not says_no_change(text), captions[caption]

    return max(captions, key=rank)


def _write_raster(path: Path, values: np.ndarray, scene: ScenePair, nodata: int | None = None) -> None:
    """A GeoTIFF on the grid of the scene, uint8; it appears whole."""
    with (
        replacing(path) as partial,
        rasterio.open(
            partial, "w", driver="GTiff", width=scene.width, height=scene.height, count=1, dtype="uint8", nodata=nodata,
            crs=scene.crs, transform=scene.transform, tiled=True, blockxsize=256, blockysize=256, compress="deflate",
            BIGTIFF="IF_SAFER",
        ) as raster,
    ):  # fmt: skip
        raster.write(values, 1)
