"""A pair of GeoTIFFs to one map, polygons and a sentence.

    tiles/              one row per tile: caption and map (:mod:`idc.geo.tile_captions`)
    change_map.tif      the map of the scene: 0 to 254, 255 where nothing was compared
    changes.tif         what counts as changed: 0, or the number of the class from 1 on
    changes.geojson     its connected parts as polygons, in longitude and latitude
    changes_native.geojson    the same in the coordinate system of the image, on request
    summary.json        the sentence, counts, areas; written last

Tiles are read back row by row of tiles, so that a strip of the scene is the most that is in memory.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import rasterio
from rasterio.crs import CRS
from rasterio.transform import Affine
from rasterio.windows import Window

from idc.atomic import read_object, replacing, write_json
from idc.captioning.apply import DescribeOptions
from idc.captioning.loading import CaptionerLoader, LoadCaptioner
from idc.data.files import locate
from idc.data.images import decode_image
from idc.data.pipeline import ChunkResult, StageSpec, run_local
from idc.data.store import Manifest, fingerprint, iter_rows, read_manifest
from idc.data.write_errors import writing
from idc.geo.components import MapPart, MapParts
from idc.geo.config import SceneJob
from idc.geo.polygons import Features, change_properties, class_name, pixel_areas, polygons
from idc.geo.rasters import ScenePair, SceneReader, gdal, open_scene
from idc.geo.scene_sentence import Tally, position_of, scene_sentence
from idc.geo.tile_captions import NO_DATA, STEPS, CaptionTiles, TileSource, open_tiles
from idc.geo.tiles import Tiling
from idc.metrics.changes import says_no_change

TILES, SUMMARY = "tiles", "summary.json"
MAP, CHANGES = "change_map.tif", "changes.tif"
POLYGONS, NATIVE = "changes.geojson", "changes_native.geojson"
_NUMBERS = ".numbers.tif"
_DERIVED = ("threshold", "min_area", "native", "pixel_coordinates")
"""Settings on which the result depends, besides the tiles."""
_SURELY = 0.9
"""Pixels differ in size on the ground by less than this, between the points that are looked at."""
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
        return "\n".join([*lines, *self.summary["notes"], self.sentence])


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
    source = TileSource(tiling.count, job.chunk_size)
    if load is None:
        threads = None if local else max(1, int(job.cpus_per_actor))
        load = CaptionerLoader(job.artifact, job, job.gpus_per_actor, threads)
    out = Path(job.out)
    folder = open_tiles(job, scene, source, str(out / TILES), overwrite)
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
    with SceneReader(scene) as reader:
        notes = [*scene.notes, *reader.borders()]
    with writing(locate(job.out)), gdal():
        (out / SUMMARY).unlink(missing_ok=True)
        summary = {"fingerprint": content, **_merged(job, scene, tiling, out), "notes": notes}
        write_json(out / SUMMARY, summary)
    return SceneResult(summary, done)


class _Strip(NamedTuple):
    """A row of tiles: the map and the class of every pixel, uint8 (H, W), from the row of pixels ``top`` on."""

    top: int
    grey: np.ndarray
    kinds: np.ndarray


@dataclass
class _Tiles:
    """What is kept of the tiles in memory: texts.

    Attributes:
        captions: number of a tile -> caption and confidence.
        names: of the classes, the first is what did not change; empty for a captioner without.
        warning: of the captioner about tiles that it is not familiar with, ``warned`` of them.
    """

    captions: dict[int, tuple[str, float]]
    verdicts: Counter[str]
    names: tuple[str, ...] = ()
    warning: str | None = None
    warned: int = 0
    unreadable: int = 0


def _merged(job: SceneJob, scene: ScenePair, tiling: Tiling, out: Path) -> dict[str, Any]:
    """Write the rasters and the polygons. Returns the summary."""
    tiles = _texts_of(out / TILES)
    parts = MapParts(_least(job, scene), [span.first for span in tiling.columns])
    compared = 0
    with _raster(out / MAP, scene, "uint8", NO_DATA) as raster:
        for strip in _strips(out / TILES, tiling, job.threshold):
            raster.write(strip.grey, 1, window=_window_of(strip))
            parts.add(strip.kinds, strip.grey / STEPS, strip.top)
            compared += int((strip.grey != NO_DATA).sum())
    kept = _kept(job, scene, parts)
    plain = replace(scene, crs=None, transform=Affine.identity())
    with _raster(out / CHANGES, scene, "uint8") as changes, _raster(out / _NUMBERS, plain, "int32") as numbers:
        for index, strip in enumerate(_strips(out / TILES, tiling, job.threshold)):
            numbered = parts.numbered(index, strip.kinds)
            numbers.write(numbered, 1, window=_window_of(strip))
            changes.write(strip.kinds * (numbered > 0), 1, window=_window_of(strip))
    unit = "px" if scene.crs is None else "m2"
    tallies = _written_polygons(job, scene, tiling, out, tiles, kept, unit)
    (out / _NUMBERS).unlink()
    share = compared / (scene.width * scene.height)
    totals = [sum(getattr(tally, name) for tally in tallies.values()) for name in ("count", "area")]
    return {
        "sentence": scene_sentence(tallies, unit, job.min_area, share),
        "changes": totals[0],
        f"area_{unit}": round(totals[1], 2),
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


def _texts_of(folder: Path) -> _Tiles:
    tiles = _Tiles({}, Counter(), unreadable=read_manifest(folder).num_rejected)
    for row in iter_rows(folder, ["tile", "caption", "confidence", "verdict", "warning", "names"]):
        if row["caption"] is None:
            continue
        tiles.captions[row["tile"]] = (row["caption"], row["confidence"])
        tiles.verdicts[row["verdict"]] += 1
        if row["warning"] is not None:
            tiles.warning, tiles.warned = row["warning"], tiles.warned + 1
        if row["names"]:
            tiles.names = tuple(row["names"])
    return tiles


def _strips(folder: Path, tiling: Tiling, threshold: float) -> Iterator[_Strip]:
    """The scene in rows of tiles, from top to bottom. A tile that is not there was not compared."""
    rows, columns = tiling.rows, tiling.columns
    least = max(1, math.ceil(round(STEPS * threshold, 6)))
    stored = iter_rows(folder, ["tile", "map", "classes"])
    row = next(stored, None)
    for index, span in enumerate(rows):
        grey = np.full((span.last - span.first, tiling.width), NO_DATA, np.uint8)
        kinds = np.zeros_like(grey)
        while row is not None and row["tile"] < (index + 1) * len(columns):
            column = columns[row["tile"] % len(columns)]
            core = slice(column.first, column.last)
            if row["map"] is not None:
                grey[:, core] = values = decode_image(row["map"])[..., 0]
                changed = (values >= least) & (values != NO_DATA)
                kinds[:, core] = changed
                if row["classes"] is not None:
                    kinds[:, core] = changed * decode_image(row["classes"])[..., 0]
            row = next(stored, None)
        yield _Strip(span.first, grey, kinds)


def _least(job: SceneJob, scene: ScenePair) -> int:
    """Pixels of which a part surely has as many if it reaches the smallest area."""
    if scene.crs is None:
        return max(1, math.ceil(job.min_area))
    columns, rows = np.meshgrid(*(np.linspace(0.5, side - 0.5, 9) for side in (scene.width, scene.height)))
    points = list(zip(columns.ravel().tolist(), rows.ravel().tolist(), strict=True))
    largest = float(pixel_areas(points, scene.transform, scene.crs).max())
    return max(1, int(_SURELY * job.min_area / largest))


def _kept(job: SceneJob, scene: ScenePair, parts: MapParts) -> list[MapPart]:
    """The parts that reach the smallest area, numbered from 1 on."""
    candidates = parts.candidates()
    nodes, sizes = list(candidates), np.array([part.pixels for part in candidates.values()], float)
    if nodes and scene.crs is not None:
        centres = [part.centre for part in candidates.values()]
        sizes *= pixel_areas(centres, scene.transform, scene.crs)
    return parts.keep([node for node, size in zip(nodes, sizes.tolist(), strict=True) if size >= job.min_area])


def _written_polygons(
    job: SceneJob, scene: ScenePair, tiling: Tiling, out: Path, tiles: _Tiles, parts: list[MapPart], unit: str
) -> dict[str | None, Tally]:
    """Write the polygons. Returns their numbers and areas by class."""
    tallies: dict[str | None, Tally] = {name: Tally() for name in tiles.names[1:]} or {None: Tally()}
    members: dict[str, Any] = {"coordinates": "pixels"} if scene.crs is None else {}
    with ExitStack() as stack:
        features = stack.enter_context(Features(out / POLYGONS, members))
        native = None
        if job.native and scene.crs is not None:
            native = stack.enter_context(Features(out / NATIVE, {"crs": _named_crs(scene.crs)}))
        for polygon in polygons(out / _NUMBERS, out / CHANGES, scene.transform, scene.crs):
            part = parts[polygon.number - 1]
            name = tiles.names[part.kind] if tiles.names else None
            x, y = part.centre
            position = position_of(x / scene.width, y / scene.height)
            tallies[name].add(polygon.area, position)
            caption, confidence = _caption_of(part, name, tiling, tiles)
            properties = change_properties(name, polygon.area, unit, part, position, caption, confidence)
            features.write(polygon.number, polygon.geometry, properties)
            if native is not None:
                native.write(polygon.number, polygon.native, properties)
    if native is None:
        (out / NATIVE).unlink(missing_ok=True)  # of other settings
    return tallies


def _caption_of(part: MapPart, name: str | None, tiling: Tiling, tiles: _Tiles) -> tuple[str, float]:
    """Caption and confidence of one of a part's tiles: of those whose caption has the class in it, else of those whose
    caption names a change, else of all, the one that holds most of the part."""
    columns = len(tiling.columns)
    captions: Counter[tuple[str, float]] = Counter()
    for (row, column), pixels in sorted(part.tiles.items()):
        captions[tiles.captions[row * columns + column]] += pixels

    def rank(caption: tuple[str, float]) -> tuple[bool, bool, int]:
        text = caption[0]
        return name is not None and name in text.lower(), not says_no_change(text), captions[caption]

    return max(captions, key=rank)


def _named_crs(wkt: str) -> dict[str, Any]:
    """The member that names a coordinate system (GeoJSON of 2008, which GIS programs read; RFC 7946 has none)."""
    authority, code = CRS.from_wkt(wkt).to_authority()
    return {"type": "name", "properties": {"name": f"urn:ogc:def:crs:{authority}::{code}"}}


@contextmanager
def _raster(path: Path, scene: ScenePair, kind: str, nodata: int | None = None) -> Iterator[Any]:
    """A GeoTIFF on the grid of the scene, to be written; it appears whole."""
    with (
        replacing(path) as partial,
        rasterio.open(
            partial, "w", driver="GTiff", width=scene.width, height=scene.height, count=1, dtype=kind, nodata=nodata,
            crs=scene.crs, transform=scene.transform, tiled=True, blockxsize=256, blockysize=256, compress="deflate",
            BIGTIFF="IF_SAFER",
        ) as raster,
    ):  # fmt: skip
        yield raster


def _window_of(strip: _Strip) -> Window:
    height, width = strip.grey.shape
    return Window(0, strip.top, width, height)
