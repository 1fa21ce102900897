"""Pairs of GeoTIFFs: what is refused, and how windows of them become pairs of 8-bit images on one grid.

Files are opened by GDAL's driver for GeoTIFF alone, and nothing next to them is: a VRT, a sidecar file or an overview
elsewhere could name files and hosts of the author's choice. Of a file only blocks are read; how large those are is
checked first.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import rasterio
from rasterio.enums import ColorInterp, Resampling
from rasterio.errors import NotGeoreferencedWarning, RasterioError
from rasterio.session import DummySession
from rasterio.transform import Affine
from rasterio.vrt import WarpedVRT
from rasterio.warp import transform
from rasterio.windows import Window

from idc.captioning.apply import Pixels
from idc.data.tiff_header import refuse_large_blocks, tiff_directories
from idc.geo.config import SceneJob
from idc.geo.georeference import check_georeference, check_grids, renamed

_OPTIONS = {
    "GDAL_DISABLE_READDIR_ON_OPEN": "EMPTY_DIR",
    "GDAL_PAM_ENABLED": "NO",
    "GTIFF_GEOREF_SOURCES": "INTERNAL",
    "GDAL_CACHEMAX": 64 * 2**20,  # bytes of decoded blocks; by default a share of the machine's memory
}
_LARGEST_BLOCK = 2**28
"""Bytes of a decoded block: the least that is in memory to read a single pixel."""
_TYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "float32", "float64")
_SAMPLES, _SAMPLE_SIDE = 8, 128
"""Percentiles are those of windows of this side, so many along either axis."""
_BLACK, _WHITE = 2.0, 98.0


class RasterFile(NamedTuple):
    """A GeoTIFF and the bands of it that are red, green and blue, or the grey one."""

    path: str
    bands: tuple[int, ...]


@dataclass(frozen=True)
class ScenePair:
    """A pair that :func:`open_scene` has accepted, and its grid; picklable.

    Attributes:
        width, height: of the grid, in pixels.
        transform: from columns and rows of pixels to coordinates.
        crs: WKT of the coordinate system.
        resampled: whether the image before is resampled to the grid.
        scaling: values that become black and white; None: 8 bits as they are.
        nodata: value of pixels without data, besides those that the files name.
    """

    before: RasterFile
    after: RasterFile
    width: int
    height: int
    transform: Affine
    crs: str
    resampled: bool
    scaling: tuple[float, float] | None
    nodata: float | None = None


class TilePixels(NamedTuple):
    """A tile as two images, black where either has no data, and where both have data, bool (H, W)."""

    pixels: Pixels
    valid: np.ndarray


@contextmanager
def gdal() -> Iterator[None]:
    """Context of everything that GDAL does: no sidecar files, a small cache of blocks, no credentials."""
    with rasterio.Env(session=DummySession(), **_OPTIONS), warnings.catch_warnings():
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        yield


@contextmanager
def opened(path: str) -> Iterator[Any]:
    """A GeoTIFF, open; only inside :func:`gdal`.

    Raises:
        ValueError: it is none, or has parts elsewhere.
    """
    logging.getLogger("rasterio").setLevel(logging.CRITICAL)  # its errors are raised as well
    try:
        with open(path, "rb") as file:  # images, masks among them, whose header makes GDAL parse or allocate much
            directories = tiff_directories(file)
            for directory in directories:
                refuse_large_blocks(directory, directories[0])
        dataset = rasterio.open(Path(path).resolve(), driver="GTiff")
    except (RasterioError, OSError) as error:
        raise ValueError(
            f"{path} cannot be read as a GeoTIFF ({_reason(error)}); copy it again, or convert another format: "
            f"rio convert {path} {renamed(path, 'converted')}"
        ) from None
    except ValueError as error:
        raise ValueError(
            f"{path}: {error}; write it anew, in tiles and without metadata: gdal_translate -co TILED=YES -nomd "
            f"{path} {renamed(path, 'tiled')}"
        ) from None
    with dataset:
        # Overviews may be named in the file's own metadata, as any file or host; GDAL opens them on demand.
        if dataset.tags(ns="OVERVIEWS"):
            raise ValueError(f"{path} names a file of overviews, which is not opened; write the image anew without")
        yield dataset


def open_scene(job: SceneJob) -> ScenePair:
    """Check a pair of GeoTIFFs and describe its grid.

    Raises:
        ValueError: they cannot be compared: file, reason and what to do.
    """
    with gdal(), opened(job.before) as before, opened(job.after) as after:
        pair = ((job.before, before), (job.after, after))
        sources = [RasterFile(path, _bands(path, dataset, job.bands)) for path, dataset in pair]
        for path, dataset in pair:
            _check_values(path, dataset, job)
        types = [dataset.dtypes[0] for _, dataset in pair]
        if types[0] != types[1]:
            raise ValueError(
                f"{job.before} holds {types[0]} and {job.after} {types[1]}, and no scaling suits both; convert one: "
                f"rio convert --dtype {types[1]} {job.before} {renamed(job.before, types[1])}"
            )
        for path, dataset in pair:
            check_georeference(path, dataset)
        scene = ScenePair(
            sources[0], sources[1], width=after.width, height=after.height, transform=after.transform,
            crs=after.crs.to_wkt(), resampled=check_grids(job, before, after),
            scaling=job.scaling if isinstance(job.scaling, tuple) else None, nodata=job.nodata,
        )  # fmt: skip
    return scene if job.scaling != "percentiles" else replace(scene, scaling=_percentiles(scene))


class SceneReader:
    """Reads windows of a scene. A context manager; of one thread at a time."""

    def __init__(self, scene: ScenePair) -> None:
        self._scene = scene
        self._stack = ExitStack()
        with gdal():
            before, after = (self._stack.enter_context(opened(s.path)) for s in (scene.before, scene.after))
            if scene.resampled:
                nodata = before.nodata if scene.nodata is None else scene.nodata
                transparent = nodata is not None or ColorInterp.alpha in before.colorinterp
                before = self._stack.enter_context(
                    WarpedVRT(
                        before, crs=scene.crs, transform=scene.transform, width=scene.width, height=scene.height,
                        resampling=Resampling.bilinear, add_alpha=not transparent, src_nodata=nodata,
                        **_scales(scene, before),
                    )
                )  # fmt: skip
        self._datasets = ((scene.before, before), (scene.after, after))

    def __enter__(self) -> SceneReader:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def read(self, window: Window) -> TilePixels:
        """The pixels of a window.

        Raises:
            ValueError: a file is damaged there.
        """
        (before, in_before), (after, in_after) = self._windows(window)
        valid = in_before & in_after
        images = [eight_bits(values, self._scene.scaling) * valid[..., None] for values in (before, after)]
        return TilePixels(Pixels(*images), valid)

    def sample(self, window: Window) -> np.ndarray:
        """The values of both images in a window where they have data, one after another."""
        return np.concatenate([values[valid].ravel() for values, valid in self._windows(window)])

    def _windows(self, window: Window) -> list[tuple[np.ndarray, np.ndarray]]:
        with gdal():
            return [_window(source, dataset, window, self._scene.nodata) for source, dataset in self._datasets]


def _scales(scene: ScenePair, before: Any) -> dict[str, float]:
    """Pixels of the grid per column and row of the image before, in the middle of the grid. GDAL guesses them for each
    block by the rectangle around it, and blurs what a turned grid makes look reduced."""
    middle = np.array([[scene.width], [scene.height]]) / 2 + [[0, 1, 0], [0, 0, 1]]
    points = np.array(transform(scene.crs, before.crs, *(scene.transform @ tuple(middle))))
    positions = np.array(~before.transform @ tuple(points))
    columns, rows = np.linalg.norm(np.linalg.inv(positions[:, 1:] - positions[:, :1]), axis=0)
    return {"XSCALE": min(1.0, columns), "YSCALE": min(1.0, rows)}


def eight_bits(values: np.ndarray, scaling: tuple[float, float] | None) -> np.ndarray:
    """Values (H, W, 1 or 3) as uint8 RGB (H, W, 3); what is no number becomes black.

    Args:
        scaling: values that become black and white; None for values that are uint8.
    """
    if scaling is not None:
        low, high = scaling
        shares = (values.astype(np.float64) - low) / (high - low)
        values = np.nan_to_num(255 * shares.clip(0, 1)).round().astype(np.uint8)
    return np.repeat(values, 3 // values.shape[2], axis=2)


def _window(source: RasterFile, dataset: Any, window: Window, nodata: float | None) -> tuple[np.ndarray, np.ndarray]:
    """Values (H, W, bands) and where there are any: where any of the bands has data, which is not ``nodata``."""
    try:
        values = dataset.read(indexes=source.bands, window=window)
        valid = dataset.read_masks(indexes=source.bands, window=window).any(axis=0)
    except (RasterioError, OSError) as error:
        (top, bottom), (left, right) = window.toranges()
        raise ValueError(
            f"{source.path} is damaged in rows {top} to {bottom}, columns {left} to {right} ({_reason(error)}); copy "
            "it again"
        ) from None
    if values.dtype.kind == "f":
        valid &= np.isfinite(values).any(axis=0)
    if nodata is not None:
        valid &= (values != nodata).any(axis=0)
    return np.moveaxis(values, 0, 2), valid


def _percentiles(scene: ScenePair) -> tuple[float, float]:
    """Black and white of both images, by windows all over the scene."""
    axes = []
    for length in (scene.height, scene.width):
        side = min(length, _SAMPLE_SIDE)
        starts = dict.fromkeys(int(start) for start in np.linspace(0, length - side, _SAMPLES))
        axes.append([slice(start, start + side) for start in starts])
    with SceneReader(scene) as reader:
        values = np.concatenate([reader.sample(Window.from_slices(*each)) for each in product(*axes)])
    values = values[np.isfinite(values)]
    low, high = np.percentile(values, (_BLACK, _WHITE)).tolist() if values.size else (0.0, 0.0)
    if not low < high:
        raise ValueError(
            f"scaling: a sample of {scene.before.path} and {scene.after.path} has no different values; give the values "
            "of black and white, as in scaling=[0,3000]"
        )
    return low, high


def _bands(path: str, dataset: Any, bands: tuple[int, ...] | None) -> tuple[int, ...]:
    if bands is not None:
        if max(bands) > dataset.count:
            raise ValueError(f"bands: {path} has {dataset.count} bands, so that there is no {max(bands)}")
        return bands
    kinds = list(dataset.colorinterp)
    if kinds[0] == ColorInterp.palette:
        raise ValueError(
            f"{path} has a palette; write its colours: gdal_translate -expand rgb {path} {renamed(path, 'rgb')}"
        )
    colours = (ColorInterp.red, ColorInterp.green, ColorInterp.blue)
    if all(kinds.count(kind) == 1 for kind in colours):
        return tuple(kinds.index(kind) + 1 for kind in colours)
    others = [i for i, kind in enumerate(kinds, start=1) if kind != ColorInterp.alpha]
    if len(others) in (1, 3):
        return tuple(others)
    named = ", ".join(kind.name for kind in kinds[:8]) + (", ..." if len(kinds) > 8 else "")
    raise ValueError(
        f"{path} has {dataset.count} bands ({named}), and does not say which are red, green and blue; name them, as in "
        "bands=[3,2,1]"
    )


def _check_values(path: str, dataset: Any, job: SceneJob) -> None:
    kind = dataset.dtypes[0]
    if kind not in _TYPES or len(set(dataset.dtypes)) > 1:
        raise ValueError(f"{path} holds {', '.join(dict.fromkeys(dataset.dtypes))}; images are of one of {_TYPES}")
    if dataset.width * dataset.height > job.max_pixels:
        raise ValueError(
            f"{path} has {dataset.width} x {dataset.height} pixels, more than max_pixels={job.max_pixels}; raise it, "
            "or cut the image"
        )
    together = 1 if len(dataset.block_shapes) > 1 and dataset.interleaving.name == "band" else dataset.count
    rows, columns = dataset.block_shapes[0]
    if rows * columns * together * np.dtype(kind).itemsize > _LARGEST_BLOCK:
        raise ValueError(
            f"{path} is stored in blocks of {columns} x {rows} pixels, each of which is decoded whole; rewrite it in "
            f"tiles: rio convert --co TILED=YES {path} {renamed(path, 'tiled')}"
        )
    if kind != "uint8" and job.scaling is None:
        raise ValueError(
            f"{path} holds {kind}; give the values that become black and white, as in scaling=[0,3000], or "
            "scaling=percentiles"
        )


def _reason(error: BaseException) -> str:
    """The innermost reason of an error of rasterio, which wraps GDAL's."""
    while error.__cause__ is not None:
        error = error.__cause__
    return " ".join(str(error).split())
