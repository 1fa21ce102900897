"""Settings of the jobs that import and check pairs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from idc.config import ConfigModel, missing
from idc.data.published import SetName
from idc.data.rendered.config import MotionConfig

Format = Literal["clevr_change", "folder", "csv", "jsonl", "parquet"]
AnyFormat = Literal["auto", "clevr_change", "folder", "csv", "jsonl", "parquet"]


class ImportConfig(ConfigModel):
    """How pairs are read, whether they are stored or only checked."""

    chunk_size: int = Field(default=32, ge=1, le=10_000)
    """Pairs in one chunk of work, which is one Parquet part; a worker holds the images of one chunk in memory."""
    max_pixels: int = Field(default=50_000_000, ge=1)
    """A larger image is refused before it is decoded."""
    require_captions: bool = False
    """Reject pairs without a caption; otherwise they are counted and kept."""
    strict: bool = False
    """Official layouts: reject every pair whose images are absent; otherwise absent pairs are only counted."""
    val_share: float = Field(default=0.1, ge=0, le=1)
    """Share of the pairs without a given split that go to val. Pairs with the same before image stay together."""
    test_share: float = Field(default=0.1, ge=0, le=1)
    """Share of the pairs without a given split that go to test."""

    def faults(self) -> Iterator[str]:
        if self.val_share + self.test_share > 1:
            yield f"val_share + test_share is {self.val_share + self.test_share:g}, more than 1"


class PrepareJob(ImportConfig):
    """Import pairs into a data set folder."""

    source: str
    """What to import: a folder for clevr_change and folder, else a file (or a folder of Parquet files). Path or URI."""
    format: Format = "folder"
    """The layout of the source; see the README, "Your own pairs"."""
    out: str
    """The data set folder to write. Path or URI."""
    max_reject_share: float = Field(default=0.05, ge=0, le=1)
    """The job fails if more than this share of the pairs is rejected."""
    workers: int = Field(default=2, ge=1)
    """Copies of the import stage on Ray, one CPU each."""

    def preflight(self) -> Iterator[str]:
        yield from missing(self.source, "source")


class ValidateJob(ImportConfig):
    """Check a data set folder, or pairs that are still to be imported."""

    pairs: str
    """A data set folder, or what PrepareJob takes as its source. Path or URI."""
    format: AnyFormat = "auto"
    """The layout; "auto" tells it by the files that are there."""
    report: str | None = None
    """Where to write the result as JSON. Default: validation.json in the folder, <file>.validation.json by a file. The
    page with pictures goes beside it, under the same name with .html."""
    published: SetName | None = None
    """Whose published counts to compare with. Default: those of the layout, also of an imported folder."""
    pictures: int = Field(default=6, ge=0, le=100)
    """Pairs of each split to show on the page; 0: no page."""
    beside: tuple[str, ...] = ()
    """Reports (JSON) of other data sets, whose captions are to stand in one table with these."""
    clean: bool = False
    """Write a clean variant beside the folder, without leaked and contradictory pairs."""
    clean_out: str | None = None
    """The clean variant's folder. Default: the folder's name with -clean."""
    clean_splits: tuple[Literal["train", "val", "test"], ...] = ("train", "val")
    """Splits from which the clean variant may leave pairs out. A leaked pair is left out if the image that it shares is
    in a later split (train, val, test). By default test stays official, so that scores stay comparable; with [train]
    val does too, but may still share images with test, as a third of Image-Editing-Request's does."""

    def faults(self) -> Iterator[str]:
        yield from super().faults()
        if self.clean and not self.clean_splits:
            yield "clean_splits: empty, so nothing could be left out"

    def preflight(self) -> Iterator[str]:
        yield from missing(self.pairs, "pairs")
        for report in self.beside:
            yield from missing(report, "beside")


class TripletsConfig(ConfigModel):
    """Frame triplets to make: cut from videos, or rendered."""

    videos: tuple[str, ...] = ()
    """Video files; these or `scenes`."""
    gap: int = Field(default=1, ge=1)
    """Video frames from the first to the middle one of a triplet, and from the middle to the last."""
    every: int = Field(default=3, ge=1)
    """A triplet begins at every this many-th frame of a video."""
    max_side: int | None = Field(default=None, ge=16)
    """Video frames are reduced until their longer side has this many pixels; empty: as they are."""
    min_motion: float = Field(default=0.0, ge=0, le=255)
    """Triplets of videos whose first and last frame differ by less in the mean (of 0 to 255) are left out: much of what
    a fixed camera sees is still."""
    val_share: float = Field(default=0.1, ge=0, lt=1)
    """Share of each video, its last part, for validation (scenes have shares of their own)."""
    scenes: MotionConfig | None = None
    """Rendered scenes in motion."""
    chunk_size: int = Field(default=16, ge=1, le=10_000)
    """Triplets in one chunk of work, which is one Parquet part."""
    workers: int = Field(default=2, ge=1)
    """Processes on Ray, one CPU each."""
    max_reject_share: float = Field(default=0.01, ge=0, le=1)
    """The build fails if more than this share of the triplets cannot be made."""

    def faults(self) -> Iterator[str]:
        if bool(self.videos) == (self.scenes is not None):
            yield "videos and scenes: give one of the two"

    def preflight(self) -> Iterator[str]:
        for n, path in enumerate(self.videos):
            yield from missing(path, f"videos.{n}")


class BuildTripletsJob(ConfigModel):
    """Make a folder of frame triplets."""

    triplets: str = Field(min_length=1)
    """Folder to write."""
    build: TripletsConfig
    """Of what."""
