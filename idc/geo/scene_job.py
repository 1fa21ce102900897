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
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import rasterio

from idc.captioning.contract import SearchOptions
from idc.captioning.loading import CaptionerLoader, LoadCaptioner
from idc.captioning.sources import artifact_folder
from idc.data.files import locate
from idc.data.images import decode_image
from idc.data.object_store import explain_write_errors
from idc.data.pipeline import ChunkResult, NumberSource, StageSpec, run_local
from idc.data.store import Manifest, fingerprint, iter_rows, read_manifest
from idc.geo.config import SceneJob
from idc.geo.polygons import changes_of, scene_sentence
from idc.geo.rasters import ScenePair, gdal, open_scene
from idc.geo.tile_captions import NO_DATA, STEPS, CaptionTiles, Tile, open_tiles, tiles_of
from idc.metrics.change_types import says_no_change
from idc.util.atomic import read_object, replacing, write_json, write_text

TILES, SUMMARY = "tiles", "summary.json"
MAP, CHANGES = "change_map.tif", "changes.tif"
POLYGONS = "changes.geojson"
_DERIVED = ("threshold", "min_area")
"""Settings on which the result depends, besides the tiles."""
_VERSION = 1
"""Incremented when the same tiles and settings would give another result."""


class SceneResult(NamedTuple):
    """The content of summary.json, and how many tiles this run has read; the others were done before."""

    summary: dict[str, Any]
    done: int

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
        return "\n".join([*lines, str(self.summary["sentence"])])


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
    tiles = tiles_of(scene.height, scene.width, job.tile, job.overlap)
    source = NumberSource(len(tiles), job.chunk_size)
    artifact = artifact_folder(job.artifact, job.objects)
    if load is None:
        threads = None if local else max(1, int(job.cpus_per_actor))
        load = CaptionerLoader(artifact, job, job.gpus_per_actor, threads)
    out = Path(job.out)
    folder = open_tiles(job, artifact, scene, source.num_chunks, str(out / TILES), overwrite)
    content = fingerprint(_VERSION, folder.manifest.fingerprint, [getattr(job, name) for name in _DERIVED])
    earlier = read_object(out / SUMMARY)
    same = earlier is not None and earlier.get("fingerprint") == content
    if earlier is not None and not same and not overwrite:
        raise ValueError(
            f"{out} holds changes by other settings; choose another folder, or pass --overwrite (tiles of the same "
            "images and captioner are kept)"
        )
    kwargs = {"scene": scene, "tiles": tiles, "load": load, "batch_size": job.batch_size}
    kwargs["options"] = SearchOptions(job.beams, change_map=True)
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
        summary = {"fingerprint": content, **_merged(job, scene, tiles, out)}
        write_json(out / SUMMARY, summary)
    return SceneResult(summary, done)


def _merged(job: SceneJob, scene: ScenePair, tiles: list[Tile], out: Path) -> dict[str, Any]:
    """Write the rasters and the polygons. Returns the summary."""
    grey = np.full((scene.height, scene.width), NO_DATA, np.uint8)  # a tile that has no row was not compared
    kinds = np.zeros_like(grey)  # class of every pixel that changed
    least = max(1, math.ceil(round(STEPS * job.threshold, 6)))
    names: tuple[str, ...] = ()
    captions: dict[int, tuple[str, float]] = {}
    verdicts: Counter[str] = Counter()
    warnings: list[str] = []
    for row in iter_rows(out / TILES):
        if row["caption"] is None:
            continue
        captions[row["tile"]] = (row["caption"], row["confidence"])
        verdicts[row["verdict"]] += 1
        warnings += [row["warning"]] * (row["warning"] is not None)
        core = tiles[row["tile"]].core.toslices()
        grey[core] = values = decode_image(row["map"])[..., 0]
        kinds[core] = (values >= least) & (values != NO_DATA)
        if row["names"]:
            names = tuple(row["names"])
            kinds[core] *= decode_image(row["classes"])[..., 0]

    def caption_of(name: str | None, pixels: Mapping[int, int]) -> tuple[str, float]:
        """Of the tiles of a part whose caption has its class in it, else of those whose caption names a change, else of
        all, the one that holds most of it."""
        sizes: Counter[tuple[str, float]] = Counter()
        for tile, size in pixels.items():
            sizes[captions[tile]] += size

        def rank(caption: tuple[str, float]) -> tuple[bool, bool, int]:
            text = caption[0]
            return name is not None and name in text.lower(), not says_no_change(text), sizes[caption]

        return max(sizes, key=rank)

    rows, columns = (sorted({getattr(tile.core, name) for tile in tiles}) for name in ("row_off", "col_off"))
    changes = changes_of(
        kinds, grey, scene.transform, scene.crs, job.min_area, caption_of, names=names, borders=(rows, columns),
        steps=STEPS,
    )  # fmt: skip
    _write_raster(out / MAP, grey, scene, NO_DATA)
    _write_raster(out / CHANGES, kinds * changes.mask, scene)
    lines = ",\n".join(map(json.dumps, changes.features))
    write_text(out / POLYGONS, f'{{"type": "FeatureCollection", "features": [\n{lines}\n]}}\n')
    share = int((grey != NO_DATA).sum()) / grey.size
    return {
        "sentence": scene_sentence(changes.tallies, job.min_area, share),
        "changes": len(changes.features),
        "area_m2": round(sum(tally.area for tally in changes.tallies.values()), 2),
        "classes": {name or "change": tally.to_dict() for name, tally in changes.tallies.items()},
        "compared": share,
        "tiles": {
            "all": len(tiles),
            "captioned": len(captions),
            "unreadable": read_manifest(out / TILES).num_rejected,
            "warned": len(warnings),
            "verdicts": dict(sorted(verdicts.items())),
        },
        "warning": warnings[-1] if warnings else None,
        "artifact": job.artifact,
        "before": job.before,
        "after": job.after,
        "width": scene.width,
        "height": scene.height,
    }


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
