"""Settings of the job that captions a pair of GeoTIFFs."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from pydantic import Field

from idc.captioning.loading import LoadConfig
from idc.captioning.sources import SHIPPED_SATELLITE, missing_artifact
from idc.config import missing
from idc.util.option_values import DiskPath


class SceneJob(LoadConfig):
    """Caption two GeoTIFFs of one place tile by tile; write one map, polygons and a sentence of what changed."""

    artifact: str = SHIPPED_SATELLITE
    """The captioner, one with a change map: the artifact folder of a training run, `shipped-satellite`, `shipped`,
    `regions` or `hf:NAME`."""
    before: str
    """GeoTIFF before the change."""
    after: str
    """GeoTIFF after the change; its grid of pixels is that of the result."""
    out: DiskPath
    """The folder to write, on a disk."""
    bands: tuple[int, ...] | None = None
    """Bands that are red, green and blue, or the one that is grey, from 1 on, in both images. Default: those that the
    files call so, else all bands of a file with one or three."""
    scaling: tuple[float, float] | Literal["percentiles"] | None = None
    """Values that become black and white, as in [0,3000]; or percentiles: the 2nd and 98th of a sample of both images.
    Needed for images of more than 8 bits; default of 8 bits: [0,255]."""
    nodata: float | None = None
    """Value of pixels without data in all bands of either image, as of a black border (0), besides what the files say;
    nothing is compared there."""
    reproject: bool = False
    """Resample the image before to the grid of the image after, if their coordinate systems, resolutions or extents
    differ. Where either has no pixels, nothing is compared."""
    tile: int = Field(default=256, ge=64, le=4096)
    """Side of a tile in pixels; a captioner sees a tile at a size of its own, usually 160 to 512."""
    overlap: int = Field(default=32, ge=0)
    """Pixels by which neighbouring tiles overlap. Of the map of a tile only the part that is nearer to it than to its
    neighbours is used."""
    threshold: float = Field(default=0.5, gt=0, le=1)
    """A pixel changed where the map is at least this."""
    min_area: float = Field(default=10.0, ge=0)
    """Smallest area of a polygon in square metres."""
    max_pixels: int = Field(default=500_000_000, ge=1)
    """Larger scenes are refused before a pixel is read; the map of one takes some 20 bytes a pixel of memory."""
    max_reject_share: float = Field(default=0.0, ge=0, le=1)
    """Share of tiles that may be unreadable; they are left out of the map."""
    beams: int | None = Field(default=None, ge=1)
    """Beams of the search, 1 is greedy. Default: the number that the artifact was validated with."""
    batch_size: int = Field(default=8, ge=1)
    """Tiles per batch of the model; two batches are in memory."""
    chunk_size: int = Field(default=64, ge=1, le=10_000)
    """Tiles per chunk of work, which is one Parquet part."""
    actors: int = Field(default=1, ge=1)
    """Copies of the captioner on Ray; with --local, processes of this machine."""
    cpus_per_actor: float = Field(default=1.0, gt=0)
    """CPUs per copy, and on Ray its torch threads."""
    gpus_per_actor: float = Field(default=0.0, ge=0)
    """GPUs per copy; above 0 it captions on cuda."""

    def errors(self) -> Iterator[str]:
        if self.bands is not None and (len(self.bands) not in (1, 3) or min(self.bands) < 1):
            yield f"bands: {list(self.bands)} are not one band or three, from 1 on, as in bands=[3,2,1]"
        if isinstance(self.scaling, tuple) and not self.scaling[0] < self.scaling[1]:
            yield f"scaling: black is {self.scaling[0]:g} and white {self.scaling[1]:g}; white must be the larger value"
        if 2 * self.overlap > self.tile:
            yield f"overlap: {self.overlap} is more than half of tile={self.tile}; take at most {self.tile // 2}"

    def preflight(self) -> Iterator[str]:
        yield from super().preflight()
        if find_spec("rasterio") is None:
            yield "rasterio, which reads GeoTIFFs, is not installed; pip install 'idc[geo]'"
        yield from missing_artifact(self.artifact, "artifact")
        for name in ("before", "after"):
            yield from _missing_file(getattr(self, name), name)


def _missing_file(path: str, field: str) -> Iterator[str]:
    """GDAL would ask hosts, and look into archives, by name."""
    if "://" in path or path.startswith("/vsi"):
        yield f"{field}: {path!r} is a URI; download it, and give the file"
    elif Path(path).is_dir():
        yield f"{field}: {path!r} is not a file"
    else:
        yield from missing(path, field)
